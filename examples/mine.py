"""A schedule of one's own in one file: all forwards, then all backwards in reverse order."""


def make(ranks: int, units: int) -> list[list[str]]:
    rows = []
    for rank in range(ranks):
        forward = [f"{rank}F{unit}" for unit in range(units)]
        backward = [f"{rank}B{unit}" for unit in reversed(range(units))]
        rows.append(forward + backward)
    return rows
