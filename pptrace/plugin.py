"""The door for plugins: all that a plugin may import from pptrace, beside ``pptrace.testing`` for its tests.

``docs/stability.md`` says what of it stays as it is. A name is imported when it is first asked for, so that this
module costs nothing: numpy comes with tables and networks, pydantic with the types of options.

>>> from pptrace.plugin import ScheduleOffer, hookimpl
"""

from __future__ import annotations

from pptrace.lazy import names_of

__getattr__, __dir__, __all__ = names_of(__name__, __file__)
