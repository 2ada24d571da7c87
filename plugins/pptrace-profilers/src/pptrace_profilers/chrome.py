"""Any Chrome JSON, read by a user's rules: complete events and begin-end pairs, of one process or of many.

Source: the Trace Event Format: phases ``X``, ``B`` and ``E``, microseconds, ``process_name`` metadata.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct, field

from pptrace.plugin import TraceError
from pptrace_profilers.events import EventBuilder, microseconds
from pptrace_profilers.json_events import Blocks
from pptrace_profilers.naming_rules import FILE_NAME
from pptrace_profilers.recording import Executions, MessageEnds, Operations, Recording

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from pptrace.plugin import Int64s
    from pptrace_profilers.events import Events
    from pptrace_profilers.naming_rules import Meaning, Rules

_MOST_OPEN = 10_000
"""Maximum begins without an end per thread; files with more have no ends at all."""


def read_chrome(path: Path, rules: Rules) -> list[Recording]:
    """Read one file.

    Returns:
        One recording per rank.

    Raises:
        TraceError: the file cannot be read, no event has a time, or it has several processes of unknown ranks.
    """
    contents = _Contents(path=path, rules=rules)
    blocks = Blocks(path)
    for event in blocks.plain_events():
        contents.add(event)
    contents.bad += blocks.bad + sum(map(len, contents.open.values()))
    if not len(contents.unmatched) and not contents.matches:
        raise TraceError("holds no event with a start and an end", file=path)
    return contents.recordings(cut=blocks.cut)


_Match = tuple[int, int, "Meaning"]
"""Start, end and meaning of an event that a rule matches."""


class _Contents(Struct, kw_only=True):
    """Contents of a file."""

    path: Path
    rules: Rules
    matches: dict[tuple[str, str], list[_Match]] = field(default_factory=lambda: defaultdict(list))
    """Events with a matching rule, by process and text of the rank."""
    unmatched: EventBuilder = field(default_factory=EventBuilder)
    """Events without a matching rule, with process and text of the rank as threads."""
    labels: dict[str, str] = field(default_factory=dict)
    open: dict[tuple[str, str], list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    bad: int = 0

    def add(self, event: dict[str, Any]) -> None:
        """Add the next event of the file."""
        phase = str(event.get("ph"))
        if phase == "X":
            self._add_complete(event, microseconds(event.get("ts")), microseconds(event.get("dur")))
        elif phase == "M" and event.get("name") == "process_name":
            self.labels[str(event.get("pid"))] = str(_arguments(event).get("name", ""))
        elif phase in {"B", "E"}:
            self._add_paired(event, begins=phase == "B")

    def _add_paired(self, event: dict[str, Any], *, begins: bool) -> None:
        open_events = self.open[str(event.get("pid")), str(event.get("tid"))]
        if begins and len(open_events) < _MOST_OPEN:
            open_events.append(event)
        elif begins or not open_events:
            self.bad += 1
        else:
            start_event = open_events.pop()
            start, end = microseconds(start_event.get("ts")), microseconds(event.get("ts"))
            merged = {**start_event, "args": {**_arguments(start_event), **_arguments(event)}}
            self._add_complete(merged, start, end - start if start is not None and end is not None else None)

    def _add_complete(self, event: dict[str, Any], start: int | None, length: int | None) -> None:
        if start is None or length is None or length < 0:
            self.bad += 1
            return
        name, args, process = str(event.get("name", "")), _arguments(event), str(event.get("pid"))
        source = self.rules.rank.source if self.rules.rank is not None else "file"
        rank_text = str(args.get(source.removeprefix("args."), "")) if source.startswith("args.") else ""
        meaning = self.rules.meaning(name, args)
        if meaning is not None:
            self.matches[process, rank_text].append((start, start + length, meaning))
            return
        self.unmatched.add(name, "", (process, rank_text), start, start + length)

    def recordings(self, *, cut: bool) -> list[Recording]:
        """Return the recording of each rank."""
        if self.rules.rank is None and len({process for process, _ in self.matches}) > 1:
            message = "holds actions of several processes: add rank: to the rules to read the rank of each process"
            raise TraceError(message, file=self.path)
        rows: dict[int, list[_Match]] = defaultdict(list)
        for (process, rank_text), matches in self.matches.items():
            rows[self._rank(process, rank_text)] += matches
        unmatched = self.unmatched.events(self.path, {})
        unmatched_ranks = np.array([self._rank(*map(str, thread)) for thread in unmatched.threads], dtype=np.int64)
        ranks = sorted(rows) or sorted(set(unmatched_ranks.tolist()))
        unranked = len(rows.get(-1, ())) if len(ranks) > 1 else 0
        notes = tuple(self._notes(unranked, cut=cut))
        return [
            self._recording(rank, rows.get(rank, []), unmatched, unmatched_ranks, notes)
            for rank in ranks
            if rank >= 0 or len(ranks) == 1
        ]

    def _rank(self, process: str, rank_text: str) -> int:
        texts = {"file": self.path.name, "pid": process, "process_name": self.labels.get(process, "")}
        rule = self.rules.rank or FILE_NAME
        return rule.read(texts.get(rule.source, rank_text))

    def _notes(self, unranked: int, *, cut: bool) -> Iterator[str]:
        if cut:
            yield f"{self.path.name} ends in the middle: the events before that were read"
        if self.bad:
            yield f"{self.path.name}: skipped {self.bad:,} events with a missing or negative time, or no end"
        if unranked:
            yield f"{self.path.name}: {unranked:,} events name no rank: skipped"
        count, matched = len(self.unmatched), sum(map(len, self.matches.values()))
        if count and matched:
            yield f"{self.path.name}: {count:,} of {count + matched:,} events match no rule"

    def _recording(
        self, rank: int, rows: list[_Match], unmatched: Events, unmatched_ranks: Int64s, notes: tuple[str, ...]
    ) -> Recording:
        rows = sorted(rows, key=lambda row: (row[0], -row[1]))
        executions = Executions.from_rows(("start_ns", "end_ns", "action"), [
            (start, end, meaning.action)
            for start, end, meaning in rows if meaning.sends is None and meaning.action is not None
        ])  # fmt: skip
        ends = MessageEnds.from_rows(("start_ns", "end_ns", "sends", "peer", "size_bytes", "action"), [
            (start, end, meaning.sends, meaning.peer, meaning.size_bytes, meaning.action)
            for start, end, meaning in rows if meaning.sends is not None
        ])  # fmt: skip
        return Recording(
            path=self.path, rank=rank, world=0, executions=executions, ends=ends,
            operations=None if len(executions) else self._operations(unmatched, unmatched_ranks == rank),
            origin_ns=0, notes=notes,
        )  # fmt: skip

    def _operations(self, unmatched: Events, threads: NDArray[np.bool_]) -> Operations | None:
        """Return the events of some threads, for summaries of files without actions."""
        if not threads.any():
            return None
        rows = unmatched.by_start(threads[unmatched.thread])
        unknown = np.full(rows.size, -1)
        return Operations(
            name=unmatched.name[rows], names=tuple(unmatched.names), stream=unknown, launch_ns=unknown,
            start_ns=unmatched.start_ns[rows], end_ns=unmatched.end_ns[rows], action=unknown.astype(np.int32),
            communicates=self.rules.communicate(unmatched.names)[unmatched.name[rows]],
            copies=np.zeros(rows.size, dtype=bool),
        )  # fmt: skip


def _arguments(event: dict[str, Any]) -> dict[str, Any]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}
