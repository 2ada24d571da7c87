"""``replay --p2p``: a step whose messages go as a policy says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

STEP = """\
schedule: table.csv
costs: {name: table, forward: 10 ms, backward: [20 ms, 25 ms], boundary: 1 MB}
network: {name: hockney, bandwidth: 1 GB/s, latency: 1 ms}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.csv").write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", encoding="utf-8")
    (tmp_path / "step.yaml").write_text(STEP, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("policy", ["async", "sender-blocking", "ordered", "batched"])
def test_a_step_replayed_under_its_own_policy_is_that_step(pptrace: Any, policy: str) -> None:
    pptrace("simulate", "step.yaml", "--p2p", policy, "-o", "step.pftrace")

    (found,) = json.loads(pptrace("replay", "step.pftrace", "--p2p", policy, "--json").out)

    assert found["replayed_ns"] == found["measured_ns"]


def test_another_policy_takes_another_time(pptrace: Any) -> None:
    pptrace("simulate", "step.yaml", "-o", "step.pftrace")

    (free,) = json.loads(pptrace("replay", "step.pftrace", "--json").out)
    (held,) = json.loads(pptrace("replay", "step.pftrace", "--p2p", "batched", "--json").out)

    # Rank 1 sends B0's message and receives F1's in one call of 2 ms, and computes F1 behind it.
    assert free["replayed_ns"] == free["measured_ns"] == 104_000_000
    assert held["replayed_ns"] == 106_000_000


def test_an_unknown_policy_is_one_line(pptrace: Any, folder: Path) -> None:
    pptrace("simulate", "step.yaml", "-o", "step.pftrace")

    answer = pptrace("replay", "step.pftrace", "--p2p", "asynch", "-o", "replay.pftrace")

    assert "no installed plugin offers a message policy named 'asynch' (did you mean 'async'?" in answer.complaint
    assert not (folder / "replay.pftrace").exists()
