"""What a plugin's own tests are written with: the checks that the plugins shipped with pptrace pass.

Importing this needs no pytest; ``pptrace.testing.fixtures`` is a pytest plugin::

    pytest_plugins = ["pptrace.testing.fixtures"]
"""

from pptrace.testing.family import assert_schedule_family, grid
from pptrace.testing.network import assert_valid_network
from pptrace.testing.schedule import assert_valid_schedule
from pptrace.testing.timeline import assert_same_timeline

__all__ = [
    "assert_same_timeline",
    "assert_schedule_family",
    "assert_valid_network",
    "assert_valid_schedule",
    "grid",
]
