"""A site serves its trace and its UI's own files, to this machine and this UI."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from pathlib import Path
from urllib.parse import unquote

import pytest

from pptrace.cli.viewer import Site

TOKEN = "c5n0"  # noqa: S105 - of no real server


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
    site = Site(trace=Path("out/step.pftrace"), token=TOKEN)

    assert site.page(9001) == "https://ui.perfetto.dev/#!/?url=http://127.0.0.1:9001/c5n0/step.pftrace"


def test_the_page_of_an_offline_ui_and_its_trace_share_an_origin(ui: Path) -> None:
    site = Site(trace=Path("step.json.gz"), ui=ui, token=TOKEN)

    assert site.page(8123) == "http://127.0.0.1:8123/c5n0/#!/?url=http://127.0.0.1:8123/c5n0/step.json.gz"


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
    site = Site(trace=Path("index.html"), ui=ui, token=TOKEN)

    assert site.name == "trace-index.html"
    assert site.find("/c5n0/") == ui / "index.html"
    assert site.find("/c5n0/trace-index.html") == Path("index.html")


def test_without_a_ui_nothing_but_the_trace_is_found(tmp_path: Path) -> None:
    trace = tmp_path / "step.json"
    trace.write_text("{}")
    (tmp_path / "other.json").write_text("{}")
    site = Site(trace=trace, token=TOKEN)

    assert site.find("/c5n0/step.json") == trace
    assert site.find("/c5n0/step.json?fresh=1") == trace
    for target in ("", "/", "/other.json", "/./step.json", "/x/../step.json", str(trace)):
        assert site.find(f"/{TOKEN}{target}") is None, target


@pytest.mark.parametrize(
    "target",
    ["/", "/step.json", "", "*", "http://[", "/%ff", "/c5n/step.json", "//c5n0/step.json", "/é/step.json"],
)
def test_nothing_is_found_without_the_token(ui: Path, target: str) -> None:
    for site in (Site(trace=Path("step.json"), token=TOKEN), Site(trace=Path("step.json"), ui=ui, token=TOKEN)):
        with pytest.raises(PermissionError):
            site.find(target)


def test_each_site_has_a_token_of_its_own() -> None:
    tokens = {Site(trace=Path("step.json")).token for _ in range(20)}

    assert len(tokens) == 20
    assert all(re.fullmatch(r"[\w-]{43}", token) for token in tokens)


def test_a_ui_is_served_by_name_alone(ui: Path) -> None:
    site = Site(trace=Path("step.json"), ui=ui, token=TOKEN)

    assert site.find("/c5n0/") == ui / "index.html"
    assert site.find("/c5n0/assets/app.js?v=1") == ui / "assets/app.js"
    assert site.find("/c5n0/assets/a%20b.js") == ui / "assets/a b.js"


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
    assert Site(trace=Path("step.json"), ui=ui, token=TOKEN).find(f"/{TOKEN}{target}") is None


@pytest.mark.parametrize("host", ["127.0.0.1:9001", "localhost:9001", "127.0.0.1", "LOCALHOST:80"])
def test_this_machine_is_trusted_by_its_own_names(host: str) -> None:
    Site(trace=Path("a.json")).check_source([host], None)


@pytest.mark.parametrize("host", ["evil.example:9001", "127.0.0.1.evil.example", "[::2]:9"])
def test_a_name_rebound_to_this_machine_is_not_trusted(host: str) -> None:
    with pytest.raises(PermissionError):
        Site(trace=Path("a.json")).check_source([host], None)


@pytest.mark.parametrize(
    "hosts", [[], [""], ["127.0.0.1", "127.0.0.1"], ["evil.example@["], ["127.0.0.1 "], ["::1"], ["127.0.0.1:٣"]]
)
def test_anything_but_one_valid_host_is_no_request(hosts: list[str]) -> None:
    with pytest.raises(ValueError, match="exactly one valid Host header"):
        Site(trace=Path("a.json")).check_source(hosts, None)


@pytest.mark.parametrize(
    ("origin", "trusts_public", "trusts_offline"),
    [
        ("https://ui.perfetto.dev", True, False),
        ("http://127.0.0.1:9001", False, True),
        ("http://127.0.0.1:9002", False, False),
        ("https://evil.example", False, False),
        ("http://[", False, False),
        ("null", False, False),
    ],
)
def test_only_pages_of_the_ui_in_use_are_trusted(
    ui: Path, origin: str, *, trusts_public: bool, trusts_offline: bool
) -> None:
    for site, is_trusted in (
        (Site(trace=Path("a.json")), trusts_public),
        (Site(trace=Path("a.json"), ui=ui), trusts_offline),
    ):
        with nullcontext() if is_trusted else pytest.raises(PermissionError):
            site.check_source(["127.0.0.1:9001"], origin)


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
