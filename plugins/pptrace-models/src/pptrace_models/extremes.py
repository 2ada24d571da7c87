"""What waits for the slowest of many: the expected maximum of independent normal numbers, in closed form.

``E[max of n] = n * integral of x phi(x) Phi(x)^(n-1) dx`` (David and Nagaraja, Order Statistics, section 3.1).
"""

from __future__ import annotations

from functools import lru_cache
from math import erf, exp, pi, sqrt

__all__ = ["expected_maximum"]

_REACH = 10.0
_STEPS = 2_000


@lru_cache(maxsize=256)
def expected_maximum(count: int) -> float:
    """Return the expected maximum of ``count`` independent standard normal numbers.

    >>> round(expected_maximum(2), 4)  # 1 / sqrt(pi)
    0.5642
    >>> round(expected_maximum(1), 4)
    0.0
    """
    width = 2 * _REACH / _STEPS
    total = 0.0
    for step in range(_STEPS + 1):
        x = step * width - _REACH
        below = 0.5 * (1 + erf(x / sqrt(2)))
        weight = 1 if step in {0, _STEPS} else 4 if step % 2 else 2  # Simpson's rule
        total += weight * x * exp(-x * x / 2) * below ** (count - 1)
    return count * total * width / 3 / sqrt(2 * pi)
