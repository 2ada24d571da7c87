"""Kernels take what their shapes say: waves of tiles, blocks of attention, bytes; jobs wait for the slowest."""

from __future__ import annotations

import csv
import json
import re
from itertools import pairwise
from math import ceil, pi, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pptrace.plugin import ConfigError, Kind
from pptrace_models.kernel_times import Shaped, expected_maximum, row_tiles, shaped_ns
from pptrace_models.layer import Cast, Core, Product, Work
from pptrace_models.plugin import pptrace_devices
from pptrace_models.stages import partition
from pptrace_models.transformer import Transformer, checked

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.plugin import Workload

MEASURED = Path(__file__).parents[4] / "shared" / "data" / "kernel-efficiency" / "a100_pcie.json"
IDEAL = {
    "peak_bf16": 10**14, "peak_fp8": 2 * 10**14, "peak_fp32": 10**13, "memory": 2**40, "memory_bandwidth": 10**16,
    "memory_efficiency": 1.0, "memory_latency": 0, "launch_latency": 0, "scale_up_bandwidth": 10**12,
    "multiprocessors": 100, "attainable_bf16": 1.0, "attainable_fp8": 1.0, "attention_attainable": 1.0,
}  # fmt: skip
SIZES = st.integers(1, 4096).map(lambda size: 8 * size)


def device(**values: Any) -> Shaped:
    return checked(Shaped, IDEAL | values, "device")


def product_ns(m: int, n: int, k: int, *, on: Shaped | None = None, precision: Any = "bf16", **more: Any) -> int:
    one = Product(m=m, n=n, k=k, **more)
    work = Work(flops=2 * one.copies * m * n * k, size_bytes=1, products=(one,))
    return shaped_ns(work, "linear", precision, on or device())


def test_a_last_wave_takes_as_long_as_a_full_one() -> None:
    wave = 2 * 256 * 128 * (4096 + 128) * 1e9 / (10**14 / 100)

    assert product_ns(256 * 10, 128 * 10, 4096) == ceil(wave)
    assert product_ns(256 * 10, 128 * 20, 4096) == ceil(2 * wave)
    assert wave < product_ns(256 * 10, 128 * 11, 4096) <= 2 * wave


def test_a_product_is_no_faster_than_its_bytes() -> None:
    slow = device(memory_bandwidth=10**9)

    assert product_ns(1024, 1024, 1024, on=slow) == 3 * 2 * 1024 * 1024
    assert product_ns(1024, 1024, 1024, on=slow, result_bytes=8) == (2 * 2 + 8) * 1024 * 1024


def test_sizes_that_are_not_aligned_take_longer() -> None:
    assert product_ns(4096, 4096, 108) > 1.8 * product_ns(4096, 4096, 112)
    assert product_ns(4096, 4096, 108, uneven_depth=True) <= product_ns(4096, 4096, 112)


def test_unaligned_heads_are_multiplied_without_tensor_cores() -> None:
    """At 0.56 of the FP32 peak, unless it is unknown."""
    known, flops = device(peak_fp32=10**13), 2 * 16 * 2048 * 2048 * 108
    assert product_ns(2048, 2048, 108, copies=16, on=known) == pytest.approx(flops / 5.6e3, rel=1e-6)
    assert product_ns(2048, 2048, 112, copies=16, on=known) < flops / 5.6e3 / 4
    unknown = device(peak_fp32=None)
    assert product_ns(2048, 2048, 108, copies=16, on=unknown) < 3 * product_ns(
        2048, 2048, 112, copies=16, on=unknown
    )


def test_a_product_in_fp8_also_takes_the_time_of_its_cast() -> None:
    cast, slow = Cast(elements=4096 * 4096), device(memory_bandwidth=10**12)
    plain = product_ns(4096, 4096, 4096, precision="fp8", on=slow)

    assert product_ns(4096, 4096, 4096, precision="fp8", on=slow, cast=cast) - plain == pytest.approx(
        4096 * 4096 * 4 / 1e3, abs=1
    )
    assert plain < product_ns(4096, 4096, 4096) == product_ns(4096, 4096, 4096, cast=cast)


@given(m=SIZES, n=SIZES, k=SIZES)
def test_products_are_never_faster_than_the_device_attains(m: int, n: int, k: int) -> None:
    assert product_ns(m, n, k) >= 2 * m * n * k / 1e5 * (1 - 1e-9)


@given(m=SIZES, n=SIZES, k=SIZES)
def test_twice_the_rows_take_at_least_as_long_and_at_most_twice(m: int, n: int, k: int) -> None:
    once, twice = product_ns(m, n, k), product_ns(2 * m, n, k)

    assert once <= twice <= 2 * once + 1


def test_attention_fills_the_device_with_blocks_and_narrow_heads_attain_less() -> None:
    def rate(heads: int, width: float = 128.0, *, backward: bool = False) -> float:
        core = Core(heads=heads, queries=4096, keys=4096, width=width, backward=backward)
        flops = int(4 * heads * 4096 * 4096 * width)
        return flops / shaped_ns(Work(flops=flops, size_bytes=1, core=core), "attention", "bf16", device())

    assert rate(25) > rate(4) > rate(1)  # 800, 128 and 32 blocks for 100 multiprocessors
    assert rate(1) == pytest.approx(0.32 * rate(25), rel=1e-4)
    assert rate(25, 64.0) == pytest.approx(rate(25) * 64 / 160 * 1.75, rel=1e-4)
    assert rate(25, backward=True) == pytest.approx(0.65 * rate(25), rel=1e-4)


@pytest.mark.parametrize("content", ["[]", '{"accelerator": {"op": [1]}}', "[" * 100_000])
def test_files_that_hold_no_table_are_refused(
    costs: Callable[..., Workload], tmp_path: Path, content: str
) -> None:
    file = tmp_path / "table.json"
    file.write_text(content)

    with pytest.raises(ConfigError, match=r"holds no accelerator\.op\.matmul"):
        costs(options={"kernels": "shapes", "kernel_table": str(file)})


@pytest.mark.skipif(not MEASURED.exists(), reason="the measured products are not part of this repository")
def test_products_measured_on_an_a100_are_met_within_five_percent() -> None:
    content = json.loads(MEASURED.read_text())["accelerator"]["op"]["matmul"]["accurate_efficient_factor"]
    pcie = device(
        peak_bf16=312 * 10**12, memory_bandwidth=1_935 * 10**9, memory_efficiency=0.8, multiprocessors=108,
        attainable_bf16=0.78,
    )  # fmt: skip
    errors = []
    for text, share in content.items():
        m, k, n = (int(re.findall(rf"{name}=(\d+)", text)[0]) for name in "mkn")
        took = 2 * m * n * k * 1e9 / (312e12 * share)
        written = 8 if "accumulate=True" in text else 2
        errors.append(abs(product_ns(m, n, k, on=pcie, result_bytes=written) / took - 1))

    assert len(errors) == 183
    assert sum(errors) / len(errors) < 0.05


def test_kernels_of_layers_measured_on_an_h100_take_what_the_device_attains() -> None:
    """``benchmarks/measure_gpu.py`` on an H100 SXM with PyTorch 2.11, at its limit of 700 W."""
    h100 = next(item for item in pptrace_devices() if item.name == "h100-sxm")
    attains = checked(Shaped, h100.values, "device")
    flash_2 = attains.model_copy(update={"attention_attainable": attains.attention_flash_2})
    errors: dict[str, list[float]] = {"bf16": [], "fp8": [], "fused": [], "flash-2": [], "dropout": []}
    with (Path(__file__).parent / "data" / "h100_kernels.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            m, n, k = (int(row[name]) for name in "mnk")
            backward, attention = row["kernel"].startswith("I"), row["attention"]
            if row["kernel"].endswith("attention"):
                flops = (2 if backward else 1) * 4 * m * n * n // 2 * k
                core = Core(
                    heads=m, queries=n, keys=n // 2, width=k, backward=backward, dropout=attention == "dropout"
                )
                on = flash_2 if attention == "flash-2" else attains
                took = shaped_ns(Work(flops=flops, size_bytes=1, core=core), "attention", "bf16", on)
                kind = attention if k == 128 else ""  # cuDNN's backward is slow for heads of 192
            elif row["kernel"][1] == " ":
                took, kind = product_ns(m, n, k, on=attains, precision=row["precision"]), row["precision"]
            else:
                continue
            errors.setdefault(kind, []).append(took / float(row["us"]) / 1e3 - 1)

    assert [len(errors[kind]) for kind in ("bf16", "fp8", "fused")] == [192, 84, 24]
    found = {kind: (np.mean(values), np.mean(np.abs(values))) for kind, values in errors.items()}
    assert found["bf16"] == pytest.approx((0.035, 0.04), abs=0.015)
    assert found["fp8"] == pytest.approx((0.01, 0.03), abs=0.015)
    for kind in ("fused", "flash-2", "dropout"):
        assert found[kind] == pytest.approx((0, 0.06), abs=0.06), kind


def test_rows_that_chance_deals_out_take_tiles_in_expectation() -> None:
    even, dealt = (Product(m=1024, n=256, k=512, copies=32, uneven=uneven) for uneven in (False, True))
    drawn = np.ceil(np.random.default_rng(7).normal(1024, sqrt(1024), 100_000) / 128).mean()

    assert row_tiles(even, 128) == 8
    assert row_tiles(dealt, 128) == pytest.approx(drawn, abs=0.01)
    assert product_ns(1024, 2048, 512, copies=320, uneven=True) > 1.05 * product_ns(1024, 2048, 512, copies=320)


def test_gathered_rows_and_narrow_attention_take_what_was_measured() -> None:
    slow = device(memory_bandwidth=10**12)
    plain, rows = (shaped_ns(Work(size_bytes=10**9, by_row=way), "memory", "bf16", slow) for way in (False, True))
    cores = [Core(heads=100, queries=4096, keys=4096, width=128.0, narrow=narrow) for narrow in (False, True)]
    wide, narrow = (shaped_ns(Work(flops=10**12, core=item), "attention", "bf16", device()) for item in cores)

    assert rows == pytest.approx(plain / 0.66, rel=1e-3)
    assert wide == pytest.approx(narrow * 1.36, rel=1e-3)


@pytest.mark.parametrize(
    ("attention", "moved", "kernels"),
    [
        ({}, 2 * 2 * 4096, 2),
        ({"kv_heads": 8}, 2 * (4096 + 1024) + 2 * (4096 + 1024), 4),  # copies of queries and values
        ({"kv_rank": 512, "rope_dim": 64, "head_dim": 128}, 32 * (2 * 64 + 256 + 320), 2),
    ],
)
def test_only_kernels_by_shape_count_rotary_embeddings(
    costs: Callable[..., Workload], attention: dict[str, Any], moved: int, kernels: int
) -> None:
    wide = {"hidden": 4096, "heads": 32, "ffn": 16384, "flash_attention": True} | attention
    plain, turned, *groups = (
        costs(wide | {"learned_positions": positions}, options=options)
        for options in ({"kernels": "shapes"}, {}) for positions in (64, 0)
    )  # fmt: skip

    one = 2048 * moved * 2 * 1e9 / (3350e9 * 0.8) + kernels * 5_000
    assert turned.f_ns[1] - plain.f_ns[1] == pytest.approx(2 * one, rel=1e-3)
    assert (groups[0].f_ns[1:] == groups[1].f_ns[1:]).all()


def test_a_block_of_queries_takes_the_time_of_further_keys() -> None:
    windowed, causal = (
        shaped_ns(Work(flops=10**12, core=core), "attention", "bf16", device())
        for core in (Core(heads=100, queries=4096, keys=keys, width=128.0) for keys in (126, 2048))
    )

    assert windowed / causal == pytest.approx((1 + 576 / 126) / (1 + 576 / 2048), rel=1e-4)


def test_only_the_backward_in_mxfp8_computes_scores_outside_of_windows(costs: Callable[..., Workload]) -> None:
    common = {"hidden": 4096, "heads": 32, "ffn": 16384, "flash_attention": True, "precision": "mxfp8"}
    (whole, window), (narrow_whole, narrow_window) = (
        [
            costs(common | {"fp8_attention": narrow, "window": width}, "b200", options={"kernels": "shapes"})
            for width in (0, 128)
        ]
        for narrow in (False, True)
    )

    assert window.f_ns[1] < whole.f_ns[1]
    assert window.i_ns[1] < whole.i_ns[1]
    assert narrow_window.f_ns[1] < narrow_whole.f_ns[1]
    assert narrow_window.i_ns[1] == narrow_whole.i_ns[1]


def test_norms_of_heads_read_and_write_queries_and_keys(costs: Callable[..., Workload]) -> None:
    wide = {"hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 16384, "flash_attention": True}
    plain, normed = (costs(wide | {"head_norms": norms}, options={"kernels": "shapes"}) for norms in (False, True))

    for column, passes in (("f_ns", 2), ("i_ns", 3)):
        one = passes * 2048 * (4096 + 1024) * 2 * 1e9 / (3350e9 * 0.8 * 0.66) + 2 * 5_000
        taken = getattr(normed, column)[1] - getattr(plain, column)[1]
        assert taken == pytest.approx(2 * one, rel=1e-3)


def table(tmp_path: Path, tflops: float, entries: dict[str, float]) -> str:
    matmul = {"tflops": tflops, "accurate_efficient_factor": entries}
    file = tmp_path / "table.json"
    file.write_text(json.dumps({"accelerator": {"op": {"matmul": matmul}}}))
    return str(file)


def test_measured_products_go_first(costs: Callable[..., Workload], tmp_path: Path) -> None:
    sizes = "b=1, m=2048, k=1024, n=4096, layout=TN, accumulate=False, out_dtype=bf16"  # up, forward
    file = table(tmp_path, 989.5, {sizes: 0.01})
    plain, measured = (costs(options={"kernels": "shapes"} | more) for more in ({}, {"kernel_table": file}))
    wide = costs(options={"kernels": "shapes", "kernel_table": file, "spread": 0.05})

    one = 2 * 2048 * 1024 * 4096 * 1e9 / (989.5e12 * 0.01)
    assert 2 * one * 0.95 < measured.f_ns[1] - plain.f_ns[1] < 2 * one
    assert (wide.f_ns > measured.f_ns * (1 + 0.04 * expected_maximum(4))).all()


@pytest.mark.parametrize(
    ("tflops", "entries", "reason"),
    [
        (312, {}, "is of another device: its peak is 312 TFLOP/s, that of this one 989.5"),
        (989.5, {"b=1, m=1": 0.5}, "holds no accelerator.op.matmul"),
        (989.5, {"b=1, m=1, k=1, n=1": 1.5}, "not between 0 and 1"),
    ],
)
def test_tables_that_cannot_be_used_are_refused(
    costs: Callable[..., Workload], tmp_path: Path, tflops: float, entries: dict[str, float], reason: str
) -> None:
    file = table(tmp_path, tflops, entries)

    with pytest.raises(ConfigError, match=reason):
        costs(options={"kernels": "shapes", "kernel_table": file})
    with pytest.raises(ConfigError, match="need kernels: shapes"):
        costs(options={"kernel_table": file})
    with pytest.raises(ConfigError, match="cannot be read"):
        costs(options={"kernels": "shapes", "kernel_table": str(tmp_path / "none.json")})


@pytest.mark.skipif(not MEASURED.exists(), reason="the measured products are not part of this repository")
def test_the_measured_file_is_read_as_it_is(costs: Callable[..., Workload]) -> None:
    workload = costs({}, "a100-sxm", options={"kernels": "shapes", "kernel_table": str(MEASURED)})

    assert (workload.f_ns > 0).all()


def test_small_microbatches_are_less_efficient(costs: Callable[..., Workload]) -> None:
    model = {"hidden": 14336, "heads": 64, "ffn": 4 * 14336, "layers": 4}
    per_sequence = [
        int(costs(model, "a100-sxm", tp=8, micro=micro, options={"kernels": "shapes"}).f_ns[1]) / micro
        for micro in (1, 2, 4, 8)
    ]

    assert all(smaller > larger for smaller, larger in pairwise(per_sequence))
    assert per_sequence[0] > 1.08 * per_sequence[-1]


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("flash", [True, False])
def test_segments_sum_to_what_actions_take(costs: Callable[..., Workload], recompute: str, *, flash: bool) -> None:
    model = {"recompute": recompute, "flash_attention": flash}
    whole = costs(model, tp=2, options={"kernels": "shapes"})
    parts = costs(model, tp=2, options={"kernels": "shapes", "segments": True})

    for kind in (Kind.F, Kind.B, Kind.I, Kind.W):
        # Norms are split in two halves, each rounded on its own.
        assert abs(whole.duration_ns(kind) - parts.duration_ns(kind)).max() <= 2 * 8
    assert (whole.f_ns == whole.f_ns[1]).sum() >= 2


@pytest.mark.parametrize("name", [offer.name for offer in pptrace_devices()])
def test_every_preset_takes_shapes(costs: Callable[..., Workload], name: str) -> None:
    workload = costs({}, name, options={"kernels": "shapes"})

    assert (workload.f_ns > 0).all()
    assert (workload.b_ns == workload.i_ns + workload.w_ns).all()


def test_the_expected_maximum_is_that_of_normal_numbers() -> None:
    assert expected_maximum(1) == pytest.approx(0, abs=1e-9)
    assert expected_maximum(2) == pytest.approx(1 / sqrt(pi))
    assert expected_maximum(3) == pytest.approx(1.5 / sqrt(pi))
    drawn = np.random.default_rng(1).standard_normal((4_000, 256)).max(axis=1)
    assert expected_maximum(256) == pytest.approx(drawn.mean(), abs=0.03)
    assert expected_maximum(2048) == pytest.approx(3.435, abs=0.01)


def test_computation_waits_for_the_slowest_of_the_job_s_devices(costs: Callable[..., Workload]) -> None:
    even, wide = costs(dp=2, tp=2), costs(dp=2, tp=2, options={"spread": 0.02})

    more = 1 + 0.02 * expected_maximum(4 * 2 * 2)
    own, slowed = (item.f_ns - item.f_collective_ns for item in (even, wide))
    assert (wide.f_collective_ns == even.f_collective_ns).all()
    assert slowed[1] / own[1] == pytest.approx(more, rel=0.05)  # latencies stay
    assert wide.peak_flops == even.peak_flops


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("model", [{}, {"recompute": "full"}])
def test_blocking_launches_add_the_time_of_the_host(
    costs: Callable[..., Workload], model: dict[str, Any], *, segments: bool
) -> None:
    sizes: dict[str, Any] = {"model": model, "tp": 4}
    options = {"kernels": "shapes", "segments": segments}
    overlapped, blocking = (
        costs(**sizes, options={**options, "host_kernel": 1_000, "blocking_launches": waits})
        for waits in (False, True)
    )
    host_ns = blocking.f_ns[1] - overlapped.f_ns[1]
    assert host_ns % (2 * 1_000) == 0  # two layers of as many kernels
    assert 2 * 1_000 * 10 < host_ns < 2 * 1_000 * 50
    assert blocking.b_ns[1] - overlapped.b_ns[1] == (3 if model else 2) * host_ns


def test_shares_of_messages_are_sent_where_sequences_are_whole(costs: Callable[..., Workload]) -> None:
    whole, shares = costs(tp=4), costs(tp=4, options={"scatter_gather": True})

    assert (whole.boundary_bytes == 4 * shares.boundary_bytes).all()
    split = costs(tp=4, sequence_parallel=True, options={"scatter_gather": True})
    assert (split.boundary_bytes == shares.boundary_bytes).all()


def test_gradients_that_are_added_apart_lengthen_the_weight_gradient(costs: Callable[..., Workload]) -> None:
    fused, apart = costs(), costs(options={"accumulation": "separate"})

    added = apart.w_ns - fused.w_ns
    rate = 3_350e9 * 0.8
    assert added[1] == pytest.approx(fused.weights_bytes[1] / 2 * (2 + 8) * 1e9 / rate + 1_000, rel=1e-3)
    assert (apart.b_ns - fused.b_ns == added).all()
    with pytest.raises(ConfigError, match="separate has no segment"):
        costs(options={"accumulation": "separate", "segments": True})


@pytest.mark.parametrize(
    ("layers", "stages", "split"), [(30, 32, [0, *[1] * 30, 0]), (3, 4, [1, 1, 1, 0]), (1, 2, [1, 0])]
)
def test_embedding_and_head_may_have_a_stage_to_themselves(
    classic: dict[str, Any], layers: int, stages: int, split: list[int]
) -> None:
    assert partition(checked(Transformer, classic | {"layers": layers}, "model"), stages) == split
