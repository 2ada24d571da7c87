"""Feed every reader changed files: ``python -m tests.fuzz --minutes 60 [--format nccl] [--seed 7]``.

Each command runs in a process of its own, forked from one that has loaded what it needs, with a limit on its
memory and its time. It has to end with an answer, or with one line that says what is wrong; a traceback, a signal,
a hang or much memory is a failure, and kept.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shlex
import shutil
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING

from .files import complete
from .formats import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ANSWERS = {0: "answered", 1: "answered", 2: "refused"}
SECONDS, GROWTH = 10, 512 << 20
"""Processor time that a small file may take, and memory beyond what the process began with."""
OURS = re.compile(r"^pptrace: plugin .* raised \w", re.MULTILINE)
"""What is told where a plugin raises what is no refusal; here all plugins are ours."""
FEW = 9
"""Inputs for which loading in advance does not pay."""
PATIENCE = 60.0
"""Seconds of sleep after which a process is taken to hang; what it computes has a limit of its own."""


def main() -> int:
    """Run, print counts, and return 1 where something failed."""
    arguments = parsed()
    until, found = time.monotonic() + 60 * arguments.minutes, 0
    names = arguments.format or list(FORMATS)
    with tempfile.TemporaryDirectory() as scratch:  # what all runs have in common is loaded once
        warm(["simulate", FORMATS["model"].write(Path(scratch)).name, "--json"], Path(scratch))
    for at, name in enumerate(names):
        share = (until - time.monotonic()) / (len(names) - at)
        counts = fuzz(name, arguments.seed, arguments.inputs, time.monotonic() + share, arguments.keep)
        found += counts["failed"]
        print(f"{name:17}", ", ".join(f"{count} {what}" for what, count in sorted(counts.items())), flush=True)
    return int(found > 0)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5, help="for all formats together (default: %(default)s)")
    parser.add_argument("--inputs", type=int, default=sys.maxsize, help="at most so many of each format")
    parser.add_argument("--format", action="append", choices=FORMATS, help="only this; may be repeated")
    parser.add_argument("--seed", type=int, default=0, help="input n of a seed is always the same")
    parser.add_argument("--keep", type=Path, default=Path("out/fuzz"), help="where failing inputs go")
    return parser.parse_args()


def fuzz(name: str, seed: int, inputs: int, until: float, keep: Path) -> Counter[str]:
    """Try inputs of one format; return how the commands ended."""
    counts: Counter[str] = Counter(failed=0)
    form = FORMATS[name]
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch) / "whole"
        whole.mkdir()
        target = Path(apart(partial(form.write, whole))).name
        for command in form.commands if form.warm and inputs > FEW else ():
            copy = shutil.copytree(whole, Path(scratch) / "warm", dirs_exist_ok=True)
            warm(command_line(command, whole, target), copy)
        number, results = 0, {}
        while number < inputs and (number == 0 or time.monotonic() < until):
            folder = Path(scratch) / "changed"
            shutil.copytree(whole, folder)
            expected = {"answered"}  # of the first, which is as it was written
            if number:
                expected = set(ANSWERS.values())
                apart(partial(form.spoil, folder / target, Random(f"{seed} {name} {number}")))
            for command in form.commands:
                outcome = run(command_line(command, folder, target), folder, form.environment)
                if outcome == "answered":
                    result = form.result(folder)
                    outcome = outcome if result == results.setdefault(command, result) else "gives another result"
                counts[outcome if outcome in expected else "failed"] += 1
                if outcome not in expected:
                    kept = keep / f"{name}-{seed}-{number}"
                    shutil.copytree(folder, kept, dirs_exist_ok=True)
                    print(f"{kept}: pptrace {command}: {outcome}", flush=True)
            shutil.rmtree(folder)
            number += 1
    return counts


def command_line(command: str, folder: Path, target: str) -> list[str]:
    files = sorted(path.name for path in folder.iterdir())
    words = shlex.split(command)
    return [name for word in words for name in {"FILE": [target], "*": files}.get(word, [word])]


def apart(work: Callable[[], object]) -> str:
    """Do something in a process of its own, so that this one has no threads of libraries; return its text."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        os.write(writes, str(work() or "").encode())
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads, encoding="utf-8") as message:
        said = message.read()
    if os.waitpid(child, 0)[1]:
        sys.exit("a file could not be written")
    return said


def warm(arguments: list[str], folder: Path) -> None:
    """Run a command once in this process, so that later ones find its modules loaded, and no kernel compiled."""
    os.environ["PPTRACE_INTERPRET"] = "1"
    complete(shlex.join(arguments), folder)
    del os.environ["PPTRACE_INTERPRET"]


def run(arguments: list[str], folder: Path, environment: Mapping[str, str] = MappingProxyType({})) -> str:
    """Run a command in a process of its own; return how it ended, in a word where that is as it should be."""
    # What getrusage tells of this process is at least what its parent held before it became this program.
    began = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize() >> 10
    child = os.fork()
    if not child:
        os.environ.update(environment)
        os._exit(in_child(arguments, folder))
    status, usage = waited(child)
    message = (folder.parent / "stderr").read_text(encoding="utf-8", errors="replace")
    grown = (usage.ru_maxrss - began) << 10
    if os.WIFSIGNALED(status):
        return f"ended by signal {os.WTERMSIG(status)} after {usage.ru_utime:.0f} s of processor time"
    code = os.WEXITSTATUS(status)
    if code not in ANSWERS or "Traceback" in message:
        return f"status {code}: {message.strip().splitlines()[-2:]}"
    if "out of memory" in message or grown > GROWTH:
        return f"took {grown >> 20} MiB more"
    return complaint(message, refused=ANSWERS[code] == "refused") or ANSWERS[code]


def complaint(message: str, *, refused: bool) -> str:
    """Return what is wrong with the lines of the standard error; empty where nothing is."""
    *notes, last = message.splitlines() or [""]
    warnings = [line for line in message.splitlines() if "warning: " in line]
    if OURS.search(message):
        return f"a plugin of ours fails: {last}"
    if len(set(warnings)) < len(warnings):
        return f"warns more than once: {max(warnings, key=warnings.count)}"
    if refused and not (last.startswith("pptrace: ") and all(map(is_note, notes))):
        return f"is refused with more than notes and one line: {message.splitlines()[-4:]}"
    return ""


def is_note(line: str) -> bool:
    return line.startswith(("note: ", "warning: ", "pptrace: warning: "))


def in_child(arguments: list[str], folder: Path) -> int:
    """Become the command, within limits."""
    os.chdir(folder)
    for number, name in ((0, os.devnull), (1, "../stdout"), (2, "../stderr")):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), number)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + 4 * GROWTH, mapped + 4 * GROWTH))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    sys.argv = ["pptrace", *arguments]
    from pptrace.cli.main import main as command

    code = 0
    try:
        command()
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else 1
    except BaseException:  # noqa: BLE001 - what main() lets through is a failure like a crash
        import traceback

        traceback.print_exc()
        code = 70
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def waited(child: int) -> tuple[int, resource.struct_rusage]:
    """Wait for a process, and end one that hangs."""
    left, looked = PATIENCE, time.monotonic()
    while True:
        ended, status, usage = os.wait4(child, os.WNOHANG)
        if ended:
            return status, usage
        now = time.monotonic()
        if not waits_for_its_turn(child):
            left -= min(now - looked, 1)  # where this process was stopped for a while, so were its children
        looked = now
        if left < 0:
            os.kill(child, 9)
            left = PATIENCE
        time.sleep(0.002)


def waits_for_its_turn(process: int) -> bool:
    """Return whether a process could compute if it had a core, so that it does not hang."""
    stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    return stat.rpartition(")")[2].split()[0] == "R"


if __name__ == "__main__":
    sys.exit(main())
