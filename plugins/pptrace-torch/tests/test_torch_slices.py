"""Runs of schedules that cut sequences into slices, and their way back to microbatches."""

from __future__ import annotations

import importlib.util
import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from pptrace.plugin import Registry, load, prepare
from pptrace_torch.command import _configured_times, _earlier_stages, command
from pptrace_torch.manifest import Manifest, StageTimes

if TYPE_CHECKING:
    from pathlib import Path
    from subprocess import CompletedProcess

    from forked_python import ForkedPython

pytest.importorskip("pptrace_schedules")
SIZES = ("--set", "parallel.pp=2", "--set", "batch.microbatches=4")
MS = 1_000_000


def times(forward_ns: int) -> StageTimes:
    return StageTimes(
        forward_ns=forward_ns, input_gradient_ns=forward_ns, weight_gradient_ns=forward_ns,
        backward_ns=2 * forward_ns, message_bytes=8,
    )  # fmt: skip


def test_slices_of_causal_attention_have_their_own_times() -> None:
    options = {"slices": 2, "attention": 0.5}
    config = {
        "schedule": {"name": "seq-1f1b", "options": options},
        "parallel": {"pp": 2},
        "batch": {"microbatches": 2},
    }

    content = _configured_times(prepare(load(config), Registry.load()))
    rows = (("0F0", "0F1", "0B1", "0B0", "0F2", "0F3", "0B3", "0B2"), ("1F0", "1F1", "1B1", "1B0", "1F2", "1F3",
            "1B3", "1B2"))  # fmt: skip
    manifest = Manifest(
        table=rows, microbatches=2, slices=2, backend="gloo", empty_input_gradient=False, versions={}, **content
    )

    # Shares of the halves: 1/4 + 1/8 and 1/4 + 3/8.
    forwards = [manifest.times(1, microbatch).forward_ns for microbatch in range(4)]
    assert forwards == [3_750_000, 6_250_000, 3_750_000, 6_250_000]
    assert [stage.forward_ns for stage in manifest.whole_times()] == [10 * MS] * 2
    assert [stage.forward_ns for stage in manifest.whole_times(4)] == [2_500_000] * 2


def test_a_manifest_of_classes_and_slices_reads_as_it_was_written(tmp_path: Path) -> None:
    manifest = Manifest(
        table=(("0F0", "0F1", "0B1", "0B0"),), microbatches=1, slices=2, stages=(times(1),),
        classes=((times(3),),), microbatch_class=(0, 1), backend="gloo", empty_input_gradient=False, versions={},
    )  # fmt: skip
    manifest.write(tmp_path)

    assert Manifest.read(tmp_path) == manifest
    assert manifest.whole_times()[0].forward_ns == 4


def test_the_stages_of_a_run_fit_tables_of_whole_microbatches_and_of_as_many_slices(tmp_path: Path) -> None:
    manifest = Manifest(
        table=(("0F0", "0F1", "0B1", "0B0"),), microbatches=1, slices=2, stages=(times(2),),
        classes=((times(6),),), microbatch_class=(0, 1), backend="gloo", empty_input_gradient=False, versions={},
    )  # fmt: skip
    table = manifest.schedule
    whole = replace(manifest, table=(("0F0", "0B0"),)).schedule

    same = _earlier_stages(manifest, table, 2, tmp_path)
    assert (same["stages"], same["classes"], same["microbatch_class"]) == ((times(2),), ((times(6),),), (0, 1))
    (joined,) = _earlier_stages(manifest, whole, 1, tmp_path)["stages"]
    assert (joined.forward_ns, joined.backward_ns, joined.message_bytes) == (8, 16, 16)


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_a_run_of_slices_comes_back_as_microbatches_in_slices(tmp_path: Path, torch_python: ForkedPython) -> None:
    def pptrace(*words: str) -> CompletedProcess[str]:
        ran = torch_python.run(tmp_path, *words)
        assert ran.returncode in (0, 1), ran.stderr
        assert ran.returncode == 0 or words[0] == "diff", ran.stderr
        return ran

    ran = pptrace("torch", "run", "seq-1f1b", *SIZES, "--steps", "1", "-o", "run")
    assert "4 microbatches, whose 2 slices each run as microbatches" in ran.stderr
    manifest = Manifest.read(tmp_path / "run")
    assert (manifest.microbatches, manifest.slices, manifest.schedule.microbatches) == (4, 2, 8)

    fitted = json.loads(pptrace("calibrate", "run", "--json", "-o", "costs.yaml").stdout)
    assert (fitted["microbatches"], fitted["slices"], fitted["schedules"]) == (4, 2, ["seq-1f1b"])
    assert "seq-1f1b (slices 2), 4 microbatches in 2 slices each" in pptrace("simulate", "costs.yaml").stdout
    improved = pptrace("optimize", "run", "--work", "0.05", "--no-cache", "-o", "better.csv")
    assert "(seq-1f1b)" in improved.stdout
    assert "4 microbatches ran in 2 slices each" in pptrace("replay", "run").stderr

    pptrace("convert", "run", "order.csv")
    pptrace("simulate", "--schedule", "1f1b", "--pp", "2", "--microbatches", "4", "-o", "whole.csv")
    for table, slices in (("order.csv", 2), ("whole.csv", 1)):
        pptrace("torch", "run", table, "--costs", "run", "--steps", "1", "-o", "again")
        again = Manifest.read(tmp_path / "again")
        assert (again.microbatches, again.slices, again.schedule.microbatches) == (4, slices, 4 * slices)
    assert (
        "4 microbatches in 2 slices each and 2 ranks, 2 stages, 4 microbatches"
        in pptrace("diff", "run", "again").stdout
    )


def test_an_exported_table_of_slices_says_what_runs(tmp_path: Path) -> None:
    arguments = ["export", "seq-1f1b", *SIZES, "-o", str(tmp_path / "table.csv")]

    ran = CliRunner().invoke(command, arguments, catch_exceptions=False)

    said = "4 microbatches in 2 slices each: PyTorch runs every slice as a microbatch, 8 in all"
    assert ran.stderr.splitlines()[-1] == said
