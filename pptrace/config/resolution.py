"""Resolution of a configuration: file, overrides and derived sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial, reduce
from os import PathLike
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace
from pydantic import BaseModel

from pptrace.config.choices import Reshard
from pptrace.config.overrides import Assignment, assignments, overlaid, plain
from pptrace.config.places import Document, Place, Places, error_at, key_text, record
from pptrace.config.schema import DEFAULT_COSTS, Experiment, PointToPoint, ScheduleChoice, grid_key, is_yaml_file
from pptrace.config.validation import merged, validate_options
from pptrace.errors import ConfigError, divisors_near, nearest
from pptrace.memo import is_memoizing, memoized

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

Model = TypeVar("Model", bound=BaseModel)

_NO_FLAGS: Mapping[str, Any] = MappingProxyType({})
_OPTIONS_APART = (ScheduleChoice, PointToPoint)
"""Sections whose plugins' options stand under a key of their own."""

Config: TypeAlias = str | Path | Mapping[str, Any]
"""A YAML file, or its content."""

_NO_SCHEDULE = {"schedule": {"name": "none"}}
"""The only section without a default."""
_SECTION_ROWS = 100
"""Rows of a memo that take as much memory as a section."""
_MAPPING = "config"
"""The source of values from a mapping instead of a file."""


class Resolved(Struct, frozen=True, kw_only=True):
    """An experiment with all derived values, and the origin of each value."""

    experiment: Experiment
    """The values, with defaults and derived numbers."""
    positions: Places
    """Places of the keys that users wrote."""
    origins: Mapping[str, str]
    """Origins of other values; defaults are absent."""
    file: str
    """The configuration file as the user named it, or nothing."""
    written: Document = field(default_factory=Document)
    """The file with its overrides, without derived values."""

    def origin(self, key: str) -> str:
        """Return the origin of a value: ``step.yaml:3``, ``--pp``, ``preset NAME``, ``default``."""
        return str(self.positions.get(key) or self.origins.get(key, "default"))

    def error(self, key: str, message: str) -> ConfigError:
        """Return an error about a key at its place, or at that of the nearest key above it."""
        return error_at(key, message, self.positions, self.file)

    def options(
        self, key: str, model: type[Model], preset: Mapping[str, Any] = _NO_FLAGS
    ) -> tuple[Resolved, Model]:
        """Check the options of a section against a plugin's parameter model.

        Args:
            key: ``model``, ``device``, ``network`` or ``costs``, or ``schedule`` or ``p2p`` for their ``options``.
            model: the parameter model.
            preset: values under those that the user wrote; plain integers are bytes, bytes/s, ns or FLOP/s.

        Returns:
            This with every parameter filled in and its origin noted, and the checked parameters.

        Raises:
            ConfigError: a parameter that is unknown, missing or of another type.
        """
        section = getattr(self.experiment, key)
        apart = isinstance(section, _OPTIONS_APART)
        prefix = f"{key}.options" if apart else key
        values = section.options if apart else section.values if section else {}

        def fill() -> tuple[BaseModel | None, dict[str, str], Model]:
            checked = validate_options(model, merged(preset, values), prefix, self.positions, file=self.file)
            label = f"preset {getattr(section, 'preset', None)}"
            user_values = leaves_by_key(values, prefix)
            origins = {key: label for key in leaves_by_key(preset, prefix) if key not in user_values}
            filled = checked.model_dump(mode="json", by_alias=True)
            if apart:
                return section.model_copy(update={"options": filled}), origins, checked
            if section is None:
                return None, origins, checked
            keys = section.model_dump(include=set(type(section).model_fields))
            return type(section).model_validate({**filled, **keys}), origins, checked

        # Whether a quantity can be an integer depends on which keys the user wrote.
        written = tuple(name for name in self.positions if name.startswith(prefix))
        filled, origins, checked = memoized(
            fill, ("options", key, repr(preset), written), model, section, rows=_SECTION_ROWS
        )
        return self.with_section(key, filled, origins), checked

    def without_chunks(self) -> Resolved:
        """Return a copy without the user's ``parallel.vp``."""
        positions = {key: place for key, place in self.positions.items() if key != "parallel.vp"}
        return replace(self.with_values("parallel", {"vp": 1}), positions=positions)

    def explain(self) -> list[tuple[str, Any, str]]:
        """Return every key, its value and its origin, in the order of the experiment."""
        leaves = leaves_by_key({name: plain_section(section) for name, section in self.sections()})
        return [(key, value, self.origin(key)) for key, value in leaves.items()]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON that :func:`load` reads again; absolute paths keep their last part."""
        plain: dict[str, Any] = _portable({name: plain_section(section) for name, section in self.sections()})
        if is_yaml_file(plain.get("stack", "")):  # its values are filled in
            del plain["stack"]
        return plain

    def with_section(self, key: str, section: Any, origins: Mapping[str, str] = _NO_FLAGS) -> Resolved:
        """Return this with a whole section in place of another, and the origins of its keys."""
        experiment = self.experiment.model_copy(update={key: section})
        return replace(self, experiment=experiment, origins={**self.origins, **origins})

    def with_values(self, key: str, values: Mapping[str, Any], origin: str = "default") -> Resolved:
        """Return this with other values in a section, and their origin."""
        section = getattr(self.experiment, key)
        fields = type(section).model_fields
        origins = {f"{key}.{fields[name].alias or name}": origin for name in values}
        changed = memoized(
            lambda: section.model_copy(update=values), ("values", key, repr(values)), section, rows=_SECTION_ROWS
        )
        return self.with_section(key, changed, origins)

    def with_key(self, key: str, value: Any, origin: str) -> Resolved:
        """Return this with the value of one key of a section that takes any subset of its keys, and its origin.

        Raises:
            ConfigError: a value that the key cannot have.
        """
        name, *path = key.split(".")
        section = getattr(self.experiment, name)
        nested = reduce(lambda inner, part: {part: inner}, reversed(path), value)

        def check() -> dict[str, Any]:
            return dict(validate_options(type(section), nested, name).model_dump(exclude_unset=True))

        checked = memoized(check, ("key", key, repr(value)), type(section))
        update = {
            field: merged(getattr(section, field, {}), inner) if isinstance(inner, dict) else inner
            for field, inner in checked.items()
        }
        return self.with_section(name, section.model_copy(update=update), {key: origin})

    def sections(self) -> Iterator[tuple[str, Any]]:
        """Yield the sections that the experiment has, by name, in the order of the experiment."""
        experiment = self.experiment
        for name in type(experiment).model_fields:
            section = getattr(experiment, name)
            if section is not None and not (name == "network" and experiment.cluster is not None):
                yield name, section


def plain_section(section: Any) -> Any:
    """Return a section as plain JSON."""
    if isinstance(section, PointToPoint):  # a file may say how rules run, and another policy be named over it
        section = section.taken
    is_model = isinstance(section, BaseModel)
    return section.model_dump(mode="json", by_alias=True, exclude_none=True) if is_model else section


def load(
    file: Config | Document | None,
    sets: Sequence[str] = (),
    flags: Mapping[str, Any] = _NO_FLAGS,
    varied: Sequence[Assignment] = (),
) -> Resolved:
    """Read an experiment; flags win over ``sets``, both over the file.

    Args:
        file: a YAML file, its content, one that was read already, or None for the command line alone.
        sets: ``key.path=value`` texts, whose values are YAML.
        flags: values by flag name (:data:`~pptrace.config.flags.FLAGS`); None stands for absent.
        varied: what a study sets, which wins over all else.

    Raises:
        ConfigError: what cannot be read or used, with its place and key.

    >>> load(None, flags={"schedule": "1f1b", "pp": 8, "microbatches": 32}).experiment.network.name
    'ideal'
    """
    document = document_of(file)
    tree, positions = overlaid(document.value, document.places, [*assignments(sets, flags), *varied])
    has_schedule = bool(tree.get("schedule"))
    # Without one the rest is checked first, for the key may be there and misspelt.
    experiment = _validated(tree if has_schedule else {**tree, **_NO_SCHEDULE}, positions, document.source)
    if not has_schedule:
        message = "missing: write a schedule, such as --schedule 1f1b"
        raise ConfigError(message, key="schedule", file=document.source)
    written = Document(value=tree, places=positions, source=document.source)
    bare = Resolved(experiment=experiment, positions=positions, origins={}, file=document.source, written=written)
    return _with_derived_values(bare)


def _validated(tree: Mapping[str, Any], positions: Places, source: str) -> Experiment:
    """Return the checked values of a tree; sections that earlier experiments wrote alike are theirs."""

    def validate(written: Mapping[str, Any]) -> Experiment:
        return validate_options(Experiment, written, "", positions, file=source)

    def section(name: str) -> Any:
        # Pydantic copies the default of p2p, which takes longer than its validation.
        return getattr(validate({**_NO_SCHEDULE, "p2p": {}, name: tree[name]}), name)

    if not is_memoizing():
        return validate(tree)
    try:
        sections = {
            name: memoized(partial(section, name), ("section", name, repr(tree[name])), rows=_SECTION_ROWS)
            for name in tree
        }
    except ConfigError:
        return validate(tree)  # the first error of all sections
    return memoized(partial(validate, _NO_SCHEDULE), "absent sections").model_copy(update=sections)


def document_of(source: Config | Document | None) -> Document:
    """Return the document of a file, a mapping or an earlier document.

    Raises:
        ConfigError: a file that cannot be read, or values that no file could hold.
    """
    if source is None or isinstance(source, Document):
        return source or Document()
    if isinstance(source, str | PathLike):
        from pptrace.config.yaml_document import read_yaml

        return read_yaml(Path(source))
    if not isinstance(source, Mapping):
        raise ConfigError(f"must be a file's name or a mapping, not {source!r:.60}", key="config")
    places: dict[str, Place] = {}
    value = plain(source, _MAPPING)
    for key, below in value.items():
        record(places, key_text((key,)), below, Place(source=_MAPPING))
    return Document(value=value, places=places, source=_MAPPING)


def leaves_by_key(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested mappings by their keys.

    >>> leaves_by_key({"model": {"layers": 32}, "stack": "ideal"})
    {'model.layers': 32, 'stack': 'ideal'}
    """
    leaves: dict[str, Any] = {}
    for name, below in value.items():
        key = key_text((name,), prefix)
        if isinstance(below, Mapping):
            leaves |= leaves_by_key(below, key)
        else:
            leaves[key] = below
    return leaves


def _portable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _portable(below) for key, below in value.items()}
    if isinstance(value, list):
        return [_portable(below) for below in value]
    is_path = isinstance(value, str) and value.startswith(("/", "~"))
    return PurePath(value).name if is_path else value


_MOST = 2**31 - 1


def _with_derived_values(resolved: Resolved) -> Resolved:
    """Return a configuration with the values that follow from other keys, which are checked."""
    _check_present(resolved)
    resolved = _with_batch(resolved)
    if resolved.experiment.costs.name is None and resolved.experiment.model is None:
        resolved = resolved.with_values("costs", {"name": DEFAULT_COSTS})
    _check_counts(resolved)
    _check_agreement(resolved)
    return _with_reshard_rule(resolved)


def _check_present(resolved: Resolved) -> None:
    experiment, error = resolved.experiment, resolved.error
    is_table = experiment.schedule.kind == "table"
    if experiment.parallel.pp is None and not is_table:
        raise error("parallel.pp", "missing: write the pipeline ranks, such as --pp 8")
    batch = experiment.batch
    counted = batch.documents is not None and batch.documents.count is not None
    if batch.microbatches is None and batch.global_batch is None and not is_table and not counted:
        raise error("batch", "missing: write batch.microbatches, such as --microbatches 32, or batch.global")
    if experiment.model is None:
        return
    if batch.sequence is None and batch.lengths is None:
        raise error("batch.sequence", "missing: a model needs the tokens in a sequence, such as --sequence 8192")
    if experiment.costs.name is None and experiment.device is None and experiment.cluster is None:
        raise error("device", "missing: a model's costs depend on it, write --device NAME or --costs unit")


def _with_batch(resolved: Resolved) -> Resolved:
    batch, dp = resolved.experiment.batch, resolved.experiment.parallel.dp
    micro = batch.micro
    step = dp * micro
    if batch.global_batch is None:
        if batch.microbatches is None:
            return resolved
        total = batch.microbatches * step
        return resolved.with_values("batch", {"global_batch": total}, "derived: microbatches x dp x micro")
    microbatches, rest = divmod(batch.global_batch, step)
    if rest:
        below = batch.global_batch - rest
        nearest_sizes = " or ".join(str(size) for size in (below, below + step) if size)
        reason = f"{batch.global_batch} is not a multiple of dp x micro = {dp} x {micro} = {step}"
        raise resolved.error("batch.global", f"{reason}; nearest that work: {nearest_sizes}")
    if batch.microbatches is None:
        return resolved.with_values("batch", {"microbatches": microbatches}, "derived: global / (dp x micro)")
    if batch.microbatches != microbatches:
        product = f"{batch.microbatches} x dp {dp} x micro {micro} make {batch.microbatches * step} sequences"
        message = f"{product}, but batch.global is {batch.global_batch}; remove one of the two"
        raise resolved.error("batch.microbatches", message)
    return resolved


def _check_counts(resolved: Resolved) -> None:
    experiment, error = resolved.experiment, resolved.error
    parallel = experiment.parallel
    pp = parallel.pp or 1
    if sum(parallel.branches) >= pp:
        modules = "the encoder" if parallel.encoder else "encoders"
        message = f"parallel.pp has {pp} ranks with those of {modules}, and {sum(parallel.branches)} leave none"
        raise error(f"{grid_key(next(iter(parallel.grids)))}.pp", f"{message} for the decoder")
    if parallel.processes > _MOST:
        sizes = f"pp {pp} x tp {parallel.tp} x dp {parallel.dp} x cp {parallel.cp}"
        sizes += " and grids of encoders" if parallel.grids else ""
        raise error("parallel", f"{sizes} make {parallel.processes:,} processes; the maximum is {_MOST:,}")
    microbatches = experiment.batch.known_microbatches
    actions = 2 * pp * parallel.vp * microbatches
    if actions > _MOST:
        sizes = f"2 x pp {pp} x vp {parallel.vp} x microbatches {microbatches}"
        raise error("batch.microbatches", f"{sizes} make {actions:,} actions; the maximum is {_MOST:,}")


def _check_agreement(resolved: Resolved) -> None:
    """Refuse keys that have no effect with other keys."""
    experiment, error = resolved.experiment, resolved.error
    replica, replicas = experiment.batch.replica, experiment.parallel.dp
    if replica is not None and replica >= replicas:
        raise error("batch.replica", f"{replica}: the job has replicas 0 to {replicas - 1}")
    if experiment.parallel.encoder and experiment.parallel.encoders:
        message = "parallel.encoder has the sizes of all encoders: write one of the two keys"
        raise error("parallel.encoders", message)
    reduction = experiment.data_parallel
    if reduction.seed is not None and reduction.spread is None:
        raise error("data_parallel.seed", "nothing is drawn: write data_parallel.spread, too, or remove the key")
    rule = reduction.reshard_rule
    if reduction.active_stages is not None and rule not in {None, Reshard.NEVER}:
        message = f"reshard: {reduction.subgroup or rule.value} frees weights itself: remove one of the two keys"
        raise error("data_parallel.active_stages", message)
    if reduction.shard is not None and replicas % reduction.shard:
        near = divisors_near(reduction.shard, replicas)
        message = f"{reduction.shard} does not divide dp {replicas}; nearest that work: {near}"
        raise error("data_parallel.shard", message)


def _with_reshard_rule(resolved: Resolved) -> Resolved:
    """Return a configuration with the rule that a number of GPUs to reshard to is equal to, if there is one.

    The numbers are those of ``reshard_after_forward`` in ``_get_post_forward_mesh_info`` of
    ``torch.distributed.fsdp._fully_shard._fsdp_init`` (PyTorch 2.13).
    """
    reduction, parallel = resolved.experiment.data_parallel, resolved.experiment.parallel
    gpus = (reduction.shard or parallel.dp) * parallel.cp
    if not isinstance(reduction.reshard, int):
        return resolved
    if gpus % reduction.reshard:
        message = f"{reduction.reshard} does not divide the {gpus} GPUs of a shard group"
        raise resolved.error("data_parallel.reshard", message)
    rules = {1: Reshard.BACKWARD, gpus: Reshard.ALWAYS}
    if reduction.reshard not in rules:
        return resolved
    origin = f"derived: {reduction.reshard} of the {gpus} GPUs of a shard group"
    return resolved.with_values("data_parallel", {"reshard": rules[reduction.reshard]}, origin)


def check_arguments(values: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse arguments that are no flags.

    Raises:
        ConfigError: the first such argument, with the nearest flag.
    """
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise ConfigError(f"no such argument{nearest(unknown[0], known)}", key=unknown[0])
