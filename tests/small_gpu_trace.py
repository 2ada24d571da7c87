"""A GPU's trace by hand, as PyTorch's profiler writes one: annotations, launches and kernels in microseconds."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SmallGpuTrace"]

HOST, AUTOGRAD = 100, 101


@dataclass
class SmallGpuTrace:
    """One rank's file."""

    rank: int = 0
    world: int = 1
    groups: dict[str, list[int]] = field(default_factory=dict)
    base_ns: int | None = 1_790_857_026_000_000_000
    events: list[dict[str, Any]] = field(default_factory=list)

    def annotate(
        self, name: str, start: float, end: float, thread: int = HOST, category: str = "user_annotation"
    ) -> None:
        """Add a range of the host."""
        self.events.append({
            "ph": "X", "cat": category, "name": name, "pid": 77, "tid": thread, "ts": start, "dur": end - start,
            "args": {"External id": len(self.events)},
        })  # fmt: skip

    def kernel(
        self, name: str, launch: float | None, start: float, end: float, stream: int = 7, thread: int = HOST,
        category: str = "kernel", **args: Any,
    ) -> None:  # fmt: skip
        """Add a kernel with its launch, None for one whose launch was not recorded."""
        number = len(self.events) + 1
        if launch is not None:
            self.events.append({
                "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 77, "tid": thread,
                "ts": launch, "dur": 0.5, "args": {"External id": number, "cbid": 211, "correlation": number},
            })  # fmt: skip
        named = {key.replace("_", " "): value for key, value in args.items()}
        self.events.append({
            "ph": "X", "cat": category, "name": name, "pid": 0, "tid": stream, "ts": start, "dur": end - start,
            "args": {"External id": number, "device": 0, "stream": stream, "correlation": number, **named},
        })  # fmt: skip

    def write(self, folder: Path) -> Path:
        """Write ``rank<r>.json``."""
        config = [
            {"pg_name": str(number), "pg_desc": name, "pg_size": len(ranks), "ranks": ranks}
            for number, (name, ranks) in enumerate(self.groups.items())
        ]
        about = {"backend": "nccl", "rank": self.rank, "world_size": self.world, "pg_config": config}
        trace: dict[str, Any] = {"schemaVersion": 1, "distributedInfo": about}
        if self.base_ns is not None:
            trace["baseTimeNanoseconds"] = self.base_ns
        path = folder / f"rank{self.rank}.json"
        path.write_text(json.dumps({**trace, "traceEvents": self.events}), encoding="utf-8")
        return path
