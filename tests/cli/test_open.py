"""``pptrace open``: the address on stdout, all else on stderr, and a way out of every trouble."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner, Result

from pptrace.cli import open as open_module
from pptrace.cli import viewer
from pptrace.cli import viewer as server_module
from pptrace.cli.open import command
from pptrace.cli.viewer import Site
from pptrace.errors import PptraceError, TraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROGRAM = [sys.executable, "-c", "from pptrace.cli.main import main; main()", "open"]
RUN = Path(__file__).parents[2] / "examples" / "run-1f1b"
TOKEN = "c5n0"  # noqa: S105 - of no real server
CONTENT = b'{"traceEvents": [{"ph": "X", "name": "F 3", "ts": 0, "dur": 5, "pid": 1, "tid": 1}]}'


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "step.json"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def ui(tmp_path: Path) -> Path:
    folder = tmp_path / "ui"
    folder.mkdir()
    (folder / "index.html").write_text("the UI")
    return folder


@pytest.fixture(autouse=True)
def quick_without_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_QUIET_S", 0.1)
    monkeypatch.setattr(server_module, "_QUIET_UI_S", 0.1)
    monkeypatch.setattr(open_module, "Site", partial(Site, token=TOKEN))
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def free_port(monkeypatch: pytest.MonkeyPatch) -> int:
    """Stand in for the public UI's port, which a developer may be using."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port: int = held.getsockname()[1]
    monkeypatch.setattr(open_module, "PUBLIC_PORT", port)
    return port


@pytest.fixture
def browser(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Stand in for a browser whose page fetches the trace that its address names."""
    opened: list[str] = []

    def open_tab(address: str) -> bool:
        opened.append(address)
        host, _, path = address.partition("?url=http://")[2].partition("/")
        connection = http.client.HTTPConnection(host, timeout=10)
        connection.request("GET", f"/{path}")
        connection.getresponse().read()
        connection.close()
        return True

    monkeypatch.setattr("webbrowser.open_new_tab", open_tab)
    return opened


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


@pytest.fixture
def started(trace: Path, ui: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*PROGRAM, str(trace), "--ui", str(ui), "--port", "0", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_the_view_begins_at_the_marked_step(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace.write_bytes(CONTENT.replace(b"F 3", b"ProfilerStep#3"))
    served: list[Site] = []
    monkeypatch.setattr(open_module, "_serve", lambda _, site, *__, **___: served.append(site))

    assert invoke(trace).exit_code == 0
    assert [site.view for site in served] == [(0, 5000)]


def test_with_a_display_the_browser_opens_and_the_command_ends(
    trace: Path, free_port: int, browser: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPLAY", ":0")

    result = invoke(trace, "--port", free_port)

    address = f"https://ui.perfetto.dev/#!/?url=http://127.0.0.1:{free_port}/{TOKEN}/step.json"
    assert result.exit_code == 0
    assert browser == [address]
    assert result.stdout == f"{address}\n"
    assert f"serving {trace} on 127.0.0.1:{free_port}" in result.stderr
    assert "or 300 s without a request" in result.stderr
    assert "allow it" in result.stderr
    assert "ssh -L" not in result.stderr
    assert result.stderr.endswith("stopped serving it\n")


@pytest.mark.parametrize(
    ("environment", "arguments"),
    [
        ({}, []),
        ({"DISPLAY": "localhost:10.0", "SSH_CONNECTION": "10.0.0.2 50000 10.0.0.1 22"}, []),
        ({"DISPLAY": ":0"}, ["--no-browser"]),
    ],
    ids=["no display", "over ssh", "asked not to"],
)
def test_without_a_display_the_address_and_the_way_to_it_are_printed(
    trace: Path,
    free_port: int,
    browser: list[str],
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    arguments: list[str],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    result = invoke(trace, "--port", free_port, "--timeout", 1, *arguments)

    assert browser == []
    assert result.stdout == f"https://ui.perfetto.dev/#!/?url=http://127.0.0.1:{free_port}/{TOKEN}/step.json\n"
    assert f"\n  ssh -L {free_port}:127.0.0.1:{free_port} {socket.gethostname()}\n" in result.stderr


def test_a_browser_that_does_not_start_leaves_the_instructions(
    trace: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    monkeypatch.setattr("webbrowser.open_new_tab", lambda _: False)

    result = invoke(trace, "--port", free_port, "--timeout", 1)

    assert "ssh -L" in result.stderr


def test_nobody_fetching_it_is_one_line_after_the_stated_time(trace: Path, free_port: int) -> None:
    began = time.monotonic()

    result = invoke(trace, "--port", free_port, "--timeout", 1)

    assert time.monotonic() - began >= 1
    assert isinstance(result.exception, PptraceError)
    assert re.search(r"step\.json: nothing fetched it in 1 s; .*--timeout .*Safari", str(result.exception))


def test_an_offline_ui_opens_from_the_same_server(
    trace: Path, ui: Path, browser: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPLAY", ":0")

    result = invoke(trace, "--ui", ui, "--port", 0)

    assert result.exit_code == 0
    assert re.fullmatch(
        r"http://127\.0\.0\.1:(\d+)/c5n0/#!/\?url=http://127\.0\.0\.1:\1/c5n0/step\.json\n", result.stdout
    )
    assert browser == [result.stdout.strip()]
    assert "allow it" not in result.stderr


def test_another_port_needs_an_offline_ui(trace: Path) -> None:
    result = invoke(trace, "--port", 8000)

    assert isinstance(result.exception, PptraceError)
    assert re.search(r"--port 8000 needs --ui DIR: https://ui\.perfetto\.dev .* port 9001 ", str(result.exception))
    assert result.stdout == ""


def test_a_ui_without_a_page_is_one_line(trace: Path, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none", trace):
        result = invoke(trace, "--ui", folder)

        assert isinstance(result.exception, PptraceError)
        assert str(result.exception).startswith(f"{folder}: there is no index.html; --ui takes the folder")


def test_a_busy_port_is_one_line_that_names_it(trace: Path, ui: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        monkeypatch.setattr(open_module, "PUBLIC_PORT", port)
        for arguments in ([], ["--ui", ui]):
            result = invoke(trace, "--port", port, *arguments)

            assert isinstance(result.exception, PptraceError)
            assert re.match(rf"port {port} is in use, .*; end that one.*--port", str(result.exception))
            assert result.stdout == ""


def test_a_file_that_is_no_trace_opens_nothing(tmp_path: Path, browser: list[str]) -> None:
    (tmp_path / "notes.json").write_text('{"a": 1}')

    for name in ("notes.json", "none.json", "."):
        result = invoke(tmp_path / name)
        assert isinstance(result.exception, TraceError), name
        assert result.stdout == ""
    assert browser == []


@pytest.mark.parametrize(
    "arguments", [["--port", "70000"], ["--port", "web"], ["--timeout", "0"], ["--timeout", "nan"]]
)
def test_numbers_outside_their_range_are_refused(trace: Path, arguments: list[str]) -> None:
    result = invoke(trace, *arguments)

    assert result.exit_code == 2
    assert "Invalid value for" in result.stderr


@pytest.mark.parametrize(
    ("number", "status", "line"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_signal_ends_it_without_a_traceback(
    started: Callable[..., subprocess.Popen[str]], number: signal.Signals, status: int, line: str
) -> None:
    process = started("--no-browser")
    assert process.stdout is not None
    address = urlsplit(process.stdout.readline())

    with socket.create_connection((address.hostname, address.port)):  # a connection without a request
        process.send_signal(number)
        _, errors = process.communicate()

    assert process.returncode == status
    assert errors.endswith(f"\npptrace: {line}\n")
    assert "Traceback" not in errors


@pytest.mark.needs_plugins
def test_sigterm_leaves_no_temporary_trace_of_a_folder(
    ui: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PPTRACE_DISABLE_PLUGINS", raising=False)
    (tmp_path / "temporary").mkdir()
    command = [*PROGRAM, str(RUN), "--ui", str(ui), "--port", "0", "--no-browser"]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        served = [*(tmp_path / "temporary").iterdir()]
        process.terminate()
        process.communicate()

    assert process.returncode == 143
    assert served
    assert [*(tmp_path / "temporary").iterdir()] == []


def test_each_start_has_another_token(started: Callable[..., subprocess.Popen[str]]) -> None:
    processes = [started("--no-browser") for _ in range(2)]
    addresses = [process.stdout.readline() for process in processes if process.stdout is not None]

    tokens = [urlsplit(address).path.strip("/") for address in addresses]
    assert all(re.fullmatch(r"[\w-]{43}", token) for token in tokens)
    assert tokens[0] != tokens[1]


def test_errors_leave_the_command_line_as_one_line(trace: Path) -> None:
    done = subprocess.run([*PROGRAM, str(trace), "--port", "1"], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"pptrace: --port 1 needs --ui DIR: .*\n", done.stderr)


def test_it_imports_nothing_heavy() -> None:
    code = "import sys, pptrace.cli.open; print(*{m.partition('.')[0] for m in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    heavy = {"numpy", "pydantic", "yaml", "llvmlite", "google", "perfetto", "matplotlib", "rich", "pluggy"}
    assert heavy.isdisjoint(done.stdout.split())


@pytest.mark.parametrize(
    ("environment", "platform", "expected"),
    [
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True),
        ({"DISPLAY": ""}, "linux", False),
        ({}, "freebsd13", False),
        ({}, "win32", True),
        ({"SSH_CONNECTION": "a 1 b 22"}, "darwin", False),
    ],
)
def test_a_display_is_looked_for_where_one_is_needed(
    environment: dict[str, str], platform: str, *, expected: bool
) -> None:
    assert viewer.has_display(environment, platform) is expected
