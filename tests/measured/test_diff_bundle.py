"""Both sides' files in one archive: untouched, in place on one timeline, and by the manifest's schema."""

from __future__ import annotations

import gzip
import json
import tarfile
from typing import TYPE_CHECKING

import jsonschema
import numpy as np
import pytest
from archive_members import members
from compared_steps import MS, compared, one_step, side_of_step
from manifest_schema import MANIFEST, placed
from msgspec.structs import replace
from recorded_side import BEGINS, recorded

from pptrace.errors import OutputError
from pptrace.measured.diff import diff
from pptrace.measured.diff_document import Diff
from pptrace.traces import perfetto

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace.measured.sides import Side


def archive(folder: Path, sides: list[Side], name: str = "both.tar") -> dict[str, bytes]:
    """Return what the archive of two sides holds; its manifest fits the schema and names every other file."""
    Diff(diff(*sides), sides, ()).save(folder / name)
    held = members(folder / name)
    manifest = json.loads(held["perfetto_manifest.json"])
    jsonschema.validate(manifest, MANIFEST)
    assert b"".join(held["perfetto_manifest.json"].split()).startswith(b'{"perfetto_manifest"')
    assert {entry["path"] for entry in manifest["perfetto_manifest"]["files"]} == held.keys() - {
        "perfetto_manifest.json"
    }
    return held


def starts(held: dict[str, bytes], folder: Path) -> dict[str, dict[str, int]]:
    """Return, by file, when each computation starts on the common timeline."""
    offsets = placed(json.loads(held["perfetto_manifest.json"]))
    found: dict[str, dict[str, int]] = {}
    for name, offset in offsets.items():
        if name.endswith(".json"):
            events = json.loads(held[name])["traceEvents"]
            found[name] = {event["name"]: round(event["ts"] * 1000) + offset for event in events}
        else:
            (folder / "part.pftrace").write_bytes(held[name])
            timeline = perfetto.read([folder / "part.pftrace"])
            computed = [timeline[row] for row in range(len(timeline)) if timeline[row].stream == 0]
            found[name] = {str(item.action): item.start_ns + offset for item in computed}
    return found


def test_measured_files_are_there_as_they_are_and_packed_ones_unpacked(tmp_path: Path) -> None:
    side = recorded(tmp_path / "run", one_step())

    held = archive(tmp_path, [side_of_step(one_step()), side])

    assert sorted(held) == [
        "measured/r0.json", "measured/r1.json", "measured/r2.json", "perfetto_manifest.json", "simulated.pftrace",
    ]  # fmt: skip
    assert held["measured/r0.json"] == (tmp_path / "run" / "r0.json").read_bytes()
    assert held["measured/r1.json"] == gzip.decompress((tmp_path / "run" / "r1.json.gz").read_bytes())


@pytest.mark.parametrize("turned", [False, True])
def test_all_ranks_and_the_simulation_are_on_one_timeline(tmp_path: Path, *, turned: bool) -> None:
    step = one_step()
    sides = [side_of_step(step), recorded(tmp_path / "run", step)]

    held = archive(tmp_path, sides[::-1] if turned else sides)

    shown = starts(held, tmp_path)
    simulated = shown.pop("simulated.pftrace")
    assert {name: at for ranks in shown.values() for name, at in ranks.items()} == simulated
    assert min(at for ranks in shown.values() for at in ranks.values()) >= 0
    time = json.loads(held["perfetto_manifest.json"])["perfetto_manifest"]["trace_time"]
    assert time == {"clock": "BOOTTIME", "file": "simulated.pftrace"}


def test_no_file_has_to_be_put_before_its_own_times(tmp_path: Path) -> None:
    held = archive(tmp_path, [side_of_step(one_step()), recorded(tmp_path / "run", one_step())])

    offsets = placed(json.loads(held["perfetto_manifest.json"]))

    assert offsets == {
        "measured/r0.json": 8 * MS, "measured/r1.json": 0, "measured/r2.json": 31 * MS, "simulated.pftrace": 0,
    }  # fmt: skip


def test_two_measured_runs_are_aligned_where_their_steps_start(tmp_path: Path) -> None:
    first = recorded(tmp_path / "a", one_step())
    second = recorded(tmp_path / "b", one_step(), begins_ns=BEGINS + 123 * MS)

    held = archive(tmp_path, [first, second])

    shown = starts(held, tmp_path)
    assert len(shown) == 6
    for rank, name in enumerate(["r0.json", "r1.json", "r2.json"]):
        assert shown[f"first/{name}"] == shown[f"second/{name}"], rank
    assert shown["first/r1.json"]["1F0"] > shown["first/r0.json"]["0F0"]


def test_two_simulations_start_at_once(tmp_path: Path) -> None:
    held = archive(tmp_path, [side_of_step(one_step()), side_of_step(one_step(slow={2: 1.5}))])

    shown = starts(held, tmp_path)
    assert shown["first.pftrace"]["0F0"] == shown["second.pftrace"]["0F0"] == 0
    assert shown["first.pftrace"]["2B0"] < shown["second.pftrace"]["2B0"]


def test_each_rank_is_a_machine_unless_ranks_share_a_file(tmp_path: Path) -> None:
    apart = recorded(tmp_path / "run", one_step())
    assert apart.measurement is not None
    shared = tuple(replace(source, path=tmp_path / "run" / "r0.json") for source in apart.measurement.sources)
    together = replace(apart, measurement=replace(apart.measurement, sources=shared))

    def machines(side: Side) -> list[str]:
        manifest = json.loads(archive(tmp_path, [side_of_step(one_step()), side])["perfetto_manifest.json"])
        return [entry["machine"]["name"] for entry in manifest["perfetto_manifest"]["files"]]

    assert machines(apart) == ["measured rank 0", "measured rank 1", "measured rank 2", "simulated"]
    assert machines(together) == ["measured", "simulated"]


def test_files_of_one_name_stay_apart_and_hidden_ones_are_shown(tmp_path: Path) -> None:
    side = recorded(tmp_path / "run", one_step(), names=(".t.json", ".t.json.gz", "t.json"))

    held = archive(tmp_path, [side_of_step(one_step()), side])

    assert sorted(held)[:3] == ["measured/0-t.json", "measured/1-t.json", "measured/2-t.json"]


def test_where_a_format_has_no_file_for_viewers_the_step_is_written(tmp_path: Path) -> None:
    side = recorded(tmp_path / "run", one_step())
    assert side.measurement is not None
    unknown = replace(side, measurement=replace(side.measurement, sources=()))

    held = archive(tmp_path, [side_of_step(one_step()), unknown])

    assert sorted(held) == ["measured.pftrace", "perfetto_manifest.json", "simulated.pftrace"]


def test_of_a_file_that_ends_in_the_middle_what_can_be_unpacked_is_there(tmp_path: Path) -> None:
    side = recorded(tmp_path / "run", one_step())
    whole = (tmp_path / "run" / "r1.json.gz").read_bytes()
    (tmp_path / "run" / "r1.json.gz").write_bytes(whole[:-40])

    held = archive(tmp_path, [side_of_step(one_step()), side])

    assert gzip.decompress(whole).startswith(held["measured/r1.json"])


def test_the_archive_tells_nothing_of_who_wrote_it_and_when(tmp_path: Path) -> None:
    sides = [side_of_step(one_step()), recorded(tmp_path / "run", one_step())]

    archive(tmp_path, sides, "a.tar")
    archive(tmp_path, sides, "b.tar")

    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    with tarfile.open(tmp_path / "a.tar") as file:
        for entry in file:
            assert (entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname) == (0, 0, 0, "", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "b.tar", "run"]


def test_a_measured_file_that_went_is_one_line_and_leaves_nothing_behind(tmp_path: Path) -> None:
    difference, sides = compared()
    gone = recorded(tmp_path / "run", one_step())
    (tmp_path / "run" / "r2.json").unlink()

    with pytest.raises(OutputError, match=r"both\.tar: cannot be written"):
        Diff(difference, (sides[0], gone), ()).save(tmp_path / "both.tar")

    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_counters_move_with_their_step() -> None:
    from pptrace.measured.diff_scene import earliest_ns, shifted
    from pptrace.timeline.counters import in_flight

    step = one_step()
    counted = replace(step, counters=tuple(in_flight(step)))

    later = shifted(counted, 3 * MS)

    assert np.array_equal(later.counters[0].at_ns, counted.counters[0].at_ns + 3 * MS)
    assert np.array_equal(later.enter_ns, counted.enter_ns + 3 * MS)
    assert earliest_ns(shifted(counted, -MS)) == -MS
