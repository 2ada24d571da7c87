"""The server hands the trace over, refuses everything else, and ends by itself."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from pptrace.cli import viewer as server_module
from pptrace.cli.viewer import HOST, PUBLIC_UI, Handler, Server, Site
from pptrace.errors import PptraceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONTENT = bytes(range(256)) * 40
NEVER_S = 30.0


class Running:
    """A server in a thread of its own."""

    def __init__(self, server: Server, timeout_s: float) -> None:
        self.server, self.fetched = server, False
        self.thread = threading.Thread(target=self._run, args=(timeout_s,))

    def _run(self, timeout_s: float) -> None:
        self.fetched = self.server.run(timeout_s)

    def path(self, name: str) -> str:
        """Return the path of a file on the server, its token included."""
        return f"/{self.server.site.token}/{name}"

    def ask(self, method: str, name: str, **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
        return self.ask_path(method, self.path(name), **headers)

    def ask_path(self, method: str, path: str, **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
        connection = http.client.HTTPConnection(HOST, self.server.port, timeout=NEVER_S)
        connection.request(
            method, path, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return response, body

    def raw(self, request: bytes) -> bytes:
        with self.connect() as connection:
            connection.sendall(request)
            return connection.makefile("rb").read()

    def connect(self) -> socket.socket:
        return socket.create_connection((HOST, self.server.port), timeout=NEVER_S)


@contextmanager
def running(site: Site, timeout_s: float = NEVER_S) -> Iterator[Running]:
    with Server(site, 0) as server:
        run = Running(server, timeout_s)
        run.thread.start()
        yield run
        server.delivery.complete = True
        run.thread.join(NEVER_S)
        assert not run.thread.is_alive()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_QUIET_S", 0.2)
    monkeypatch.setattr(server_module, "_QUIET_UI_S", 0.2)
    monkeypatch.setattr(Server, "timeout", 0.02)
    monkeypatch.setattr(Handler, "request_timeout", NEVER_S)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "step.pftrace"
    path.write_bytes(CONTENT)
    return path


def test_the_public_ui_gets_every_byte_and_the_server_ends(trace: Path) -> None:
    with running(Site(trace=trace)) as run:
        response, body = run.ask("GET", "step.pftrace", Origin=PUBLIC_UI)
        run.thread.join(NEVER_S)

        assert (response.status, body) == (200, CONTENT)
        assert response.headers["Access-Control-Allow-Origin"] == "https://ui.perfetto.dev"
        assert response.headers["Content-Type"] == "application/octet-stream"
        assert run.fetched
        assert not run.thread.is_alive()


def test_a_packed_trace_arrives_packed(tmp_path: Path) -> None:
    path = tmp_path / "step.json.gz"
    path.write_bytes(b"\x1f\x8b packed")
    with running(Site(trace=path)) as run:
        response, body = run.ask("GET", "step.json.gz")

    assert body == b"\x1f\x8b packed"
    assert "Content-Encoding" not in response.headers


def test_a_trace_larger_than_all_buffers_arrives_whole(tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    content = CONTENT * 500
    path.write_bytes(content)
    with running(Site(trace=path)) as run:
        assert run.ask("GET", "step.json")[1] == content


def test_a_preflight_from_the_public_ui_is_answered(trace: Path) -> None:
    asked = {"Access_Control_Request_Method": "GET", "Access_Control_Request_Private_Network": "true"}
    with running(Site(trace=trace)) as run:
        response, body = run.ask("OPTIONS", "step.pftrace", Origin=PUBLIC_UI, **asked)
        plain, _ = run.ask("OPTIONS", "step.pftrace", Origin=PUBLIC_UI)
        refused, _ = run.ask("OPTIONS", "step.pftrace", Origin="https://evil.example", **asked)

    assert (response.status, body) == (204, b"")
    assert response.headers["Access-Control-Allow-Origin"] == PUBLIC_UI
    assert response.headers["Access-Control-Allow-Private-Network"] == "true"
    assert "GET" in response.headers["Access-Control-Allow-Methods"]
    assert "Access-Control-Allow-Private-Network" not in plain.headers
    assert refused.status == 403
    assert "Access-Control-Allow-Private-Network" not in refused.headers


def test_every_other_path_is_not_found(trace: Path) -> None:
    (trace.parent / "other.txt").write_text("secret")
    with running(Site(trace=trace)) as run:
        for path in ("", "other.txt", "../other.txt", "%2e%2e/other.txt", "status", "step.pftrace/"):
            assert run.ask("GET", path)[0].status == 404, path
        assert not run.server.delivery.complete


def test_other_methods_are_refused(trace: Path) -> None:
    with running(Site(trace=trace)) as run:
        for method in ("HEAD", "POST", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT"):
            assert run.ask(method, "step.pftrace")[0].status == 501, method
        assert not run.server.delivery.complete
    assert trace.read_bytes() == CONTENT


def test_another_site_gets_nothing_by_rebinding_its_name_or_by_asking(trace: Path) -> None:
    with running(Site(trace=trace)) as run:
        for headers in ({"Host": "evil.example:9001"}, {"Origin": "https://evil.example"}, {"Origin": "null"}):
            response, body = run.ask("GET", "step.pftrace", **headers)
            assert response.status == 403
            assert CONTENT[:64] not in body
        assert not run.server.delivery.complete


@pytest.mark.parametrize("method", ["GET", "OPTIONS"])
def test_a_request_without_the_token_is_forbidden(trace: Path, method: str) -> None:
    with running(Site(trace=trace)) as run:
        token = run.server.site.token
        for path in (
            "/",
            "/step.pftrace",
            f"/{token[:-1]}/step.pftrace",
            f"/step.pftrace?token={token}",
            "/%ff/a",
        ):
            response, body = run.ask_path(method, path, Origin=PUBLIC_UI)
            assert response.status == 403, path
            assert token.encode() not in body
            assert CONTENT[:64] not in body
        assert not run.server.delivery.complete


HOSTS = [
    [], [""], ["127.0.0.1", "127.0.0.1"], ["evil.example", "127.0.0.1"], ["127.0.0.1, localhost"],
    ["127.0.0.1:x"], ["user@127.0.0.1"], ["127.0.0.1/"], ["[127.0.0.1"],
]  # fmt: skip


@pytest.mark.parametrize("hosts", HOSTS)
def test_a_request_needs_exactly_one_valid_host_header(trace: Path, hosts: list[str]) -> None:
    with running(Site(trace=trace)) as run:
        lines = [f"GET {run.path('step.pftrace')} HTTP/1.1", *(f"Host: {host}" for host in hosts), "", ""]
        answer = run.raw("\r\n".join(lines).encode())

        assert b" 400 " in answer.splitlines()[0]
        assert b"exactly one valid Host header" in answer
        assert not run.server.delivery.complete


def test_nonsense_on_the_wire_leaves_the_server_standing(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running(Site(trace=trace)) as run:
        assert b"400" in run.raw(b"\x16\x03\x01 not http at all\r\n\r\n")
        assert b"400" in run.raw(b"GET / HTTP/x.y\r\n\r\n")
        assert run.ask("GET", "step.pftrace")[0].status == 200
    assert "Traceback" not in capsys.readouterr().err


def test_a_browser_that_hangs_up_may_come_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "step.json"
    path.write_bytes(CONTENT * 3_000)
    with running(Site(trace=path)) as run:
        with socket.create_connection((HOST, run.server.port)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(f"GET {run.path('step.json')} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n".encode())
            connection.recv(1000)
        time.sleep(0.5)

        assert not run.server.delivery.complete
        assert run.thread.is_alive()
        assert len(run.ask("GET", "step.json")[1]) == len(CONTENT) * 3_000
    assert "Traceback" not in capsys.readouterr().err


def test_a_trace_deleted_meanwhile_is_not_found(trace: Path) -> None:
    with running(Site(trace=trace)) as run:
        trace.unlink()
        assert run.ask("GET", "step.pftrace")[0].status == 404


def test_it_gives_up_when_nobody_comes(trace: Path) -> None:
    with running(Site(trace=trace), timeout_s=0.3) as run:
        run.thread.join(NEVER_S)

        assert not run.thread.is_alive()
        assert not run.fetched


def test_it_listens_to_this_machine_only(trace: Path) -> None:
    with Server(Site(trace=trace), 0) as server:
        assert server.server_address[0] == "127.0.0.1"


def test_a_busy_port_is_one_line_that_says_what_to_do(trace: Path, tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(PptraceError, match=rf"^port {port} is in use, .*; end that one .*--ui DIR"):
            Server(Site(trace=trace), port)
        with pytest.raises(PptraceError, match=rf"^port {port} is in use, .*--port"):
            Server(Site(trace=trace, ui=tmp_path), port)


def test_a_port_that_may_not_be_opened_says_why(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Server, "server_bind", refuse)
    with pytest.raises(PptraceError, match=r"^port 80 cannot be opened: Permission denied"):
        Server(Site(trace=trace), 80)


def test_an_offline_ui_is_served_around_its_trace(trace: Path, tmp_path: Path) -> None:
    ui = tmp_path / "ui"
    ui.mkdir()
    for name in ("index.html", "app.js", "engine.wasm", "style.css", "empty.json", "unknown.xyz"):
        (ui / name).write_text("" if name == "empty.json" else name)
    with running(Site(trace=trace, ui=ui)) as run:
        own = f"http://127.0.0.1:{run.server.port}"
        kinds = {name: run.ask("GET", name, Origin=own)[0].headers["Content-Type"] for name in ("", "app.js")}
        wasm, _ = run.ask("GET", "engine.wasm")
        empty, nothing = run.ask("GET", "empty.json")
        other, _ = run.ask("GET", "unknown.xyz")
        assert not run.server.delivery.complete
        response, body = run.ask("GET", "step.pftrace", Origin=own)

    assert kinds == {"": "text/html; charset=utf-8", "app.js": "text/javascript"}
    assert wasm.headers["Content-Type"] == "application/wasm"
    assert (empty.status, nothing) == (200, b"")
    assert other.headers["Content-Type"] == "application/octet-stream"
    assert (response.status, body) == (200, CONTENT)
    assert "Access-Control-Allow-Origin" not in response.headers


def test_many_requests_at_once_and_a_slow_client_all_get_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    content = CONTENT * 500
    path.write_bytes(content)
    with (
        running(Site(trace=path)) as run,
        ThreadPoolExecutor(40) as clients,
        run.connect() as slow,
    ):
        slow.sendall(f"GET {run.path('step.json')} HTTP/1.1\r\nHost: ".encode())
        bodies = [clients.submit(run.ask, "GET", "step.json") for _ in range(40)]
        answers = [each.result() for each in bodies]
        slow.sendall(f"{HOST}:{run.server.port}\r\n\r\n".encode())
        received = slow.makefile("rb").read()

    assert [(response.status, body == content) for response, body in answers] == [(200, True)] * 40
    assert received.endswith(content)


def test_idle_connections_are_closed_and_their_places_go_to_others(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Handler, "request_timeout", 0.2)
    with running(Site(trace=trace)) as run, ExitStack() as idle:
        connections = [idle.enter_context(run.connect()) for _ in range(100)]

        assert run.ask("GET", "step.pftrace")[1] == CONTENT
        assert connections[0].recv(1) == b""


def send_slowly(connection: socket.socket) -> None:
    for _ in range(3_000):  # each byte arrives before a timeout that starts anew with each byte
        connection.sendall(b"a")
        time.sleep(0.01)


def test_a_request_that_arrives_byte_by_byte_is_given_up(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handler, "request_timeout", 0.2)
    with running(Site(trace=trace)) as run, run.connect() as slow:
        slow.sendall(b"GET / HTTP/1.0\r\nX: ")
        with pytest.raises(ConnectionError):
            send_slowly(slow)


def test_more_connections_than_the_most_at_once_wait(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_MOST_CONNECTIONS", 2)
    open_now, most, begun = [], [], threading.Semaphore(0)

    class Counting(Handler):
        def handle(self) -> None:
            open_now.append(self)
            most.append(len(open_now))
            begun.release()
            super().handle()
            open_now.remove(self)

    monkeypatch.setattr(server_module, "Handler", Counting)
    with running(Site(trace=trace)) as run, ExitStack() as stack:
        connections = [stack.enter_context(run.connect()) for _ in range(6)]
        for connection in connections:
            connection.sendall(f"GET {run.path('step.pftrace')} HTTP/1.0\r\nHost: {HOST}\r\n".encode())
        begun.acquire()
        begun.acquire()
        for connection in connections:
            connection.sendall(b"\r\n")
            assert connection.makefile("rb").read().endswith(CONTENT)
    assert max(most) == 2
    assert len(most) == 6
