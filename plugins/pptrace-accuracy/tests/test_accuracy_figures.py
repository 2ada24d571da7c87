"""Measured steps become configurations by their columns and by rules, and errors become figures."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Any

import pytest

import pptrace
from pptrace.errors import ConfigError, TableError
from pptrace_accuracy.command import compute_figures
from pptrace_accuracy.records import NEEDED, Case, build_cases, read_rows, read_rules, run_cases, unread_columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

ROW = {
    "source": "mine", "model": "llama3-8b", "gpu": "H100", "n_gpus": "16", "precision": "BF16", "tp": "2",
    "pp": "4", "mbs": "1", "gbs": "32", "seq": "4096", "schedule": "1F1B", "step_s": "2",
    "model.preset": "llama3-8b",
}  # fmt: skip


def case(**changes: str) -> Case:
    row = {**ROW, **changes}
    return build_cases([(2, row)], read_rules())[0]


def written(path: Path, *rows: dict[str, str]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_columns_become_the_configuration_that_they_say() -> None:
    result = case()

    assert result.skipped == ""
    assert result.measured_s == 2
    sizes = {"pp": 4, "dp": 2, "tp": 2, "cp": 1, "ep": 1, "vp": 1}
    assert result.settings["parallel"] == sizes
    assert result.settings["batch"] == {"global": 32, "micro": 1, "sequence": 4096}
    assert result.settings["schedule"] == {"name": "1f1b"}
    assert result.settings["device"] == {"preset": "h100-sxm"}


@pytest.mark.parametrize(("version", "system", "gpu", "stack", "costs"), [
    ("v3.1", "eos_n64_ngc23.09_nemo", "H100", "nemo-23.09", {}),
    ("v4.1", "b200_n8_preview_nemo", "B200", "nemo-24.09",
     {"cuda_graphs": ["attn", "mlp"], "fp8_param_gather": True}),
    ("v5.0", "eos-dfw_n64_ngc25.01_nemo", "H100", "nemo-25.01", {}),
    ("v5.1", "tyche_ngpu512_ngc25.09_nemo", "GB200", "megatron-bridge-25.09", {"cuda_graphs": True}),
])  # fmt: skip
def test_a_step_of_mlperf_has_the_framework_of_its_container(
    version: str, system: str, gpu: str, stack: str, costs: dict[str, Any]
) -> None:
    model = "gpt3-175b" if version < "v5" else "llama3-405b"
    names = {"source": f"MLPerf Training {version}", "path": f"NVIDIA/results/{system}", "model.preset": model}
    result = case(**names, model=model, gpu=gpu)

    assert result.settings["stack"] == stack
    assert result.settings.get("costs", {}) == costs
    assert result.settings["model"].get("dropout") is (False if model == "gpt3-175b" else None)


def test_names_of_presets_and_the_level_of_zero_are_taken_as_they_are() -> None:
    result = case(model="Qwen3_8B", gpu="H200 SXM", zero="3", **{"model.preset": "", "device.memory": "100 GiB"})

    assert result.settings["model"]["preset"] == "qwen3-8b"
    assert result.settings["device"] == {"preset": "h200-sxm", "memory": "100 GiB"}
    assert result.settings["costs"]["zero"] == 3
    assert result.default_settings["costs"] == {"zero": 3}
    assert run_cases([result], executor="serial")[0]["default_error_pct"] is not None


@pytest.mark.parametrize(
    ("model", "gpu", "presets"),
    [
        ("meta-llama/Llama-3.1-8B", "NVIDIA H100 80GB HBM3", ("llama3-8b", "h100-sxm")),
        ("GPT-3 175B", "A100 PCIe", ("gpt3-175b", "a100-pcie")),
        ("deepseek-ai/DeepSeek-V3.2", "A800", ("deepseek-v3.2", "a800-sxm")),
        ("DeepSeek-V2-Lite", "H100 SXM", ("deepseek-v2-lite", "h100-sxm")),
        ("Qwen/Qwen3-30B-A3B", "MI300X", ("qwen3-30b-a3b", "mi300x")),
        ("zai-org/GLM-4.5", "H20", ("glm-4.5", "h20")),
    ],
)
def test_names_are_read_as_sources_print_them(model: str, gpu: str, presets: tuple[str, str]) -> None:
    settings = case(model=model, gpu=gpu, **{"model.preset": ""}).settings

    assert (settings["model"]["preset"], settings["device"]["preset"]) == presets


def test_an_a100_with_40_gb_is_no_a100_with_80_gb() -> None:
    assert case(gpu="NVIDIA A100-SXM4-40GB").settings["device"]["memory"] == "40 GB"
    assert "memory" not in case(gpu="NVIDIA A100-SXM4-80GB").settings["device"]


def test_columns_without_an_effect_are_named() -> None:
    row = {**ROW, "etp": "2", "heads": "32", "fsdp": "8", "notes": "a row", "model.ffn": "8192"}

    assert unread_columns(row, read_rules()) == ["fsdp"]
    assert case(etp="2").settings["parallel"]["etp"] == 2


def test_columns_without_a_dot_set_keys() -> None:
    result = case(stack="nemo-24.09", cluster="dgx-h100x2")

    assert result.settings["stack"] == "nemo-24.09"
    assert result.settings["cluster"] == "dgx-h100x2"
    assert "network" not in result.settings
    assert run_cases([result], executor="serial")[0]["skipped"] == ""


def test_a_step_follows_from_the_rate_of_tokens() -> None:
    assert case(step_s="", tok_s_gpu="4096").measured_s == 32 * 4096 / (4096 * 16)
    assert case(step_s="", tok_s_gpu="14,096.5").measured_s == 32 * 4096 / (14096.5 * 16)


def test_a_step_follows_from_model_flops_where_no_time_is_printed() -> None:
    timed = run_cases([case()], executor="serial")[0]
    flops = case(step_s="", tflops_gpu="400")
    rated = run_cases([flops], executor="serial")[0]

    assert (flops.measured_s, flops.measured_flops) == (0, 400e12 * 16)
    assert rated["simulated_s"] == timed["simulated_s"]
    assert rated["measured_s"] * 400e12 * 16 == pytest.approx(6 * 32 * 4096 * 8.03e9, rel=0.2)


def test_a_row_without_a_time_is_compared_by_its_memory() -> None:
    one = case(step_s="", mem_gib="20")
    rows = run_cases([one], executor="serial")
    figures = compute_figures([one], rows)

    assert (one.measured_s, one.measured_flops, one.skipped) == (0, 0, "")
    assert (rows[0]["measured_s"], rows[0]["error_pct"]) == (None, None)
    assert rows[0]["memory_error_pct"] == pytest.approx(100 * (rows[0]["memory_gib"] / 20 - 1), abs=1e-3)
    assert [(group.rows, group.skipped) for group in (figures.sources[0], figures.memory[0])] == [(0, 0), (1, 0)]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mbs": ""}, "column mbs is blank"),
        ({"gbs": "?"}, "column gbs is blank"),
        ({"pp": "four"}, "column pp holds 'four', which is not a number"),
        ({"pp": "2.5"}, "column pp holds '2.5': a whole number is needed"),
        ({"pp": "-4"}, "column pp holds '-4': a positive number is needed"),
        ({"dp": "3"}, "column dp holds 3, but n_gpus / (tp x cp x pp) is 2"),
        ({"tp": "3"}, "tp x cp x pp does not divide n_gpus (16)"),
        ({"step_s": "7,286"}, "column step_s holds '7,286', which is not a number"),
        ({"precision": "INT8"}, "column precision holds 'int8'"),
        ({"step_s": ""}, "neither step_s nor tok_s_gpu nor tflops_gpu is given"),
        ({"recompute": "some"}, "column recompute holds 'some'; known are none, selective and full"),
        ({"model.preset": "", "model": ""}, "column model is blank"),
        ({"gpu": " "}, "column gpu is blank"),
        ({"schedule": "interleaved"}, "column vp is blank"),
        ({"source": "theirs SFT"}, "fine-tuning on packed sequences"),
    ],
)
def test_a_row_that_cannot_be_simulated_says_which_column(changes: dict[str, str], reason: str) -> None:
    result = case(**changes)

    assert result.settings == {}
    assert reason in result.skipped


def test_a_preset_that_nobody_offers_is_why_a_row_is_skipped() -> None:
    one = case(**{"model.preset": "nobody-s"})

    row = run_cases([one], executor="serial")[0]

    assert "nobody-s" in str(row["skipped"])
    assert row["error_pct"] is None


def test_a_release_that_stands_for_another_is_named() -> None:
    row = run_cases([case(stack="megatron-core-0.9")], executor="serial")[0]

    assert row["note"].endswith("megatron-core-0.9: the step has megatron-core-0.14, the oldest release.")


def test_a_row_simulates_what_the_same_configuration_does() -> None:
    one = case(mem_gib="12.5 first / 20 last stage")

    row = run_cases([one], executor="serial")[0]

    assert row["memory_error_pct"] == pytest.approx(100 * (row["memory_gib"] / 20 - 1), abs=1e-3)
    step = pptrace.simulate(dict(one.settings)).metrics.step_ns / 1e9
    assert row["simulated_s"] == step
    assert row["error_pct"] == pytest.approx(100 * (step / 2 - 1), abs=1e-3)


def test_rules_read_columns_and_fill_them_in(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(
        """
rules:
  - where: {source: "TH*RS"}
    read: {notes: "heads (?P<heads>[0-9]+)"}
    needs: [heads]
    set: {model: {heads: "{heads}", ffn: "{4*hidden}", vocabulary: 1000}, device.preset: h100-sxm}
"""
    )
    row = {
        **ROW,
        "source": "theirs",
        "model.preset": "",
        "layers": "8",
        "hidden": "512",
        "notes": "with heads 16, no",
    }

    found, unread = build_cases([(2, row), (3, {**row, "notes": ""})], read_rules(file))

    assert found.settings["model"]["heads"] == 16
    assert found.settings["model"]["ffn"] == 2048
    assert unread.skipped == "column heads is blank"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("rules: [{wher: {}}]", "rules.0.wher"),
        ("rules: 1", "rules"),
        ("rules: [{read: {notes: '('}}]", "is not a regular expression"),
    ],
)
def test_rules_that_are_none_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(text)

    with pytest.raises(ConfigError, match=reason):
        read_rules(file)


def test_a_table_without_a_needed_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="has no column model"):
        read_rows(written(tmp_path / "steps.csv", {"source": "mine"}))


def test_a_column_that_is_there_twice_is_named(tmp_path: Path) -> None:
    file = tmp_path / "steps.csv"
    file.write_text(",".join([*NEEDED, " pp", "", ""]) + "\n", encoding="utf-8")

    with pytest.raises(TableError, match=r"steps.csv: has the column pp twice: keep one"):
        read_rows(file)


def steps(*given: tuple[dict[str, Any], float, float]) -> tuple[list[Case], list[dict[str, Any]]]:
    """Return cases and rows of settings with a measured and a simulated step."""
    cases, rows = [], []
    for settings, measured, simulated in given:
        full = {"batch": {"micro": 1, "global": 8}, "parallel": {"dp": 1}}
        for section, values in settings.items():
            full[section] = {**full.get(section, {}), **values}
        devices = str(8 * full["parallel"]["dp"])
        row = {"source": "mine", "model": "m", "gpu": "g", "precision": "BF16", "n_gpus": devices}
        cases.append(Case(line=len(cases) + 2, row=row, measured_s=measured, settings=full))
        error = 100 * (simulated / measured - 1)
        result = {"kind": "dense", "simulated_s": simulated, "memory_error_pct": None, "skipped": ""}
        rows.append({**row, **result, "error_pct": error, "default_error_pct": error})
    return cases, rows


def test_errors_are_those_of_their_definition() -> None:
    figures = compute_figures(*steps(({}, 10, 11), ({}, 10, 8)))

    (source,) = figures.sources
    assert (source.rows, source.skipped) == (2, 0)
    assert source.mean_absolute == source.default == pytest.approx(15)
    assert source.mean == pytest.approx(-5)
    assert (source.least, source.most) == (pytest.approx(-20), pytest.approx(10))


def test_the_chosen_microbatch_costs_what_it_measures_over_the_best() -> None:
    figures = compute_figures(
        *steps(
            ({"batch": {"micro": 1}}, 14.0, 9.0),
            ({"batch": {"micro": 2}}, 10.0, 9.5),
            ({"batch": {"micro": 4}}, 11.0, 12.0),
        )
    )

    (series,) = figures.series
    assert (series.best, series.chosen) == (2, 1)
    assert series.regret == pytest.approx(40)


def test_the_typical_error_of_ratios_holds_for_two_of_three_pairs_of_alternatives() -> None:
    other = {"parallel": {"pp": 4}}
    cases, rows = steps(
        ({"batch": {"micro": 1}}, 14.0, 9.0),
        ({"batch": {"micro": 2}}, 10.0, 9.5),
        ({"batch": {"micro": 4}}, 11.0, 12.0),
        ({"batch": {"micro": 4}}, 11.5, 12.0),  # measured twice
    )
    repeated = compute_figures(cases[2:], rows[2:])
    (equal,) = compute_figures(cases[:3], rows[:3]).pairs
    different = compute_figures(*steps(({}, 10.0, 10.0), (other, 12.0, 11.0))).pairs

    assert repeated.pairs == ()
    # The errors are ln(1.4 * 9.5 / 9), ln(14 / 11 * 12 / 9) and ln(12 / 11 * 10 / 9.5).
    assert (equal.sizes, equal.pairs, equal.typical) == ("equal", 3, pytest.approx(39.05, abs=0.01))
    # No pair of simulated steps is further apart. Only 9.5 and 12 are in the order of 10 and 11.
    assert (equal.close, equal.distant) == ((1, 3), (0, 0))
    assert [(pair.sizes, pair.close, pair.distant) for pair in different] == [("different", (0, 0), (1, 1))]


def test_scale_compares_the_fewest_devices_with_the_most() -> None:
    figures = compute_figures(
        *steps(
            ({"parallel": {"dp": 4}, "batch": {"global": 32}}, 10.5, 10.2),
            ({}, 10.0, 10.0),
            ({"parallel": {"dp": 2}, "batch": {"global": 32}}, 20.0, 20.0),  # twice the work per device
        )
    )

    (scale,) = figures.scales
    assert scale.devices == (8, 32)
    assert scale.measured == pytest.approx(5)
    assert scale.simulated == pytest.approx(2)


def test_default_settings_have_the_default_stack() -> None:
    (row,) = run_cases(build_cases([(2, ROW)], read_rules(), {"stack": "ideal"}), executor="serial")
    (plain,) = run_cases(build_cases([(2, ROW)], read_rules()), executor="serial")

    assert row["simulated_s"] != row["default_s"] == plain["default_s"]
    assert row["default_error_pct"] == pytest.approx(100 * (row["default_s"] / row["measured_s"] - 1), abs=1e-3)


def test_finished_rows_are_taken_over_after_an_interruption(tmp_path: Path) -> None:
    journal = tmp_path / "errors.csv.journal"
    cases = build_cases([(2, ROW), (3, {**ROW, "seq": "2048"})], read_rules())
    first = run_cases(cases[:1], executor="serial", journal=journal)
    counts: list[tuple[int, int]] = []

    rows = run_cases(cases, executor="serial", journal=journal, progress=lambda *count: counts.append(count))

    assert counts == [(2, 4), (3, 4), (4, 4)]
    assert rows[0] == first[0]
    assert journal.exists()


def test_rules_for_published_sources_can_be_read() -> None:
    rules = read_rules()

    assert rules
    assert all(rule.where for rule in rules)


def test_rules_for_published_sources_hold_no_fitted_constant_of_a_model_or_a_row() -> None:
    fitted = {"attainable", "spread", "host", "imbalance"}
    given = {(key, "0 ms") for key in ("costs.host", "costs.host_action")}
    for rule in sorted(read_rules(), key=lambda rule: not set(rule.where) <= {"source", "gpu", "precision"}):
        result = {(key, value) for key, value in _leaves(rule.set) if any(name in key for name in fitted)}
        if set(rule.where) <= {"source", "gpu", "precision"}:
            given |= result
        assert result <= given, rule.where


def _leaves(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield path + key, value
