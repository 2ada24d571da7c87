"""A site serves its trace and its UI's own files, to this machine and this UI."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from pptrace.viewer.site import Site


@pytest.fixture
def ui(tmp_path: Path) -> Path:
    folder = tmp_path / "ui"
    (folder / "assets").mkdir(parents=True)
    for name in ("index.html", "assets/app.js", "assets/a b.js"):
        (folder / name).write_text(name)
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    return folder


def test_the_page_is_the_address_that_the_public_ui_documents() -> None:
    site = Site(trace=Path("out/step.pftrace"))

    assert site.page(9001) == "https://ui.perfetto.dev/#!/?url=http://127.0.0.1:9001/step.pftrace"


def test_the_page_of_an_offline_ui_and_its_trace_share_an_origin(ui: Path) -> None:
    site = Site(trace=Path("step.json.gz"), ui=ui)

    assert site.page(8123) == "http://127.0.0.1:8123/#!/?url=http://127.0.0.1:8123/step.json.gz"


def test_the_page_says_what_is_seen_first() -> None:
    site = Site(trace=Path("step.json"), view=(1682725898000900000, 1682725898001300000))

    assert site.page(9001).endswith("/step.json&visStart=1682725898000900000&visEnd=1682725898001300000")


@pytest.mark.parametrize(
    ("name", "served"),
    [
        ("1f1b (pp 8) & more.json", "1f1b_pp_8_more.json"),
        ("日本.pftrace", "_.pftrace"),
        ("a%20b#c?.json", "a_20b_c_.json"),
        ("..", "trace"),
        (".hidden.json", "hidden.json"),
    ],
)
def test_a_name_needs_no_escapes_in_an_address(name: str, served: str) -> None:
    assert Site(trace=Path("folder", name)).name == served


def test_a_trace_hides_no_file_of_the_ui(ui: Path) -> None:
    site = Site(trace=Path("index.html"), ui=ui)

    assert site.name == "trace-index.html"
    assert site.find("/") == ui / "index.html"
    assert site.find("/trace-index.html") == Path("index.html")


def test_without_a_ui_nothing_but_the_trace_is_found(tmp_path: Path) -> None:
    trace = tmp_path / "step.json"
    trace.write_text("{}")
    (tmp_path / "other.json").write_text("{}")
    site = Site(trace=trace)

    assert site.find("/step.json") == trace
    assert site.find("/step.json?fresh=1") == trace
    for target in ("/", "/other.json", "/./step.json", "/x/../step.json", str(trace), "", "*", "http://[", "/%ff"):
        assert site.find(target) is None, target


def test_a_ui_is_served_by_name_alone(ui: Path) -> None:
    site = Site(trace=Path("step.json"), ui=ui)

    assert site.find("/") == ui / "index.html"
    assert site.find("/assets/app.js?v=1") == ui / "assets/app.js"
    assert site.find("/assets/a%20b.js") == ui / "assets/a b.js"


@pytest.mark.parametrize(
    "target",
    [
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/assets/..%2f..%2fsecret.txt",
        "/..\\secret.txt",
        "/assets/%5c..%5c..%5csecret.txt",
        "/link.txt",
        "/assets",
        "/assets/",
        "//assets/app.js",
        "/index.html%00",
        "/none.js",
        "/" + "a" * 300,
    ],
)
def test_nothing_outside_the_ui_is_found(ui: Path, target: str) -> None:
    assert Site(trace=Path("step.json"), ui=ui).find(target) is None


@pytest.mark.parametrize("host", ["127.0.0.1:9001", "localhost:9001", "127.0.0.1", "LOCALHOST:80"])
def test_this_machine_is_trusted_by_its_own_names(host: str) -> None:
    assert Site(trace=Path("a.json")).trusts(host, None)


@pytest.mark.parametrize(
    "host", [None, "", "evil.example:9001", "127.0.0.1.evil.example", "evil.example@[", "[::2]:9"]
)
def test_a_name_rebound_to_this_machine_is_not_trusted(host: str | None) -> None:
    assert not Site(trace=Path("a.json")).trusts(host, None)


def test_only_pages_of_the_ui_in_use_are_trusted(ui: Path) -> None:
    public, offline = Site(trace=Path("a.json")), Site(trace=Path("a.json"), ui=ui)

    for origin, trusts_public, trusts_offline in (
        ("https://ui.perfetto.dev", True, False),
        ("http://127.0.0.1:9001", False, True),
        ("https://evil.example", False, False),
        ("http://[", False, False),
        ("null", False, False),
    ):
        assert public.trusts("127.0.0.1:9001", origin) is trusts_public
        assert offline.trusts("127.0.0.1:9001", origin) is trusts_offline


def test_the_ui_is_asked_to_arrange_what_has_our_tracks() -> None:
    _, _, asked = Site(trace=Path("step.pftrace"), arranged=True).page(9001).partition("&startupCommands=")

    commands = json.loads(unquote(asked))
    assert [command["id"] for command in commands] == [
        "dev.perfetto.PinTracksByRegex", "dev.perfetto.ExpandTracksByRegex",
    ]  # fmt: skip
    pinned, expanded = (re.compile(command["args"][0]) for command in commands)
    for behind in ("", " (1003)"):  # of older traces, and of threads
        assert [rank for rank in range(40) if pinned.search(f"rank {rank:02}{behind}")] == list(range(16))
        assert pinned.search(f"critical path{behind}")
        assert [rank for rank in range(40) if expanded.search(f"rank {rank:02}{behind}")] == [0]
    assert not pinned.search("rank 3 1003")
