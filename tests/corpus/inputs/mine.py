"""Schedules of one's own: with an option, as objects, and one that fails."""


def make(ranks, microbatches, group: int = 2):
    """Groups of microbatches, forward and backward."""
    rows = [[] for _ in range(ranks)]
    for first in range(0, microbatches, group):
        each = list(range(first, min(first + group, microbatches)))
        for rank, row in enumerate(rows):
            row.extend(f"{rank}{kind}{number}" for kind in "FB" for number in each)
    return rows


def fails(ranks, microbatches):
    """Fail."""
    return [[f"{rank}F{microbatches}"] for rank in range(ranks // 0)]


def swapped(ranks, microbatches):
    """Put a backward before its forward."""
    return [[f"{rank}B0", f"{rank}F0"] for rank in range(ranks)]
