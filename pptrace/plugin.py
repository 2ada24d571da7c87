"""The API for plugins: all names of pptrace that a plugin may import, except ``pptrace.testing`` for its tests.

``docs/stability.md`` lists the names that stay stable. A name is imported at its first use, so that the import of
this module costs nothing: numpy comes with tables and networks, pydantic with the types of options.

>>> from pptrace.plugin import ScheduleOffer, hookimpl
"""

from __future__ import annotations

from pptrace.lazy import names_of

__getattr__, __dir__, __all__ = names_of(__name__)
