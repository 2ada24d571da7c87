"""What steps say: taken apart, compared, explained, fitted; values alone, for ``pptrace.present`` to show."""
