"""Recipes of training jobs in the files of Megatron-Bridge, NeMo and Megatron-LM.

A recipe becomes settings by the names that Megatron-Core has for them, such as ``tensor_model_parallel_size``:

- Python: performance recipes of Megatron-Bridge 0.2 to 0.5 (``WorkloadBaseConfig`` in
  ``scripts/performance/configs``) and from 0.6 on (functions in ``src/megatron/bridge/perf_recipes``).
  Programs of NeMo 2 that have a function ``recipe`` (``scripts/performance`` of NeMo).
- YAML: ``perf_matrix`` of Megatron-Bridge 0.1, ``MODEL_ARGS`` of Megatron-LM's test cases, ``trainer`` and
  ``model`` of NeMo, and other mappings of settings.
- Text: the arguments of Megatron-LM or torchtitan, as a line or in a shell script.
- torchtitan: files in TOML (up to 0.2), and functions of a ``config_registry.py`` (since 0.3). Settings that
  Megatron-Core does not have keep their names.
"""

from __future__ import annotations

import itertools
import operator
import os
import re
import shlex
import tomllib
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from pptrace.plugin import ConfigError, nearest, read_yaml
from pptrace_frameworks.recipe_programs import (
    NEMO_RECIPE,
    Fields,
    Unknown,
    evaluate_expression,
    evaluate_recipe,
    read_module,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_SHORT_NAMES = {
    "tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size", "cp": "context_parallel_size",
    "vp": "virtual_pipeline_model_parallel_size", "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size", "mbs": "micro_batch_size", "gbs": "global_batch_size",
    "pp_layout": "pipeline_model_parallel_layout", "encoder_seq_length": "seq_length",
    "sequence_length": "seq_length", "cuda_graph_modules": "cuda_graph_scope",
    "moe_a2a_overlap": "overlap_moe_expert_parallel_comm", "mixed_precision": "precision",
    "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
    "overlap_p2p_communication": "overlap_p2p_comm",
    "overlap_p2p_communication_warmup_flush": "overlap_p2p_comm_warmup_flush",
    "microbatch_group_size_per_virtual_pipeline_stage": "microbatch_group_size_per_vp_stage",
    "activations_checkpoint_granularity": "recompute_granularity",
    "activations_checkpoint_method": "recompute_method",
    "activations_checkpoint_num_layers": "recompute_num_layers", "ub_tp_comm_overlap": "tp_comm_overlap",
    "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
    "rope_fusion": "apply_rope_fusion", "fp8_params": "fp8_param_gather", "fp8_format": "fp8", "fp4_format": "fp4",
    "pad_vocab_size_to": "padded_vocab_size", "num_experts": "num_moe_experts", "bias": "add_bias_linear",
    "grad_sync_dtype": "main_grads_dtype", "overlap_grad_sync": "overlap_grad_reduce",
    "overlap_param_sync": "overlap_param_gather", "recompute_layers": "recompute_num_layers",
    "activation_offload_layers": "cpu_offloading_num_layers", "use_mcore_fsdp": "use_megatron_fsdp",
    "tp_size": "tensor_model_parallel_size", "pp_size": "pipeline_model_parallel_size",
    "cp_size": "context_parallel_size", "vp_size": "virtual_pipeline_model_parallel_size",
    "ep_size": "expert_model_parallel_size", "compute_dtype": "precision",
    "enable_cuda_graphs": "enable_cuda_graph",
}  # fmt: skip
"""Settings with another name in recipes or arguments than in Megatron-Core."""
_UNRELATED = frozenset({
    "checkpoint", "dataset", "dist", "env_vars", "logger", "profiling", "rerun_state_machine", "rng", "scheduler",
    "tokenizer", "validation", "exp_manager", "run", "tensor_inspect", "straggler", "nvrx_straggler", "peft",
    "defaults",
})  # fmt: skip
"""Sections of a recipe without an effect on the time and memory of a step."""
_TITAN_SECTIONS = frozenset({"training", "parallelism", "job", "activation_checkpoint", "compile"})
"""Sections of torchtitan's settings, which its arguments name before a dot."""
_TITAN_UNIQUE = frozenset({"training", "parallelism", "experimental"})
"""Sections whose settings have names that no other section has."""
_TITAN_NAMES = {
    "tensor_parallel_degree": "tensor_model_parallel_size", "context_parallel_degree": "context_parallel_size",
    "pipeline_parallel_degree": "pipeline_model_parallel_size", "seq_len": "seq_length",
    "expert_parallel_degree": "expert_model_parallel_size", "max_context_length": "seq_length",
    "expert_tensor_parallel_degree": "expert_tensor_parallel_size", "batch_size": "local_batch_size",
    "enable_sequence_parallel": "sequence_parallel", "data_parallel_degree": "data_parallel_shard_degree",
}  # fmt: skip
"""Settings with another name in Megatron-Core, or in newer releases."""
_DEGREES = (
    "tensor_model_parallel_size", "context_parallel_size", "pipeline_model_parallel_size",
    "data_parallel_replicate_degree",
)  # fmt: skip
"""Sizes of groups whose product with the number of shards is the number of GPUs."""
_IN_TOKENS = ("num_tokens_per_microbatch_per_dp_rank", "num_tokens_per_train_step", "num_pp_microbatches")
"""Settings of batches in torchtitan's main branch since 20 August 2026."""
_TITAN_MODELS = {
    "deepseek_v3 671b": "deepseek-v3", "deepseek_v3 16b": "deepseek-v2-lite", "llama4 17bx16e": "llama4-scout",
    "llama4 17bx128e": "llama4-maverick",
}  # fmt: skip
"""Presets of models whose flavor is not in the preset's name."""
_TITAN_REGISTRY = "config_registry.py"
"""The file with torchtitan's configurations of a model."""
_LAUNCHER = ("nproc_per_node", "nnodes")
"""Arguments of torchrun."""
RELEASES = {
    (0, 1): "25.09", (0, 2): "25.11", (0, 3): "26.02", (0, 4): "26.04", (0, 5): "26.06", (0, 6): "26.08",
}  # fmt: skip
"""Releases of NeMo by version of Megatron-Bridge (docs/releases/software-versions.md there)."""


class Recipe(Struct, frozen=True, kw_only=True):
    """Settings of a training job."""

    file: str
    """The file, for messages."""
    name: str
    """Name of the recipe, in which its model, device and precision are found."""
    model: str = ""
    """The name in which the model is found, in place of the recipe's; empty for none."""
    settings: Mapping[str, Any]
    """Settings by Megatron-Core's names."""
    stack: str = ""
    """The software stack; empty if the file's repository has no version."""
    is_command: bool = False
    """Whether settings that are absent have the defaults of Megatron-LM's arguments."""
    is_torchtitan: bool = False
    """Whether the settings are torchtitan's, with its defaults."""
    notes: tuple[str, ...] = field(default=())
    """What was not read."""
    ambiguous: frozenset[str] = frozenset()
    """Settings with several values in the file, of which the last one is read."""


class Settings(Struct):
    """Settings of a recipe, and those that were read."""

    values: Mapping[str, Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    """What was assumed."""

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def read(self, name: str, default: Any = None) -> Any:
        """Return a setting; the default if the recipe does not have it."""
        self.used.add(name)
        value = self.values.get(name, self.defaults.get(name))
        return default if value is None or value == {} else value

    def count(self, name: str, default: int = 0) -> int:
        """Return a setting that is a whole number.

        Raises:
            ConfigError: it is not.
        """
        value = self.read(name, default)
        value = value[0] if isinstance(value, list) and value else value
        is_whole = value.is_integer() if isinstance(value, float) else isinstance(value, int)
        if isinstance(value, bool) or not is_whole:
            fix = (
                ": set the variable in the environment, or write the number in its place"
                if "$" in str(value)
                else ""
            )
            raise ConfigError(f"must be a whole number, not {value!r:.60}{fix}", key=name)
        return int(value)

    def size(self, name: str, default: int = 1) -> int:
        """Return a setting that is a positive whole number.

        Raises:
            ConfigError: it is not.
        """
        value = self.count(name, default)
        if value < 1:
            raise ConfigError(f"must be 1 or more, not {value}", key=name)
        return value

    def words(self, name: str) -> list[str]:
        """Return a setting that is a list of words, or a text such as ``[mlp moe_act]``; empty without it."""
        return re.findall(r"\w+", str(self.read(name, [])))


def recipe_names(file: Path) -> list[str]:
    """Return the names of a file's recipes; empty for a file that is one recipe.

    Raises:
        ConfigError: the file cannot be read.
    """
    if file.suffix == ".py":
        return read_module(file).recipes
    if file.suffix.lower() in {".yaml", ".yml"}:
        return list(_matrix(read_yaml(file).value, file))
    return []


def read_recipe(file: Path, *words: str) -> Recipe:
    """Return a recipe of a file.

    Args:
        file: a file in Python, YAML or TOML, or text with arguments of Megatron-LM or torchtitan.
        words: name of the recipe in a file in Python or YAML, by default its only one; arguments of a script, or
            arguments of torchtitan in place of settings in TOML.

    Raises:
        ConfigError: the file cannot be read, or has no recipe of this name.
    """
    if file.suffix.lower() in {".py", ".yaml", ".yml"}:
        name, others = _known_name(file, *words[:1]), words[1:]
        return _of_program(file, name, others) if file.suffix == ".py" else _of_yaml(file, name, others)
    if file.suffix.lower() == ".toml":
        return _of_torchtitan(_toml(file), file, arguments=_arguments(map(_policy, words))[0])
    return recipe_of_text(_text(file), str(file), _megatron_release(file), words)


def recipe_of_text(text: str, file: str, stack: str = "", parameters: Sequence[str] = ()) -> Recipe:
    """Return the recipe of a line or script with the arguments of Megatron-LM or torchtitan.

    Args:
        text: the line or script.
        file: its name.
        stack: the software stack; the default one if empty.
        parameters: the script's own arguments, from ``$1`` on.

    Raises:
        ConfigError: the text has no arguments of Megatron-LM or torchtitan.
    """
    words, has_alternatives = _words(_PARAMETERS.sub(lambda _: shlex.join(parameters), text), parameters)
    arguments, ambiguous = _arguments(words)
    if {"module", "config"} <= arguments.keys() or any(
        name.partition(".")[0] in _TITAN_SECTIONS for name in arguments
    ):
        return _of_titan_arguments(arguments, Path(file))
    if not arguments:
        raise ConfigError("has no arguments of Megatron-LM, such as --tensor-model-parallel-size 8", file=file)
    settings = _renamed(arguments)
    if settings.get("checkpoint_activations") or settings.get("recompute_method"):
        settings.setdefault("recompute_granularity", "full")  # Megatron-LM before 3.0 has no other
    if settings.get("num_moe_experts") == 1:
        del settings["num_moe_experts"]  # DeepSpeed's value of a dense model
    note = "several branches of if or case are read: a variable has its last value"
    notes: tuple[str, ...] = (note,) if has_alternatives else ()
    if "micro_batch_size" not in settings:
        notes += ("micro_batch_size is not given, and assumed to be 1",)
    return Recipe(
        file=file, name=Path(file).stem, settings=settings, stack=stack, is_command=True, notes=notes,
        ambiguous=frozenset(_renamed(dict.fromkeys(ambiguous, True))),
    )  # fmt: skip


def _known_name(file: Path, name: str = "") -> str:
    names = recipe_names(file)
    if name and name not in names:
        raise ConfigError(f"has no recipe {name!r}{nearest(name, names)}", file=file)
    if len(names) > 1 and not name:
        raise ConfigError(f"has {len(names)} recipes: name one of them, such as {names[-1]}", file=file)
    return name or (names[0] if names else "")


def _refuse_words(words: Sequence[str], file: Path) -> None:
    if words:
        raise ConfigError(f"has recipes with one name each, not {words[0]!r:.40} too", file=file)


def _of_program(file: Path, name: str, words: Sequence[str]) -> Recipe:
    module = read_module(file)
    if not name:
        message = "has no recipe: no name in upper case, and no function ends in _config or returns Trainer.Config"
        raise ConfigError(message, file=file)
    values, left_out = evaluate_recipe(module, name)
    notes = _left_out_notes(left_out)
    if ("", "class") in values or file.name == _TITAN_REGISTRY:
        arguments, _ = _arguments(map(_policy, words))
        return _of_torchtitan(_dotted(values), file, name=name, arguments=arguments, notes=notes)
    _refuse_words(words, file)
    leaves = {key: value for (section, key), value in values.items() if section not in _UNRELATED}
    settings = _renamed(
        {key: value.name if isinstance(value, Unknown) else value for key, value in leaves.items()}
    )
    settings.setdefault("moe_flex_dispatcher_backend", "none")
    if any(section == "peft" for section, _ in values):
        settings["peft"] = "adapters"
    if name == NEMO_RECIPE:
        settings.setdefault("num_gpus", _product(settings.pop("num_nodes", 0), settings.get("num_gpus_per_node")))
        return Recipe(file=str(file), name=file.stem, settings=settings, stack="nemo", notes=notes)
    gpus = re.search(r"(\d+)gpu", name)
    if gpus:
        settings.setdefault("num_gpus", int(gpus[1]))
    return Recipe(file=str(file), name=name, settings=settings, stack=_bridge_release(file), notes=notes)


def _of_titan_arguments(arguments: dict[str, Any], script: Path) -> Recipe:
    """Return the recipe of torchtitan's arguments, in place of those of the configuration that they name."""
    folders = [*script.absolute().parents, Path.cwd()]
    config = arguments.pop("job.config_file", None)
    if config:
        file = next((folder / str(config) for folder in folders if (folder / str(config)).is_file()), None)
        if file is None:
            raise ConfigError(f"names {config}, which is not there: give its path", file=script)
        return _of_torchtitan(_toml(file), file, arguments=arguments)
    module, name = arguments.pop("module", ""), str(arguments.pop("config", ""))
    place = Path("torchtitan/models", str(module), _TITAN_REGISTRY)
    registry = next((folder / place for folder in folders if name and (folder / place).is_file()), None)
    if registry is None:
        absent = (f"without the settings of {name}: {place} is not there",) if name else ()
        return _of_torchtitan({}, script, name=name, arguments=arguments, notes=absent)
    values, left_out = evaluate_recipe(read_module(registry), _known_name(registry, name))
    notes = _left_out_notes(left_out)
    return _of_torchtitan(_dotted(values), registry, name=name, arguments=arguments, notes=notes)


def _of_torchtitan(
    values: Mapping[str, Any],
    file: Path,
    *,
    arguments: Mapping[str, Any],
    name: str = "",
    notes: tuple[str, ...] = (),
) -> Recipe:
    """Return the recipe of a job of torchtitan.

    Args:
        values: settings by section and name, with a dot between them.
        file: the file of the settings.
        arguments: arguments in place of settings.
        name: the name of the recipe; that of the file if empty.
        notes: what was not read.
    """
    values = {**values, **{key: value for key, value in arguments.items() if "." in key}}
    settings = _titan_settings(values) | {name: arguments[name] for name in _LAUNCHER if name in arguments}
    return Recipe(
        file=str(file), name=name or file.stem, model=_titan_model(values, file.parent.name), settings=settings,
        stack=_titan_release(file, values), notes=notes, is_torchtitan=True,
    )  # fmt: skip


def _titan_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by name, from those by section and name with a dot between them.

    Settings that Megatron-Core also has have its names. Those of other sections keep their section. Batches are in
    sequences.
    """
    settings: dict[str, Any] = {"seq_length": 2048}
    for key, value in values.items():
        section, dot, name = key.partition(".")
        name = name if section in _TITAN_UNIQUE else key
        if dot and value is not None:
            settings[_TITAN_NAMES.get(name, name)] = value
    tokens, total, microbatches = (settings.pop(name, None) for name in _IN_TOKENS)
    sequence = settings["seq_length"]
    if all(isinstance(value, int) and value for value in (tokens, sequence)):
        micro = max(tokens // sequence, 1)
        settings |= {"local_batch_size": micro * (microbatches or 1), "pipeline_parallel_microbatch_size": micro}
        if isinstance(total, int) and total > 0:
            settings["global_batch_size"] = total // sequence
    degrees = [settings.get(name, 1) for name in _DEGREES]
    shard = settings.get("data_parallel_shard_degree", -1)
    if all(isinstance(degree, int) and degree > 0 for degree in (shard, *degrees)):
        settings["num_gpus"] = prod(degrees) * shard
    return settings


def _titan_model(values: Mapping[str, Any], module: str) -> str:
    """Return the name in which the model's preset is found; empty if the settings have no flavor.

    Args:
        values: settings by section and name.
        module: the folder of the model in ``torchtitan/models``, for settings without the model's name.
    """
    name, flavor = values.get("model.name", module), values.get("model.flavor", values.get("model_spec.flavor"))
    return _TITAN_MODELS.get(f"{name} {flavor}".lower(), f"{name}{flavor}") if flavor else ""


def _dotted(values: Mapping[tuple[str, str], Any]) -> dict[str, Any]:
    """Return settings of a program of torchtitan, with the names of classes in place of objects."""
    return {
        f"{section}.{name}" if section else name: [each.values.get("class") for each in value]
        if isinstance(value, list) and all(isinstance(each, Fields) for each in value)
        else value
        for (section, name), value in values.items()
    }


def _left_out_notes(left_out: Iterable[str]) -> tuple[str, ...]:
    names = ", ".join(left_out)
    return (f"not evaluated: {names}",) if names else ()


def _toml(file: Path) -> dict[str, Any]:
    """Return the settings of a file in TOML by section and name, with a dot between them.

    Raises:
        ConfigError: the file cannot be read, is not TOML, or has a setting outside a section.
    """
    try:
        document = tomllib.loads(_text(file))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"is not TOML: {error}", file=file) from None
    outside = [name for name, value in document.items() if not isinstance(value, dict)]
    if outside:
        raise ConfigError("must be a section with settings, such as [training]", key=outside[0], file=file)
    values: dict[str, Any] = {}
    sections = [("", document)]
    while sections:
        prefix, section = sections.pop()
        for name, value in section.items():
            if isinstance(value, dict):
                sections.append((f"{prefix}{name}.", value))
            else:
                values[f"{prefix}{name}"] = value
    return values


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"cannot be read: {reason}", file=file) from None


def _titan_release(file: Path, values: Mapping[str, Any]) -> str:
    """Return the stack of the first release of torchtitan with such settings."""
    if any("num_tokens_per" in name or name.endswith("num_pp_microbatches") for name in values):
        return "torchtitan-main"
    if file.suffix.lower() == ".toml" or "activation_checkpoint.mode" in values:
        is_first = {"training.compile", "training.batch_size"} & values.keys()
        return "torchtitan-0.1" if is_first else "torchtitan-0.2"
    return "torchtitan-0.3"


def _of_yaml(file: Path, name: str, words: Sequence[str]) -> Recipe:
    _refuse_words(words, file)
    document = read_yaml(file).value
    if name:
        title = f"{file.stem} {name}"
        container = _mapping(document.get("ConfigContainer"), "ConfigContainer", file)
        values = {**_flat(container), **_matrix(document, file)[name]}
        return Recipe(file=str(file), name=title, settings=_renamed(values), stack=_bridge_release(file))
    if isinstance(document.get("MODEL_ARGS"), dict):
        words = [word for key, value in document["MODEL_ARGS"].items() for word in _yaml_words(str(key), value)]
        return recipe_of_text(shlex.join(words), str(file), _megatron_release(file))
    settings = _flat(document)
    values = {name: _resolved(value, settings) for name, value in settings.items()}
    trainer, model = (
        document.get(key) if isinstance(document.get(key), dict) else {} for key in ("trainer", "model")
    )
    if {"num_nodes", "devices"} <= trainer.keys():
        values["num_gpus"] = _product(values["num_nodes"], values["devices"])
    if isinstance(model.get("tokenizer"), dict):
        values |= {f"tokenizer_{key}": model["tokenizer"].get(key) for key in ("type", "model")}
    if "distributed" in str(model.get("optim")):  # distributed_fused_adam
        values["use_distributed_optimizer"] = True
    stack = "nemo-24.12" if {"trainer", "model"} <= document.keys() else ""  # the last release with such files
    return Recipe(file=str(file), name=file.stem, settings=_renamed(values), stack=stack)


def _resolved(value: Any, settings: Mapping[str, Any]) -> Any:
    """Return a value with the known values of OmegaConf's and Primus's interpolations."""
    if not isinstance(value, str) or "${" not in value:
        return value
    text = value
    for _ in range(value.count("${")):  # innermost ones first
        text = _INTERPOLATION.sub(lambda match: _interpolated(match, settings), text)
    return _CONSTANTS[text] if text in _CONSTANTS else _typed(text)


def _interpolated(match: re.Match[str], settings: Mapping[str, Any]) -> str:
    """Return the value of ``${.name}``, ``${oc.env:NAME,8}`` or Primus's ``${NAME:8}``; unknown, the text."""
    function, colon, argument = match[1].partition(":")
    first, _, second = (part.strip() for part in argument.partition(","))
    if function == "oc.decode":
        return argument
    if function == "oc.env":
        return os.environ.get(first, second or match[0])
    if function in _FUNCTIONS and first.isdecimal() and second.isdecimal() and int(second):
        return str(_FUNCTIONS[function](int(first), int(second)))
    if colon:
        return os.environ.get(function, argument) if function[:1].isupper() else match[0]
    name = function.rpartition(".")[2]
    others = {other: value for other, value in settings.items() if other != name}
    return str(_resolved(settings[name], others)) if name in settings else match[0]


def _yaml_words(key: str, value: Any) -> list[str]:
    if value is True:
        return [key]
    if value is False or value is None:
        return []
    return [key, *map(str, value)] if isinstance(value, list) else [key, str(value)]


_INTERPOLATION = re.compile(r"\$\{([^${}]+)\}")
_CONSTANTS = {"true": True, "True": True, "false": False, "False": False, "null": None}
_FUNCTIONS = {"multiply": operator.mul, "floor_div": operator.floordiv}


def _product(*values: Any) -> int | None:
    numbers = [int(value) for value in values if str(value).isdecimal()]
    return numbers[0] * numbers[1] if len(numbers) == len(values) else None


def _matrix(document: Mapping[str, Any], file: Path) -> dict[str, dict[str, Any]]:
    """Return the settings of ``perf_matrix`` by device, number of GPUs and precision; empty without it."""
    recipes: dict[str, dict[str, Any]] = {}
    for device, jobs in _mapping(document.get("perf_matrix"), "perf_matrix", file).items():
        for job, precisions in _mapping(jobs, f"perf_matrix.{device}", file).items():
            key = f"perf_matrix.{device}.{job}"
            settings = {
                precision: _mapping(values, f"{key}.{precision}", file)
                for precision, values in _mapping(precisions, key, file).items()
            }
            common = settings.pop("common", {})
            count = re.search(r"\d+", str(job))
            gpus = {"num_gpus": int(count[0])} if count else {}
            for precision, values in settings.items():
                name = f"{device}_{gpus.get('num_gpus', job)}gpu_{precision}"
                recipes[name] = {**common, **values, **gpus}
    return recipes


def _mapping(value: Any, key: str, file: Path) -> dict[str, Any]:
    """Return a mapping of a recipe; empty for none.

    Raises:
        ConfigError: it is another value.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"must be a mapping of settings, not {value!r:.40}", key=key, file=file)
    return value


def _flat(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of all sections by name."""
    settings: dict[str, Any] = {}
    for key, value in document.items():
        if str(key) in _UNRELATED:
            continue
        if isinstance(value, dict):
            settings |= _flat(value)
        else:
            settings[str(key)] = value
    return settings


def _renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by Megatron-Core's names; None is no setting."""
    settings: dict[str, Any] = {}
    for key, value in values.items():
        if value is not None:
            settings.setdefault(_SHORT_NAMES.get(key, key), value)
    return settings


_ASSIGNMENT = re.compile(r"(?:export\s+)?(?P<name>[A-Za-z_]\w*)(?P<appends>\+?)=(?P<value>.*)", re.DOTALL)
_VARIABLE = re.compile(
    r"\$(?:\{(?P<braced>\w+)(?P<items>\[[@*]\])?(?::?[-=](?P<default>(?:[^{}]|\{[^{}]*\})*))?\}|(?P<plain>\w+))"
)
_ARITHMETIC = re.compile(r"\$\(\((?P<expression>(?:[\w\s${}:+*/%-]|\([\w\s${}:+*/%-]*\))*)\)\)")
_COMMAND = re.compile(r"\$\((?!\(|\s*(?:echo|cat)\b)[^()]*\)")
_PARAMETERS = re.compile(r"\"\$@\"|\$[@*]")
_POLICY = re.compile("^activation[-_]checkpoint:")
_COMMENT = re.compile(r"^[ \t]*#.*\n", re.MULTILINE)
"""A line with only a comment, whose backslash does not continue it."""
_NUMBER = re.compile(r"-?\d{1,40}(?:\.\d+)?(?:e-?\d+)?", re.IGNORECASE)
_END = ""
"""The word after the last one of a line, which ends the values of an argument."""


class _Alternatives(Struct):
    """The branches of an ``if`` until the current one."""

    is_decided: bool
    """Whether a branch certainly runs, so that later ones are skipped."""
    is_read: bool = False
    """Whether a branch was read."""
    is_skipped: bool = False
    """Whether the current branch does not run."""
    is_certain: bool = False
    """Whether the current branch runs."""


class _Branches(Struct):
    """Nested branches of a script."""

    nested: list[_Alternatives] = field(default_factory=list)
    has_alternatives: bool = False
    """Whether several branches of an ``if`` or ``case`` are read."""
    known: dict[str, str] = field(default_factory=dict)
    """Variables that have a value for certain."""

    def assign(self, name: str, value: str) -> None:
        """Note the value of a variable."""
        if all(alternatives.is_certain for alternatives in self.nested):
            self.known[name] = value
        else:
            self.known.pop(name, None)

    def body(self, statement: list[str]) -> list[str]:
        """Return the words of a statement without those of ``if``; none in a skipped branch."""
        is_skipped = self.nested[-1].is_skipped if self.nested else False
        match statement:
            case ["if" | "case" as word, *condition]:
                self.nested.append(_Alternatives(is_decided=is_skipped))
                self._enter(holds=_holds(condition, self.known))
                self.has_alternatives |= word == "case" and not is_skipped
                return []
            case ["elif", *condition] if self.nested:
                self._enter(holds=_holds(condition, self.known))
                return []
            case ["else", *body] if self.nested:
                self._enter(holds=True)
                return self.body(body)
            case ["fi" | "esac", *_] if self.nested:
                self.nested.pop()
                return []
        return [] if is_skipped else statement

    def _enter(self, *, holds: bool | None) -> None:
        branch = self.nested[-1]
        branch.is_skipped = branch.is_decided or holds is False
        branch.is_certain = holds is True and not branch.is_read
        branch.is_decided |= holds is True
        self.has_alternatives |= branch.is_read and not branch.is_skipped
        branch.is_read |= not branch.is_skipped


def _holds(condition: Iterable[str], variables: Mapping[str, str]) -> bool | None:
    """Return whether two words are equal, or unequal; None for another condition, or an unknown word."""
    match [_expanded(word, variables) for word in condition]:
        case ["[" | "[[", left, "=" | "==" | "-eq" | "!=" | "-ne" as comparison, right, "]" | "]]"]:
            is_known = not re.search(r"[$*?]", left + right)
            return (left == right) == (comparison not in {"!=", "-ne"}) if is_known else None
    return None


def _words(text: str, parameters: Sequence[str]) -> tuple[list[str], bool]:
    """Return the words of a script, with values for variables, and whether alternative branches are read.

    Variables of the environment and parameters have their values, as if the script ran.
    """
    variables = os.environ | {str(number): value for number, value in enumerate(parameters, 1)}
    words: list[str] = []
    branches = _Branches(known=dict(variables))
    for line in re.sub(r"\\\r?\n", " ", _COMMENT.sub("", text)).splitlines():
        with_names = _COMMAND.sub(_output_name, line)
        parts = _parts(_ARITHMETIC.sub(lambda match: _computed(match["expression"], variables), with_names))
        for is_end, statement in itertools.groupby(parts, key={";", "then"}.__contains__):
            for part in [] if is_end else branches.body(list(statement)):
                assignment = _ASSIGNMENT.fullmatch(part)
                value = _expanded(assignment["value"] if assignment else part, variables).strip()
                if assignment:
                    before = variables.get(assignment["name"], "") if assignment["appends"] else ""
                    variables[assignment["name"]] = f"{before} {value}".strip()
                    branches.assign(assignment["name"], variables[assignment["name"]])
                elif "--" in value:
                    words += value.split()
                elif value.strip("()[]{};"):
                    words.append(value)
        words.append(_END)
    return [*map(_policy, words)], branches.has_alternatives


def _policy(word: str) -> str:
    """Return the word that selects recomputation in torchtitan 0.3 as an argument; other words as they are."""
    return _POLICY.sub("--activation_checkpoint.class=", word)


def _output_name(command: re.Match[str]) -> str:
    """Return a variable without a value for the output of a command."""
    return f"${{output_of_{'_'.join(re.findall(r'[A-Za-z0-9]+', command[0]))}}}"


def _computed(expression: str, variables: Mapping[str, str]) -> str:
    """Return the value of an expression of the shell's integer arithmetic; without a value, the expression."""
    text = re.sub(r"(?<![\w${])[A-Za-z_]\w*", lambda match: f"${match[0]}", expression)
    text = _expanded(text, variables).replace(" ", "")
    value = evaluate_expression(text.replace("/", "//"))
    return str(value) if isinstance(value, int) else text.replace("(", "").replace(")", "")


def _parts(line: str) -> list[str]:
    """Return the words of a line; quotes that end in another line have no meaning."""
    for text in (line, line.replace("'", " ").replace('"', " ")):
        lexer = shlex.shlex(text, posix=True, punctuation_chars="();")
        lexer.whitespace_split = True
        try:
            return list(lexer)
        except ValueError:
            continue
    return []


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        default = match["default"]
        if match["items"]:
            return ""
        absent = match[0] if default is None else _expanded(default, variables)
        return variables.get(match["braced"] or match["plain"], absent)

    return _VARIABLE.sub(value, text)


def _arguments(words: Iterable[str]) -> tuple[dict[str, Any], set[str]]:
    """Return the values of arguments by name with underscores, and the names that have several values."""
    arguments: dict[str, Any] = {}
    earlier: list[tuple[str, Any]] = []
    name = ""
    for word in words:
        if word.startswith("--") and len(word) > len("--x"):
            name, equals, value = word[2:].partition("=")
            section, name = name.replace("-", "_").rpartition(".")[::2]
            is_on = not name.startswith("no_")
            name = f"{section}.{name.removeprefix('no_')}".lstrip(".")
            if name in arguments:
                earlier.append((name, arguments[name]))
            arguments[name] = _typed(value) if equals else is_on
        elif word == _END or word.endswith(".py"):
            name = ""
        elif name:
            current, value = arguments[name], _typed(word)
            values = current if isinstance(current, list) else [current]
            arguments[name] = value if current is True else [*values, value]
    return arguments, {name for name, value in earlier if value != arguments[name]}


def _typed(word: str) -> Any:
    word = word.strip("'\"")
    if word == "None":
        return None
    if _NUMBER.fullmatch(word):
        return int(word) if word.lstrip("-").isdigit() else float(word)
    return word


_VERSION = re.compile(r"^(MAJOR|MINOR) *= *(\d+)", re.MULTILINE)


def _bridge_release(file: Path) -> str:
    version = _version(file, "src/megatron/bridge/package_info.py")
    if not version:
        return "megatron-bridge"
    release = RELEASES.get(version)
    return f"megatron-bridge-{release}" if release else "megatron-bridge"


def _megatron_release(file: Path) -> str:
    version = _version(file, "megatron/core/package_info.py")
    return f"megatron-core-{version[0]}.{version[1]}" if version else ""


def _version(file: Path, place: str) -> tuple[int, int] | None:
    """Return major and minor version of the repository that has a file."""
    for folder in file.absolute().parents:
        if (folder / place).is_file():
            parts = dict(_VERSION.findall((folder / place).read_text(encoding="utf-8", errors="replace")))
            return (int(parts["MAJOR"]), int(parts["MINOR"])) if len(parts) == len(("MAJOR", "MINOR")) else None
    return None
