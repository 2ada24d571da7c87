"""Record what commands print and write, and compare two recordings: a safety net for changes of the code alone.

    python tests/corpus.py record FOLDER [--shared FOLDER] [--only TEXT]
    python tests/corpus.py compare FOLDER_A FOLDER_B

The commands stand in ``corpus/cases.txt``. A recording has a folder per case. Its file ``printed`` holds standard
output, standard error and exit status of each command; ``hashes`` those of the files that the commands wrote;
``written`` the files that are text, compressed ones and Perfetto traces as text too.
"""

from __future__ import annotations

import argparse
import difflib
import gzip
import hashlib
import io
import itertools
import json
import multiprocessing
import os
import re
import resource
import shlex
import signal
import sys
import tempfile
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "corpus"
EXAMPLES = HERE.parents[1] / "examples"
WORKERS = 2
LIMIT_S = 120
"""Seconds after which a command is ended."""
SLOWEST = 8
"""Cases whose processor time a recording prints."""
DIFFERENCES = 12
WIDTH = 300
"""Lines of a difference that are shown of each file, and characters of each."""
ENVIRONMENT = {"COLUMNS": "100", "LINES": "40", "LC_ALL": "C.UTF-8", "PPTRACE_MOST_MEMORY": str(8 << 30)}
FORGOTTEN = re.compile(
    "PPTRACE_(?!KERNEL_CACHE)|PYTHON(?!HASHSEED|PATH)|COV|DISPLAY|WAYLAND_|SSH_|NO_COLOR|FORCE_COLOR|TERM"
)
"""Variables of this environment that could change what commands print."""
NOISE = {
    r"^compiling the simulator for this machine.*\n": "",  # whether something ran before
    r"^ +\d+\.\d s (?= step )": "SECONDS ",  # when a search found a table
    r", \d+\.\d s$": ", SECONDS",  # what a kept search had left
    r'"search_s": [\d.]+': '"search_s": SECONDS',
    r"127\.0\.0\.1:\d+": "127.0.0.1:PORT",
    r"127\.0\.0\.1:PORT/[\w-]{43}/": "127.0.0.1:PORT/TOKEN/",
    r"ssh -L \d+:127\.0\.0\.1:PORT .*": "ssh -L PORT:127.0.0.1:PORT HOST",
}
"""Patterns of what differs from run to run, and what stands for it in a recording."""
TEXTS = {".csv", ".dot", ".html", ".json", ".jsonl", ".md", ".py", ".svg", ".toml", ".txt", ".yaml"}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="run all cases and write what came out into a new folder")
    recording.add_argument("folder", type=Path)
    recording.add_argument("--shared", type=Path, help="a folder of measured traces that is not in the repository")
    recording.add_argument("--only", default="", metavar="TEXT", help="only cases whose line contains it")
    comparing = commands.add_parser("compare", help="print what differs; exit with 1 where something does")
    comparing.add_argument("folders", type=Path, nargs=2)
    arguments = parser.parse_args()
    if arguments.command == "compare":
        return compare(*arguments.folders)
    return record(arguments.folder, arguments.shared, arguments.only)


def record(folder: Path, shared: Path | None, only: str) -> int:
    """Run the cases in two processes, each command in a fork of a process that has imported everything."""
    began = time.monotonic()
    folder.mkdir(parents=True)
    cases = {
        name: line for name, line in read_cases().items() if only in line and (shared or "shared/" not in line)
    }
    for variable in filter(FORGOTTEN.match, list(os.environ)):
        del os.environ[variable]
    os.environ |= ENVIRONMENT
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    preload()
    run = partial(run_case, folder=folder.resolve(), shared=shared and shared.resolve())
    with ProcessPoolExecutor(WORKERS, mp_context=multiprocessing.get_context("fork")) as pool:
        seconds = dict(zip(cases, pool.map(run, cases.items()), strict=True))
    for name in sorted(cases, key=lambda name: -seconds[name])[:SLOWEST]:
        print(f"{seconds[name]:6.1f} s  {cases[name]}")
    spent, passed = sum(seconds.values()), time.monotonic() - began
    print(f"{len(cases)} cases, {spent:.0f} s of processor time, {passed:.0f} s on {WORKERS} processes: {folder}")
    return 0


def read_cases() -> dict[str, str]:
    """Return the cases by the name of their folder; one that ends with ``+json`` is two cases."""
    lines = [line.strip() for line in (HERE / "cases.txt").read_text(encoding="utf-8").splitlines()]
    cases: dict[str, str] = {}
    for line in lines:
        if line and not line.startswith("#"):
            plain = line.removesuffix("+json").rstrip()
            for case in [plain] if plain == line else [plain, re.sub(r" -o \S+", "", plain) + " --json"]:
                words = re.sub(r"[^\w.=,-]+", "_", case)[:80]
                cases[f"{words}_{hashlib.sha256(case.encode()).hexdigest()[:6]}"] = case
    return cases


def preload() -> None:
    """Import what commands import, so that forks need not; nothing that starts threads."""
    for entry in entry_points(group="pptrace"):
        entry.load()
    import pkgutil

    import pptrace

    for module in pkgutil.walk_packages(pptrace.__path__, "pptrace."):
        __import__(module.name)


def run_case(case: tuple[str, str], *, folder: Path, shared: Path | None) -> float:
    """Run the commands of a case in an empty folder with links to the inputs; return their processor time."""
    name, line = case
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    before = used.ru_utime + used.ru_stime
    recorded = folder / name
    recorded.mkdir()
    with tempfile.TemporaryDirectory(prefix="corpus-") as scratch:
        place = Path(scratch) / "case"
        place.mkdir()
        inputs = [*(HERE / "inputs").iterdir(), EXAMPLES, *([shared] if shared else [])]
        for source in inputs:
            (place / ("shared" if source == shared else source.name)).symlink_to(source)
        printed = [run(shlex.split(command), place) for command in line.split(" ; ")]
        (recorded / "printed").write_text("".join(printed), encoding="utf-8")
        keep(place, recorded)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime - before


def run(words: list[str], place: Path) -> str:
    """Run a command in a fork; return the command, what it printed and its exit status."""
    settings = dict(word.split("=", 1) for word in itertools.takewhile(re.compile("[A-Z_]+=").match, words))
    arguments = words[len(settings) :]
    streams = [place.parent / "stdout", place.parent / "stderr"]
    child = os.fork()
    if not child:
        os._exit(in_child(arguments, settings, place, streams))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    texts = [path.read_text(encoding="utf-8", errors="backslashreplace") for path in streams]
    out, err = (text if text.endswith("\n") or not text else f"{text}\n-- no newline\n" for text in texts)
    printed = f"$ {shlex.join(words)}\n{out}-- standard error\n{err}-- exit status {status}\n"
    for pattern, stand_in in NOISE.items():
        printed = re.sub(pattern, stand_in, printed, flags=re.MULTILINE)
    return printed.replace(str(place.parent), "SCRATCH")


def in_child(arguments: list[str], settings: dict[str, str], place: Path, streams: list[Path]) -> int:
    """Become the command."""
    os.chdir(place)
    signal.alarm(LIMIT_S)
    on_terminal = settings.pop("TTY", "")
    os.environ |= {"PPTRACE_OPTPIPE_CACHE": str(place.parent / "searches"), **settings}
    for number, path in enumerate([os.devnull, *streams]):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), number)
    sys.stdin, sys.stderr = os.fdopen(0), os.fdopen(2, "w")
    sys.stdout = (Terminal if on_terminal else io.TextIOWrapper)(os.fdopen(1, "wb"), encoding="utf-8")
    sys.argv = ["pptrace", *arguments]
    (program,) = entry_points(group="console_scripts", name="pptrace")
    code: Any = 0
    try:
        program.load()()
    except SystemExit as exit_:
        code = exit_.code
    except BaseException:  # noqa: BLE001 - what the program lets through belongs to the recording
        traceback.print_exc()
        code = 70
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else 0


class Terminal(io.TextIOWrapper):
    """A file that passes for a terminal."""

    def isatty(self) -> bool:
        return True


def keep(place: Path, recorded: Path) -> None:
    """Record the files that a case wrote: hashes of all, and the text of those that can be read."""
    hashes = []
    for path in sorted(path for path in place.rglob("*") if path.is_file() and not is_input(path, place)):
        name, content = path.relative_to(place), path.read_bytes()
        hashes.append(f"{hashlib.sha256(content).hexdigest()}  {name}\n")
        try:
            text = readable(path.name, content)
        except Exception as error:  # noqa: BLE001 - a broken file is recorded, too
            text = f"cannot be read: {error!r}\n"
        if text is not None:
            target = recorded / "written" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
    (recorded / "hashes").write_text("".join(hashes), encoding="utf-8")


def is_input(path: Path, place: Path) -> bool:
    return any(parent.is_symlink() for parent in (path, *path.parents) if parent.is_relative_to(place))


def readable(name: str, content: bytes) -> str | None:
    """Return a file as text, of which a line is a JSON value or a field of a Perfetto trace; None for pictures."""
    if name.endswith(".gz"):
        return readable(name.removesuffix(".gz"), gzip.decompress(content))
    if name.endswith(".pftrace"):
        from google.protobuf import text_format
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

        return text_format.MessageToString(Trace.FromString(content), print_unknown_fields=True)
    if name.endswith(".json"):
        return json.dumps(json.loads(content), indent=1)
    return content.decode("utf-8", "backslashreplace") if Path(name).suffix in TEXTS else None


def compare(first: Path, second: Path) -> int:
    """Print the files of two recordings that differ, by case, with the first lines of the difference."""
    files = {path.relative_to(side) for side in (first, second) for path in side.rglob("*") if path.is_file()}
    differing = []
    for file in sorted(files):
        texts = [lines_of(side / file) for side in (first, second)]
        if texts[0] != texts[1]:
            differing.append(file)
            lines = difflib.unified_diff(*texts, str(first / file), str(second / file), n=1, lineterm="")
            shown = [line[:WIDTH] for line in itertools.islice(lines, DIFFERENCES + 1)]
            print(*shown[:DIFFERENCES], *["..."] * (len(shown) > DIFFERENCES), "", sep="\n")
    counts = [len({file.parts[0] for file in some}) for some in (differing, files)]
    print(f"{len(differing)} of {len(files)} files differ, in {counts[0]} of {counts[1]} cases")
    return int(bool(differing))


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


if __name__ == "__main__":
    sys.exit(main())
