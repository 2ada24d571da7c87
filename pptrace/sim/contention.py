"""How traffic and computation that meet slow each other."""

from __future__ import annotations

from pptrace.config.choices import Sharing
from pptrace.record import dataclass

__all__ = ["Contention", "Sharing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """What is shared, and how much computation and communication on one rank slow each other.

    The benchmark of Qi et al., Synergistic Tensor and Pipeline Parallelism (2025), section 3.5, is met by
    828 and 896.

    >>> Contention().links.value
    'max-min'
    """

    links: Sharing = Sharing.MAX_MIN
    """What flows that meet on a link do."""
    compute_permille: int = 1000
    """Speed of computation while its rank communicates, in thousandths."""
    communication_permille: int = 1000
    """Speed of communication while one of its ranks computes, in thousandths; of what it could have, alone."""

    @property
    def slows(self) -> bool:
        """Whether computation and communication slow each other."""
        return self.compute_permille != 1000 or self.communication_permille != 1000  # noqa: PLR2004 - the whole
