"""Simulate pipeline-parallel training steps and export them as traces.

>>> import pptrace
>>> run = pptrace.simulate(schedule="table.csv")  # doctest: +SKIP
>>> run.save("step.pftrace")  # doctest: +SKIP
"""

from __future__ import annotations

from pptrace.lazy import names_of

__getattr__, __dir__, __all__ = names_of(__name__)
