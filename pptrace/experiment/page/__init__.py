"""A run as one HTML page that stands alone."""

from __future__ import annotations

from pptrace.experiment.page.page import run_page

__all__ = ["run_page"]
