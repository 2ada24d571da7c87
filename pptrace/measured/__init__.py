"""What steps say: taken apart, compared, explained, fitted; values alone, for ``pptrace.report`` to show."""
