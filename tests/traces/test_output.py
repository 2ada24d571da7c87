"""Output is whole or not there: what stood in its place before stays until the new one is complete."""

from __future__ import annotations

import errno
import gzip
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from msgspec.structs import replace

from pptrace.errors import OutputError
from pptrace.files import compress, replace_file
from pptrace.plugins import builtin
from pptrace.plugins.offers import ExporterOffer
from pptrace.run.trace_files import exporter_for, save
from pptrace.steps.actions import Action
from pptrace.steps.kinds import Kind, Stream
from pptrace.steps.placement import Placement
from pptrace.timeline.timeline import Slice, Timeline

if TYPE_CHECKING:
    from collections.abc import Mapping


@pytest.fixture
def timeline() -> Timeline:
    def compute(rank: int) -> Slice:
        action = Action(kind=Kind.F, stage=rank, microbatch=0)
        return Slice(rank=rank, stream=Stream.COMPUTE, action=action, start_ns=0, end_ns=9)

    return Timeline.from_slices([compute(0), compute(1)], Placement.looped(2, 1))


def _ranks(timeline: Timeline, path: Path, options: Mapping[str, Any]) -> None:
    path.write_text(f"{timeline.lane_rank.tolist()} {dict(options)}")


def _offer(name: str = "ranks", suffix: str = ".txt", **more: Any) -> dict[str, ExporterOffer]:
    return {name: ExporterOffer(**({"name": name, "summary": "", "suffixes": (suffix,), "write": _ranks} | more))}


def _fails_on(rank: int, error: BaseException) -> dict[str, ExporterOffer]:
    def write(timeline: Timeline, path: Path, options: Mapping[str, Any]) -> None:
        _ranks(timeline, path, options)
        if rank in timeline.lane_rank:
            raise error

    return _offer(write=write)


def _write_half(target: Path, error: BaseException) -> None:
    with replace_file(target) as path:
        path.write_text("half")
        raise error


def test_a_file_takes_its_place_only_when_complete(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")
    with replace_file(target) as path:
        path.write_text("new")
        assert path.parent.parent == tmp_path
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    ("raised", "seen"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt),
        (ValueError("x"), ValueError),
        (OSError(errno.ENOSPC, "No space left on device"), OutputError),
    ],
)
def test_a_failure_keeps_the_old_file_and_no_part_of_the_new(
    tmp_path: Path, raised: BaseException, seen: type[BaseException]
) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")
    with pytest.raises(seen):
        _write_half(target, raised)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.ENOSPC, "no space left; free some"),
        (errno.EROFS, "the file system is read-only; choose"),
        (errno.EACCES, "permission denied; choose"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_an_error_of_the_system_says_what_to_do(tmp_path: Path, code: int, advice: str) -> None:
    with pytest.raises(OutputError, match=f"a.txt: cannot be written: {advice}") as caught:
        _write_half(tmp_path / "a.txt", OSError(code, os.strerror(code)))
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_full_disk_is_met_by_a_real_write(tmp_path: Path) -> None:
    refused = pytest.raises(OutputError, match="no space left")
    with Path("/dev/full").open("wb", buffering=0) as full, refused, replace_file(tmp_path / "a.txt"):
        full.write(b"x")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    target = tmp_path / "none" / "a.txt"
    with (
        pytest.raises(OutputError, match="the folder does not exist; create it first"),
        replace_file(target) as path,
    ):
        path.write_text("x")


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    target = tmp_path / "file" / "a.txt"
    with pytest.raises(OutputError, match="its folder is a file"), replace_file(target) as path:
        path.write_text("x")


def test_a_folder_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="it is a folder"), replace_file(tmp_path):
        pytest.fail("the block must not run")


def test_a_device_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OutputError, match="not a regular file"), replace_file(pipe):
        pytest.fail("the block must not run")


def test_a_link_stays_and_what_it_names_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("old")
    link = tmp_path / "link.txt"
    link.symlink_to("real.txt")
    with replace_file(link) as path:
        path.write_text("new")
    assert link.is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o755])
def test_what_is_replaced_keeps_its_mode_and_nobody_else_reads_the_half(mode: int, tmp_path: Path) -> None:
    target, link = tmp_path / "a.txt", tmp_path / "link.txt"
    target.write_text("old")
    target.chmod(mode)
    link.symlink_to(target.name)

    with replace_file(link) as path:
        path.write_text("half")
        assert path.parent.stat().st_mode & 0o777 == 0o700

    assert target.stat().st_mode & 0o777 == mode
    assert target.read_text() == "half"


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_a_new_file_has_the_mode_that_the_umask_leaves(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        with replace_file(tmp_path / "a.txt") as path:
            path.write_text("new")
    finally:
        os.umask(before)

    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o666 & ~mask


def test_what_is_written_beside_the_temporary_file_goes_too(tmp_path: Path) -> None:
    with replace_file(tmp_path / "a.txt") as path:
        path.write_text("new")
        path.with_suffix(".other").touch()

    assert [each.name for each in tmp_path.iterdir()] == ["a.txt"]


def test_compressed_bytes_depend_on_the_content_alone(tmp_path: Path) -> None:
    packed = []
    for name in ("a", "b"):
        (tmp_path / name).write_text("content" * 100)
        os.utime(tmp_path / name, (len(packed), len(packed)))
        compress(tmp_path / name, tmp_path / f"{name}.gz")
        packed.append((tmp_path / f"{name}.gz").read_bytes())
    assert packed[0] == packed[1]
    assert gzip.decompress(packed[0]) == b"content" * 100


def test_the_longest_suffix_chooses_the_format() -> None:
    exporters = _offer("short", ".json") | _offer("long", ".wide.json")
    assert exporter_for("out/A.WIDE.JSON.gz", exporters).name == "long"
    assert exporter_for("out/a.json", exporters).name == "short"


def test_an_unknown_suffix_names_the_known_ones(timeline: Timeline, tmp_path: Path) -> None:
    exporters = _offer("a", ".json") | _offer("b", ".pftrace")
    with pytest.raises(OutputError, match=r"a\.xml: .*known: \.json, \.pftrace, each also with \.gz"):
        save(timeline, [str(tmp_path / "a.xml")], exporters, {})


def test_a_trace_is_written_and_compressed_by_its_suffix(timeline: Timeline, tmp_path: Path) -> None:
    plain, packed = str(tmp_path / "a.txt"), str(tmp_path / "a.txt.gz")
    assert [str(path) for path in save(timeline, [plain], _offer(), {"color": "kind"})] == [plain]
    save(timeline, [packed], _offer(), {"color": "kind"})
    text = (tmp_path / "a.txt").read_bytes()
    assert text == b"[0, 1] {'color': 'kind'}"
    assert gzip.decompress((tmp_path / "a.txt.gz").read_bytes()) == text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "a.txt.gz"]


@pytest.mark.parametrize(("takes_rank", "text"), [(False, "[1] {}"), (True, "[0, 1] {'rank': 1}")])
def test_a_placeholder_writes_a_file_per_rank(
    timeline: Timeline, tmp_path: Path, text: str, *, takes_rank: bool
) -> None:
    paths = save(timeline, [str(tmp_path / "r{rank}.txt")], _offer(takes_rank=takes_rank), {})
    assert [path.name for path in paths] == ["r0.txt", "r1.txt"]
    assert paths[1].read_text() == text


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("a.b.txt", "a.b.0.txt"),
        ("a.txt.gz", "a.0.txt.gz"),
        ("new/a.txt/", "new/a.txt/a.0.txt"),
        ("there.txt", "there.txt/there.0.txt"),
        ("{rank}/a.txt", "0/a.txt"),
    ],
)
def test_a_format_with_a_file_per_rank_puts_the_rank_before_its_suffix(
    timeline: Timeline, tmp_path: Path, target: str, expected: str
) -> None:
    (tmp_path / "there.txt").mkdir()
    paths = save(timeline, [f"{tmp_path}/{target}"], _offer(takes_rank=True, file_per_rank=True), {})
    names = [str(path.relative_to(tmp_path)) for path in paths]
    assert names == [expected, expected.replace("0", "1")]
    assert all(path.exists() for path in paths)


def test_the_folder_of_a_file_per_rank_is_made(timeline: Timeline, tmp_path: Path) -> None:
    paths = save(timeline, [str(tmp_path / "new" / "of{rank}" / "r.txt")], _offer(), {})
    assert [str(path.relative_to(tmp_path)) for path in paths] == ["new/of0/r.txt", "new/of1/r.txt"]
    assert all(path.exists() for path in paths)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt(), ValueError("bug")])
def test_a_folder_is_not_made_for_files_that_fail(
    timeline: Timeline, tmp_path: Path, error: BaseException
) -> None:
    (tmp_path / "there").mkdir()
    for folder in ("new/deep", "there"):
        with pytest.raises((OutputError, KeyboardInterrupt, ValueError)):
            save(timeline, [str(tmp_path / folder / "r{rank}.txt")], _fails_on(1, error), {})
    with pytest.raises(OutputError, match="two outputs are this file"):
        save(timeline, [str(tmp_path / "new" / "r{rank}.txt")] * 2, _offer(), {})
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    assert list((tmp_path / "there").iterdir()) == []


def test_a_folder_that_cannot_be_made_says_why(timeline: Timeline, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"file/r0.txt: cannot be written: its folder is a file"):
        save(timeline, [str(tmp_path / "file" / "r{rank}.txt")], _offer(), {})
    with pytest.raises(OutputError, match=r"r0.txt: cannot be written: its folder is a file"):
        save(timeline, [str(tmp_path / "file" / "deep" / "r{rank}.txt")], _offer(), {})


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt(), ValueError("bug")])
def test_if_one_of_several_files_fails_no_old_one_goes(
    timeline: Timeline, tmp_path: Path, error: BaseException
) -> None:
    (tmp_path / "r0.txt").write_text("old")
    with pytest.raises((OutputError, KeyboardInterrupt, ValueError)):
        save(timeline, [str(tmp_path / "r{rank}.txt")], _fails_on(1, error), {})
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("r0.txt", "old")]


def test_a_failure_while_compressing_leaves_nothing(
    timeline: Timeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr("pptrace.run.trace_files.compress", fail)
    with pytest.raises(OutputError, match="no space left"):
        save(timeline, [str(tmp_path / "a.txt.gz")], _offer(), {})
    assert list(tmp_path.iterdir()) == []


def test_a_file_per_rank_of_nothing_is_refused(tmp_path: Path) -> None:
    empty = Timeline.from_slices([], Placement.looped(2, 1))
    with pytest.raises(OutputError, match="there is no rank to write"):
        save(empty, [str(tmp_path / "r{rank}.txt")], _offer(), {})


@pytest.mark.parametrize("suffix", [".json", ".json.gz", ".pftrace.gz"])
def test_our_own_formats_written_rank_by_rank_read_as_one(timeline: Timeline, tmp_path: Path, suffix: str) -> None:
    exporters = {offer.name: offer for offer in builtin.pptrace_exporters()}
    timeline = replace(timeline, cause=np.array([-1, 0], dtype=np.int32))
    paths = save(timeline, [str(tmp_path / f"r{{rank}}{suffix}")], exporters, {})
    name = exporter_for(str(paths[0]), exporters).name
    (importer,) = (offer for offer in builtin.pptrace_importers() if offer.name == name)
    assert importer.read(paths).difference(timeline) == ""


def test_a_target_that_fails_leaves_every_other_target_as_it_was(timeline: Timeline, tmp_path: Path) -> None:
    kept = tmp_path / "a.txt"
    kept.write_text("old")

    with pytest.raises(OutputError, match="folder does not exist"):
        save(timeline, [str(kept), str(tmp_path / "missing" / "b.txt")], _offer(), {})

    assert kept.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
