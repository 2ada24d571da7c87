"""Runs configurations of a plan on an executor, and keeps each row the moment it is finished."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from typing import TYPE_CHECKING, Any

from pptrace.study.journal import Journal, journal_path
from pptrace.study.plan.point import installed, run_candidate
from pptrace.study.pool import run_all
from pptrace.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from pptrace.config.yaml_file import Document
    from pptrace.hooks.registry import Registry
    from pptrace.study.executor import ExecutorChoice
    from pptrace.study.plan.candidate import Candidate
    from pptrace.study.plan.point import Trial
    from pptrace.study.pool import Kept
    from pptrace.study.row import Row

__all__ = ["Runner"]

_AHEAD = 4


class Runner:
    """What simulates the configurations of a plan, as a context."""

    def __init__(
        self, document: Document, registry: Registry, chosen: ExecutorChoice, kept: Kept, output: Path | None,
        *, fresh: bool,
    ) -> None:  # fmt: skip
        """Read what an earlier start finished.

        Args:
            document: what all configurations have in common.
            registry: the plugins.
            chosen: what they run on.
            kept: the executor of that choice, for all batches.
            output: the first file that the plan is for; rows are kept in the journal beside it.
            fresh: take over no finished row.

        Raises:
            OutputError: the journal cannot be read or written.
        """
        self.document, self.registry, self.chosen, self.kept = document, registry, chosen, kept
        self._plugins = sorted((one.distribution, one.version) for one in registry.providers)
        self._known: dict[str, Row] = {}
        self._journal: Journal | None = None
        self._is_warm = False
        if output is not None:
            self._journal = Journal(journal_path(output), fresh=fresh)
            self._known = {str(row["point"]): row for row in self._journal.rows}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Keep the journal: the files that it is for may still fail to be written."""
        if self._journal is not None:
            self._journal.__exit__(kind, error, trace)

    @property
    def workers(self) -> int:
        """How many configurations run at once."""
        return self.chosen.request.workers

    def others(self) -> Executor | None:
        """Return the executor of other processes, several at once; None where there is none, or before any ran."""
        is_alone = self.chosen.in_process or self.workers == 1 or not self._is_warm
        return None if is_alone else self.kept.begin()

    def rows(
        self,
        candidates: Sequence[Candidate],
        trial: Trial | None = None,
        watch: Callable[[int], None] | None = None,
    ) -> list[Row]:
        """Return the figures of some configurations, in their order.

        Args:
            candidates: the configurations.
            trial: another machine to simulate them on.
            watch: told how many are finished, after each.
        """
        names = [self._identity(one, trial) for one in candidates]
        found = {name: self._known[name] for name in names if name in self._known}
        missing = [at for at, name in enumerate(names) if name not in found]
        items: list[Any] = [(at, candidates[at].varied, trial) for at in missing]
        if items and not self._is_warm:
            self._is_warm = True
            item = items.pop()  # compiles once, for all workers, before they start
            self._note(found, names[item[0]], run_candidate(self.document, item[1], item[2], self.registry))
            installed()
        own = self.registry if self.chosen.in_process else None
        call = partial(_call, document=self.document, registry=own)
        ahead = _AHEAD * self.chosen.request.workers
        for item, row in run_all(items, call, self.kept, ahead=ahead) if items else ():
            self._note(found, names[item[0]], row)
            if watch is not None:
                watch(len(found))
        return [found[name] for name in names]

    def _note(self, found: dict[str, Row], name: str, row: Row) -> None:
        found[name] = {**row, "point": name}
        if self._journal is not None and not row.get("error"):
            self._journal.append(found[name])

    def _identity(self, candidate: Candidate, trial: Trial | None) -> str:
        said = [__version__, self._plugins, self.document.value, candidate.settings, str(trial or "")]
        text = json.dumps(said, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _call(item: Any, *, document: Document, registry: Registry | None) -> Row:
    _, varied, trial = item
    return run_candidate(document, varied, trial, registry)
