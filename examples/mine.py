"""A custom schedule in one file, GPipe: all forwards, then all backwards in reverse order."""


def make(ranks: int, microbatches: int) -> list[list[str]]:
    rows = []
    for rank in range(ranks):
        forward = [f"{rank}F{each}" for each in range(microbatches)]
        backward = [f"{rank}B{each}" for each in reversed(range(microbatches))]
        rows.append(forward + backward)
    return rows
