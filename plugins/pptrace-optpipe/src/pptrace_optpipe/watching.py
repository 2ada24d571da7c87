"""Search beside a job that runs: each new measurement of a step starts from what was found before."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pptrace.plugin import ConfigError, PptraceError, TraceError, load, prepare, write_table
from pptrace_optpipe.setting import setting_of, simulated

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pptrace.plugin import Prepared, Registry, Schedule
    from pptrace_optpipe.optimising import Optimised
    from pptrace_optpipe.setting import Setting

__all__ = ["Better", "Watch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Better:
    """What a measurement came to."""

    present: str
    """The schedule that was measured, or what was written before where that is shorter."""
    present_ns: int
    """Its step, simulated with the costs that were measured."""
    found: Optimised
    noise: float
    """By which part measured times of one action differ: the widest middle half of any action's times."""
    written: bool
    """Whether the table was shorter by more than that, and was written."""

    @property
    def gain(self) -> float:
        """The part of the present step that is saved."""
        return 1 - self.found.simulated.step_ns / self.present_ns

    def line(self) -> str:
        """Return what came of it, on a line."""
        step = f"{self.found.simulated.step_ns / 1e6:.3f} ms"
        told = f"{step} in place of {self.present_ns / 1e6:.3f} ms ({self.present})"
        if self.written:
            return f"{told}: {self.gain:.1%} shorter, more than the noise of {self.noise:.1%}"
        return f"{told}: {self.gain:.1%} is not more than the noise of {self.noise:.1%}: nothing is written"


class Watch:
    """A folder of measured steps, and the table that is written whenever a better one is found."""

    def __init__(self, run: Path, output: Path, sets: Sequence[str], registry: Registry) -> None:
        self.run, self.output, self.sets, self.registry = run, output, tuple(sets), registry
        self.seen: tuple[tuple[str, int, int], ...] = ()

    def is_new(self) -> bool:
        """Return whether the folder has changed since it was looked at last."""
        files = sorted(self.run.rglob("*")) if self.run.is_dir() else [self.run]
        found = []
        for file in files:
            with suppress(OSError):
                about = file.stat()
                found.append((str(file), about.st_size, about.st_mtime_ns))
        changed, self.seen = tuple(found) != self.seen, tuple(found)
        return changed

    def improve(self, search: Callable[[Setting, Path, Schedule | None], Optimised]) -> Better:
        """Fit costs to what was measured, search, and write the table if it is shorter by more than the noise.

        Raises:
            TraceError: the measurement cannot be used.
            PptraceError: nothing can be searched for.
        """
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder) / "measured.yaml"
            noise = _calibrated(self.run, config)
            name, measured = self._measured(config)
            present = simulated(measured, measured.schedule)
            setting, last = self._setting(config)
            found = search(setting, config, last)
            if last is not None and (before := setting.simulate(last)).step_ns < present.step_ns:
                name, present = self.output.name, before
        better = found.simulated.step_ns < present.step_ns * (1 - noise)
        if better:
            write_table(found.table, self.output)
        return Better(present=name, present_ns=present.step_ns, found=found, noise=noise, written=better)

    def _measured(self, config: Path) -> tuple[str, Prepared]:
        """Return the schedule that was measured: an installed one, or the order of actions as it was."""
        try:
            measured = prepare(load(config, self.sets), self.registry)
        except ConfigError as error:
            if error.key != "schedule":
                raise
            order = config.with_name("order.csv")
            _pptrace("convert", str(self.run), str(order), "--messages", "asap")
            return "the measured order", prepare(load(config, self.sets, {"schedule": str(order)}), self.registry)
        return measured.resolved.experiment.schedule.name, measured

    def _setting(self, config: Path) -> tuple[Setting, Schedule | None]:
        """Return what to search in, and the table that was written last unless it is of another job."""
        if self.output.exists():
            with suppress(PptraceError):
                return setting_of(config, self.sets, self.registry, self.output)
        return setting_of(config, self.sets, self.registry)


def _calibrated(run: Path, config: Path) -> float:
    """Write the configuration that a measurement is fitted by, and return the noise of its times.

    Raises:
        TraceError: ``pptrace calibrate`` cannot use it.
    """
    told = _pptrace("calibrate", str(run), "-o", str(config), "--json")
    fitted: list[dict[str, Any]] = json.loads(told)["fitted"]
    spreads = [one["mean_ns_spread"] / one["mean_ns"] for one in fitted if one["mean_ns"]]
    return float(max(spreads, default=0.0))


def _pptrace(*words: str) -> str:
    """Run a command of pptrace, and return what it prints.

    Raises:
        TraceError: it fails; its last line says why.
    """
    script = shutil.which("pptrace", path=str(Path(sys.executable).parent)) or shutil.which("pptrace") or "pptrace"
    done = subprocess.run([script, *words], capture_output=True, text=True, check=False)  # noqa: S603 - pptrace itself
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or ["it fails"]
        raise TraceError(f"pptrace {words[0]}: {reason[0].removeprefix('pptrace: ')}")
    return done.stdout
