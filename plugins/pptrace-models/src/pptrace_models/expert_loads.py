"""Tokens of each expert, for each layer and microbatch, and the fullest devices that they lead to.

Loads are numbers relative to an even share, so that 1 is the mean of all experts of a layer. The devices of an
expert-parallel group wait for each other in every exchange, so the fullest one determines the time of a layer.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import pickle
import zipfile
from collections import OrderedDict
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from msgspec import Struct

from pptrace.plugin import ConfigError, nearest
from pptrace_models.transformer import LOAD_DISTRIBUTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from pptrace.plugin import CostRequest
    from pptrace_models.layer import Shard
    from pptrace_models.transformer import ExpertLoad, Transformer

    Floats = NDArray[np.float64]
    Int64s = NDArray[np.int64]


MOST_CLASSES, MOST_IN_PAIRS = 32, 6
"""The most kinds of microbatches with different costs, without and with overlapped pairs, which have an order for
each pair of kinds. Other microbatches have the costs of a similar one."""
_GRAIN = 100
"""Loads are rounded to hundredths of an even share, so that few layers differ."""
_KEY = "model.expert_load"
_SAMPLES = 64
"""Random routings of a workload, from which each layer and microbatch has one."""


class Loads(Struct, frozen=True):
    """Loads of the fullest devices of a step's microbatches."""

    received: Floats
    """Shape (kinds, layers): tokens of the fullest device's experts."""
    sent: Floats
    """Shape (kinds, layers): tokens that the device with the most tokens sends to experts."""
    kind_of: Int64s
    """Shape (microbatches,): the kind of each microbatch."""
    note: str
    """The loads in a sentence, for the detailed output."""
    origin: Mapping[str, Any]
    """What the loads were read from, and each kind of microbatch, for the metadata of traces."""

    @property
    def mean(self) -> tuple[Floats, Floats]:
        """Mean loads of all microbatches, received and sent, shape (layers,) each."""
        weights = np.bincount(self.kind_of, minlength=len(self.received)) / self.kind_of.size
        return _rounded(weights @ self.received), _rounded(weights @ self.sent)


def loads_of(model: Transformer, shard: Shard, request: CostRequest) -> Loads | None:
    """Return the loads of a step's microbatches; None where all experts have as many tokens.

    Raises:
        ConfigError: an invalid file, or loads of other experts, layers or steps.
    """
    load = model.expert_load
    if load is None or model.pads_experts:
        return None
    tokens = _Tokens.of(load, model, shard, load.step)
    kind_of = np.arange(request.microbatches) % len(tokens.experts)
    if tokens.is_random:
        kind_of = np.random.default_rng([load.seed, 2, load.step]).integers(
            len(tokens.experts), size=request.microbatches
        )
    used, kind_of = np.unique(kind_of, return_inverse=True)
    kept = tokens.experts[used]
    if model.capacity:
        kept = np.minimum(kept, model.capacity)
    placement, planned = _placement(load, model, shard, tokens)
    received = _of_devices(kept, placement, request.ep).max(axis=-1)
    sent = tokens.sources[used].max(axis=-1) * kept.mean(axis=-1)
    note = _note(kept, received, kind_of, planned)
    most = MOST_IN_PAIRS if request.has_pairs else MOST_CLASSES
    received, sent, kind_of = _grouped(_rounded(received), _rounded(sent), kind_of, most)
    if (received == 1).all() and (sent == 1).all():
        return None
    origin = _origin(load, received, sent, kind_of, tokens.sources[used])
    return Loads(received=received, sent=sent, kind_of=kind_of, note=note, origin=origin)


def _origin(load: ExpertLoad, received: Floats, sent: Floats, kind_of: Int64s, sources: Floats) -> dict[str, Any]:
    """Return the source of loads, the fullest devices of each kind, and the kind of each microbatch."""
    origin: dict[str, Any] = {"name": Path(load.name).name, "step": load.step}
    if load.name not in LOAD_DISTRIBUTIONS:
        origin["sha256"] = digest(Path(load.name))
    if sources.shape[-1] > 1:
        origin["source_rank"] = int(sources.mean(axis=(0, 1)).argmax())
    rows = zip(received.max(axis=1).tolist(), sent.max(axis=1).tolist(), strict=True)
    origin["kinds"] = [{"received": most_received, "sent": most_sent} for most_received, most_sent in rows]
    origin["microbatches"] = kind_of.tolist()
    return origin


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, or of the manifests and expert ids in a folder of traces."""
    if not path.is_dir():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    sha256 = hashlib.sha256()
    for manifest in sorted([*path.glob("manifest.json"), *path.glob("*/manifest.json")]):
        content = manifest.read_bytes()
        sha256.update(content)
        sha256.update((manifest.parent / json.loads(content)["tensors"]["expert_ids"]["file"]).read_bytes())
    return sha256.hexdigest()


def _rounded(loads: Floats) -> Floats:
    rounded: Floats = np.rint(loads * _GRAIN) / _GRAIN
    return rounded


def _grouped(received: Floats, sent: Floats, kind_of: Int64s, most: int) -> tuple[Floats, Floats, Int64s]:
    """Return the distinct kinds of microbatches, at most ``most``.

    Microbatches with similar sums over the layers form groups of equal size, and have the loads of the one in the
    middle of their group.
    """
    rows, distinct = np.unique(np.hstack([received, sent]), axis=0, return_inverse=True)
    kind_of = distinct.ravel()[kind_of]
    if len(rows) > most:
        order = np.argsort(rows[kind_of].sum(axis=1), kind="stable")
        groups = np.array_split(order, most)
        rows = rows[[kind_of[group[group.size // 2]] for group in groups]]
        kind_of = kind_of.copy()
        for number, group in enumerate(groups):
            kind_of[group] = number
    layers = received.shape[1]
    return rows[:, :layers], rows[:, layers:], kind_of


def _note(kept: Floats, received: Floats, kind_of: Int64s, planned: str) -> str:
    kind, layer = np.unravel_index(received.argmax(), received.shape)
    microbatch = np.argmax(kind_of == kind)
    return (
        f"Experts: the fullest device has {received.mean():.2f} times the mean tokens, "
        f"at most {received.max():.2f} (layer {layer}, microbatch {microbatch}); "
        f"the fullest expert {kept.max():.2f} times{planned}."
    )


class _Tokens(Struct, frozen=True):
    """Loads of experts."""

    experts: Floats
    """Shape (kinds of microbatches, layers, experts): tokens of each expert."""
    sources: Floats
    """Shape (kinds of microbatches, layers, sources): tokens from each device of the group; one for equal ones."""
    is_random: bool = False
    """Whether the kinds are draws; otherwise they are the microbatches of a file, in order."""

    @classmethod
    def of(cls, load: ExpertLoad, model: Transformer, shard: Shard, step: int) -> _Tokens:
        """Return the loads of a step, with a layer for each layer of the model and of multi-token prediction."""
        layers = model.layers + bool(model.mtp)
        if load.name in LOAD_DISTRIBUTIONS:
            group_tokens = shard.tokens * shard.ep * shard.etp // shard.tp
            experts = _drawn(load, model, group_tokens, layers, step)
            return cls(experts=experts, sources=np.ones((*experts.shape[:2], 1)), is_random=True)
        return _of_table(load.name, model, shard, step)


def _placement(load: ExpertLoad, model: Transformer, shard: Shard, tokens: _Tokens) -> tuple[Floats, str]:
    """Return the share of each expert's tokens on each slot's device, and how it was planned.

    The shape is (layers, devices, experts).
    """
    layers = tokens.experts.shape[1]
    if load.placement == "blocks":
        blocks = np.repeat(np.eye(shard.ep), model.num_experts // shard.ep, axis=1)
        return np.broadcast_to(blocks, (layers, *blocks.shape)), ""
    planned, text = tokens, "its own loads, which is an upper bound of the gain"
    if load.step > 0:
        planned, text = _Tokens.of(load, model, shard, load.step - 1), f"those of step {load.step - 1}"
    mean = planned.experts.mean(axis=0)
    plans: dict[bytes, Floats] = {}
    for row in mean:
        if row.tobytes() not in plans:
            plans[row.tobytes()] = balanced_placement(row, shard.ep, model.num_experts + load.redundant)
    return np.stack([plans[row.tobytes()] for row in mean]), f"; the placement is planned for {text}"


def balanced_placement(loads: Floats, devices: int, slots: int) -> Floats:
    """Return the share of each expert's tokens on each device, shape (devices, experts).

    Each slot beyond one per expert is a replica of the expert with the most tokens per replica. Then replicas are
    placed in order of decreasing load, each on the device with the fewest tokens among those with free slots.

    Source: the global policy of DeepSeek's expert parallelism load balancer (EPLB, 2025).

    >>> balanced_placement(np.array([3.0, 1.0, 1.0, 1.0]), devices=2, slots=6).tolist()
    [[0.6666666666666666, 1.0, 0.0, 0.0], [0.3333333333333333, 0.0, 1.0, 1.0]]
    """
    replicas = np.ones(loads.size, dtype=np.int64)
    for _ in range(slots - loads.size):
        replicas[np.argmax(loads / replicas)] += 1
    each = loads / replicas
    shares = np.zeros((devices, loads.size))
    tokens, free = np.zeros(devices), np.full(devices, slots // devices)
    for expert in np.repeat(np.argsort(-each, kind="stable"), replicas[np.argsort(-each, kind="stable")]):
        device = int(np.argmin(np.where(free > 0, tokens, np.inf)))
        shares[device, expert] += 1 / replicas[expert]
        tokens[device] += each[expert]
        free[device] -= 1
    return shares


def _of_devices(experts: Floats, placement: Floats, devices: int) -> Floats:
    """Return the loads of devices, shape (kinds, layers, devices), relative to an even share."""
    loads: Floats = np.einsum("kle,lde->kld", experts, placement) * (devices / experts.shape[2])
    return loads


def _drawn(load: ExpertLoad, model: Transformer, group_tokens: int, layers: int, step: int) -> Floats:
    """Return random loads, shape (kinds, layers, experts)."""
    count, top_k = model.num_experts, model.top_k
    if load.name == "uniform":
        return np.ones((1, layers, count))
    if load.name in _WORKLOADS:
        rng = np.random.default_rng([load.seed, int(load.name[1]), step])
        samples = _routings(rng, _WORKLOADS[load.name](count, top_k, group_tokens, step), top_k, count)
        return samples[rng.integers(len(samples), size=(MOST_CLASSES if len(samples) > 1 else 1, layers))]
    scores = np.random.default_rng([load.seed, 0]).normal(size=(1, layers, count))
    if load.drift:
        rng = np.random.default_rng([load.seed, 1, step])
        changing = rng.normal(size=(MOST_CLASSES, layers, count))
        scores = np.sqrt(1 - load.drift) * scores + np.sqrt(load.drift) * changing
    if load.name == "zipf":
        places = np.argsort(np.argsort(-scores, axis=-1), axis=-1)
        weights = (places + 1.0) ** -load.exponent
    else:
        weights = np.exp(load.sigma * scores)
    return _limited(weights / weights.mean(axis=-1, keepdims=True), count / top_k)


def _limited(loads: Floats, limit: float) -> Floats:
    """Return loads of at most ``limit``, as no expert has more tokens than there are; others take the excess."""
    while (loads > limit * (1 + 1e-9)).any():
        full = loads >= limit
        rest = loads.shape[-1] - limit * full.sum(axis=-1, keepdims=True)
        others = np.where(full, 0, loads)
        loads = np.where(full, limit, others * rest / np.maximum(others.sum(axis=-1, keepdims=True), 1e-300))
    return loads


_Pools = list[tuple[int, "Sequence[int]"]]
"""Numbers of tokens, and the experts that they choose from."""


def _hot(first: int, share: tuple[int, int]) -> Callable[[int, int, int, int], _Pools]:
    """Return a workload in which a share of all tokens chooses from a few experts, and the others from all."""

    def pools(experts: int, top_k: int, tokens: int, step: int) -> _Pools:
        width = max(top_k, experts // 4)
        start = step // 3 * width if first < 0 else first
        hot = tokens * share[0] // share[1]
        return [(hot, [(start + index) % experts for index in range(width)]), (tokens - hot, range(experts))]

    return pools


def _spread(experts: int, top_k: int, tokens: int, _step: int) -> _Pools:
    hot = tokens * 3 // 4
    pool = sorted({2 * index % experts for index in range(max(top_k, experts // 2))})
    return [(hot, pool if len(pool) >= top_k else range(experts)), (tokens - hot, range(experts))]


def _upper_half(experts: int, top_k: int, tokens: int, _step: int) -> _Pools:
    return [(tokens, range(experts // 2 if experts - experts // 2 >= top_k else 0, experts))]


_BURST_STEPS = 4
"""Steps of W7 from one burst to the next."""


def _burst(experts: int, top_k: int, tokens: int, step: int) -> _Pools:
    is_burst = step % _BURST_STEPS == _BURST_STEPS - 1
    return _hot(0, (1, 2) if is_burst else (0, 1))(experts, top_k, tokens, step)


_MOVING = -1
_WORKLOADS: dict[str, Callable[[int, int, int, int], _Pools]] = {
    "W0": lambda _experts, _top_k, _tokens, _step: [],
    "W1": _hot(0, (3, 4)),
    "W2": _hot(0, (3, 4)),
    "W3": _spread,
    "W4": _hot(0, (0, 1)),
    "W5": _upper_half,
    "W6": _hot(_MOVING, (3, 4)),
    "W7": _burst,
}
"""The workloads of NVIDIA/Megatron-LM pull request 7488, whose code gives W4 equal sources."""


def _routings(rng: np.random.Generator, pools: _Pools, top_k: int, experts: int) -> Floats:
    """Return samples of loads, shape (samples, experts), in which each token has ``top_k`` different experts."""
    if not pools:
        return np.ones((1, experts))
    counts = np.zeros((_SAMPLES, experts))
    for tokens, pool in pools:
        # Tokens by the number of experts that they still choose, from one expert of the pool to the next.
        choosing = np.zeros((_SAMPLES, top_k + 1), dtype=np.int64)
        choosing[:, top_k] = tokens
        for place, expert in enumerate(pool):
            chance = np.minimum(np.arange(top_k + 1) / (len(pool) - place), 1)
            chosen = rng.binomial(choosing, chance)
            counts[:, expert] += chosen.sum(axis=1)
            choosing -= chosen
            choosing[:, :-1] += chosen[:, 1:]
    counts *= experts / counts.sum(axis=1, keepdims=True)
    return counts


_COLUMNS = ("layer", "microbatch", "step", "expert", "tokens", "source")
_NEEDED = ("expert", "tokens")
_Table = dict[str, "Int64s"]
"""Columns of equal length by name; an absent column applies to all."""


def _of_table(name: str, model: Transformer, shard: Shard, step: int) -> _Tokens:
    """Return the loads of a step in a file or folder, for all layers of a model."""
    table = _read(name)
    rows = np.ones(table["tokens"].size, dtype=bool)
    if "step" in table:
        rows = table["step"] == step
        if not rows.any():
            steps = np.unique(table["step"])
            _refuse(f"has no step {step}, but {_listed(steps)}", "step")
    selected = {name: column[rows] for name, column in table.items()}
    unknown = np.flatnonzero(rows & (table["expert"] >= model.num_experts))
    if unknown.size:
        expert = table["expert"][unknown[0]]
        experts = f"there are {model.num_experts}, 0 to {model.num_experts - 1} (model.num_experts)"
        _refuse(f"{_row_text(name, int(unknown[0]))}: expert {expert}: {experts}")
    zeros = np.zeros(selected["tokens"].size, dtype=np.int64)
    layers, layer = np.unique(selected.get("layer", zeros), return_inverse=True)
    microbatches, microbatch = np.unique(selected.get("microbatch", zeros), return_inverse=True)
    counts = np.zeros((microbatches.size, layers.size, model.num_experts))
    np.add.at(counts, (microbatch, layer, selected["expert"]), selected["tokens"])
    totals = counts.sum(axis=-1, keepdims=True)
    if not totals.all():
        lacking = np.argwhere(totals[..., 0] == 0)[0]
        _refuse(f"has no tokens in layer {layers[lacking[1]]} of microbatch {microbatches[lacking[0]]}")
    sources = np.ones((*counts.shape[:2], 1))
    if "source" in selected:
        source_count = int(selected["source"].max()) + 1
        if source_count != shard.ep:
            _refuse(f"has {source_count} sources, and parallel.ep is {shard.ep}: give one per device of a group")
        sources = np.zeros((*counts.shape[:2], source_count))
        np.add.at(sources, (microbatch, layer, selected["source"]), selected["tokens"])
        sources *= source_count / totals
    places = _layer_places(layers, model) if "layer" in selected else [0] * (model.layers + bool(model.mtp))
    loads = counts * model.num_experts / totals
    return _Tokens(experts=loads[:, places], sources=sources[:, places])


def _row_text(name: str, index: int) -> str:
    """Return a file with the row of a value as text; rows count from 1, with the head of a CSV file."""
    if Path(name).suffix.lower() == ".csv":
        lines = Path(name).read_text(encoding="utf-8").splitlines()
        filled = [number for number, line in enumerate(lines, 1) if line.partition("#")[0].strip()]
        return f"{name}: row {filled[index + 1]}"
    return name if Path(name).is_dir() else f"{name}: row {index + 1}"


def _layer_places(layers: Int64s, model: Transformer) -> list[int]:
    """Return the place in ``layers`` of each layer of a model; multi-token prediction can have the last one's."""
    place_of = {number: place for place, number in enumerate(layers.tolist())}
    count = model.layers + bool(model.mtp)
    missing = [index for index in range(model.layers) if model.layer(index).experts and index not in place_of]
    if missing:
        _refuse(f"has no layer {missing[0]}, which has experts; it has {_listed(layers)} (the first layer is 0)")
    last = place_of[max(place_of)]
    return [place_of.get(index, last) for index in range(count)]


def _listed(numbers: Int64s) -> str:
    return f"{numbers[0]}" if numbers.size == 1 else f"{numbers[0]} to {numbers[-1]}"


def _refuse(message: str, key: str = "name") -> NoReturn:
    raise ConfigError(message, key=f"{_KEY}.{key}")


def _read(name: str) -> _Table:
    """Return the columns of a file, or of a folder with traces of Megatron-LM.

    Raises:
        ConfigError: it cannot be read, or has other columns.
    """
    path = Path(name)
    try:
        if path.is_dir():
            return _read_traces(path)
        stamp = path.stat()
    except OSError as error:
        hint = nearest(name, LOAD_DISTRIBUTIONS)
        _refuse(f"{name} cannot be read ({error.strerror}), and is not a distribution{hint}")
    return _read_file(path, stamp.st_mtime_ns, stamp.st_size)


@lru_cache(maxsize=4)
def _read_file(path: Path, _changed_ns: int, _size: int) -> _Table:
    """Return the columns of a CSV or Parquet file; the other arguments tell versions of the file apart."""
    if path.suffix.lower() == ".parquet":
        columns = _parquet(path)
    elif path.suffix.lower() == ".csv":
        columns = _csv(path)
    else:
        _refuse(f"{path} is not a table: give a .csv or .parquet with columns {', '.join(_COLUMNS)}, or a folder")
    missing = [column for column in _NEEDED if column not in columns]
    if missing:
        _refuse(f"{path} has no column {missing[0]}; its columns are {', '.join(columns) or 'none'}")
    table = {name: np.asarray(column) for name, column in columns.items() if name in _COLUMNS}
    if not table["tokens"].size:
        _refuse(f"{path} has no rows")
    for column, values in table.items():
        if not np.issubdtype(values.dtype, np.integer):
            _refuse(f"{path}: column {column} is not of whole numbers from 0")
        negative = np.flatnonzero(values < 0)
        if negative.size:
            value = values[negative[0]]
            _refuse(f"{_row_text(str(path), int(negative[0]))}: {column} is {value}: write a whole number from 0")
    return {name: values.astype(np.int64) for name, values in table.items()}


def _csv(path: Path) -> dict[str, ArrayLike]:
    try:
        head, _, body = path.read_text(encoding="utf-8").partition("\n")
        names = [name.strip() for name in next(csv.reader([head]), [])]
        values = np.loadtxt(io.StringIO(body), delimiter=",", dtype=np.int64, ndmin=2) if body.strip() else None
    except ValueError as error:
        reason = str(error).partition(";")[0].replace("\n", " ")
        _refuse(f"{path} is not a table of whole numbers: {reason}")
    if values is None:
        return {name: np.zeros(0, dtype=np.int64) for name in names}
    if values.shape[1] != len(names):
        _refuse(f"{path} has {len(names)} names of columns for {values.shape[1]} columns")
    return dict(zip(names, values.T, strict=True))


def _parquet(path: Path) -> dict[str, ArrayLike]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        _refuse(f"{path} needs pyarrow: pip install pyarrow, or name a .csv")
    try:
        table = pq.read_table(path)
        return {name: table.column(name).to_numpy() for name in table.column_names}
    except (OSError, pa.ArrowException) as error:
        _refuse(f"{path} is no Parquet file: {str(error).splitlines()[0]}")


def _read_traces(folder: Path) -> _Table:
    """Return the loads of a folder with a trace, or with folders with one trace each.

    A trace has ``manifest.json`` and a tensor of expert ids for each token (trace v1 of the token-imbalance
    benchmark in NVIDIA/Megatron-LM pull request 7488). A single trace applies to all layers and microbatches.
    """
    manifests = [folder / "manifest.json"] if (folder / "manifest.json").is_file() else []
    manifests = manifests or sorted(folder.glob("*/manifest.json"))
    if not manifests:
        _refuse(f"{folder} has no trace of Megatron-LM: no manifest.json in it or in its folders")
    traces: dict[tuple[int, int, int], tuple[Path, Int64s]] = {}
    for manifest in manifests:
        key, counts = _read_trace(manifest)
        if key in traces:
            layer, microbatch, step = key
            place = f"layer {layer}, microbatch {microbatch} and step {step}"
            _refuse(f"{manifest.parent} and {traces[key][0]} are both of {place}: name the folder of one")
        traces[key] = manifest.parent, counts
    experts = [counts.size for _, counts in traces.values()]
    table = {
        name: np.repeat([key[place] for key in traces], experts)
        for place, name in enumerate(("layer", "microbatch", "step"))
    }
    table = {name: column for name, column in table.items() if len({*column.tolist()}) > 1}
    table["expert"] = np.concatenate([np.arange(count) for count in experts])
    table["tokens"] = np.concatenate([counts for _, counts in traces.values()])
    return table


def _read_trace(manifest: Path) -> tuple[tuple[int, int, int], Int64s]:
    """Return layer, microbatch and step of a trace, and the tokens of each expert."""
    try:
        content = json.loads(manifest.read_text(encoding="utf-8"))
        places = (content["logical_layer_id"], content["microbatch_id"], content["step_id"])
        ids = read_tensor(manifest.parent / content["tensors"]["expert_ids"]["file"])
        return places, np.bincount(ids.ravel(), minlength=int(content["num_experts"]))
    except (OSError, ValueError, KeyError, TypeError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        hint = "convert it to a .csv with columns layer, microbatch, step, expert and tokens"
        _refuse(f"{manifest.parent} is not a trace v1 of Megatron-LM ({type(error).__name__}: {error}): {hint}")


_DTYPES = {"LongStorage": np.int64, "IntStorage": np.int32}


def read_tensor(path: Path) -> Int64s:
    """Return a contiguous tensor of integers from a file of ``torch.save``, without PyTorch.

    Raises:
        ValueError: the file has something else.
        pickle.UnpicklingError: the file names anything but a plain tensor.
    """
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        pickled = next((name for name in names if name.endswith("/data.pkl")), None)
        if pickled is None:
            raise ValueError(f"{path.name} is not a tensor")
        root = pickled.removesuffix("data.pkl")
        order = f"{root}byteorder"
        if order in names and archive.read(order) != b"little":
            raise ValueError(f"{path.name} is not little-endian")
        reader = _TensorReader(io.BytesIO(archive.read(pickled)))
        reader.storage = lambda key, dtype: np.frombuffer(archive.read(f"{root}data/{key}"), dtype=dtype)
        tensor = reader.load()
    if isinstance(tensor, np.ndarray):
        return tensor
    raise ValueError(f"{path.name} is not a plain tensor")


class _TensorReader(pickle.Unpickler):
    """Reads a plain tensor, and refuses everything else that a pickle can name."""

    storage: Callable[[str, type], NDArray[Any]]

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and name in _DTYPES:
            return name
        raise pickle.UnpicklingError(f"{module}.{name} is not part of a tensor of integers")

    def persistent_load(self, pid: Any) -> Any:
        _, storage, key, *_ = pid
        return self.storage(str(key), _DTYPES[storage])


def _tensor(
    storage: NDArray[Any], offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any
) -> NDArray[Any]:
    if any(step != int(np.prod(size[place + 1 :])) for place, step in enumerate(stride)):
        raise ValueError("the tensor is not contiguous")
    return storage[offset : offset + int(np.prod(size))].reshape(size)
