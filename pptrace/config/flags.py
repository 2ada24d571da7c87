"""Flags and typed Python arguments as configuration keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import wraps
from inspect import signature
from os import PathLike
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypedDict, TypeVar

from msgspec import Struct

from pptrace.config.choices import PolicyName, Sharing
from pptrace.errors import PptraceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.config.choices import Choice


class Flag(Struct, frozen=True):
    """A flag and its configuration key; imports nothing heavy, so that help and completion are fast."""

    key: str
    """The key."""
    text: str
    """Its meaning in one sentence: the help of the flag, and the description of the key."""
    headline: str = ""
    """For a flag of a section: the key of a bare name."""
    choices: type[Choice] | None = None
    """Its words, if they are a closed set."""
    offers: str = ""
    """The registry's kind of offers whose names it takes."""
    takes_file: bool = False
    """Whether its value can also be the name of a file."""

    @property
    def help(self) -> str:
        """The text in ``--help``."""
        if self.choices is None:
            return self.text
        *words, last = self.choices.words()
        if self.offers:
            words, last = [*words, last], "a policy of a plugin"
        return f"{self.text[:-1]}: {', '.join(words)} or {last}."


FLAGS: Mapping[str, Flag] = {
    "schedule": Flag(
        "schedule", "The schedule: a plugin's, FILE.py:FUNCTION, or a table file (.csv or .txt).",
        headline="name", offers="schedules", takes_file=True,
    ),
    "pp": Flag("parallel.pp", "Pipeline-parallel size (pipeline ranks); a table file defines it."),
    "tp": Flag("parallel.tp", "Tensor-parallel size."),
    "dp": Flag("parallel.dp", "Data-parallel replicas of the pipeline."),
    "cp": Flag("parallel.cp", "Context-parallel size."),
    "ep": Flag("parallel.ep", "Expert-parallel size; divides dp x cp and adds no processes."),
    "vp": Flag("parallel.vp", "Model chunks per pipeline rank (virtual stages)."),
    "global": Flag("batch.global", "Sequences in a step, over all data-parallel replicas."),
    "microbatches": Flag("batch.microbatches", "Microbatches that one pipeline runs in a step."),
    "micro": Flag("batch.micro", "Sequences in a microbatch."),
    "sequence": Flag("batch.sequence", "Tokens in a sequence; required with a model."),
    "model": Flag(
        "model", "The model; without one, actions have unit costs.", headline="preset", offers="models"
    ),
    "device": Flag("device", "The accelerator of each process.", headline="preset", offers="devices"),
    "stack": Flag(
        "stack", "The software that the job runs on, such as megatron-core-0.19, or a file (.yaml).",
        offers="stacks", takes_file=True,
    ),
    "network": Flag("network", "The network between pipeline ranks.", headline="name", offers="networks"),
    "cluster": Flag(
        "cluster", "Nodes and the fabric between them, such as dgx-h100x32; replaces network.",
        headline="preset", offers="clusters",
    ),
    "contention": Flag("contention", "How messages share a link.", headline="links", choices=Sharing),
    "p2p": Flag(
        "p2p", "How messages between ranks are issued.", headline="policy", choices=PolicyName,
        offers="message_policies",
    ),
    "costs": Flag(
        "costs", "Cost model of actions; by default unit, or with a model the one that reads models, roofline.",
        headline="name", offers="cost_models",
    ),
}  # fmt: skip
"""By name, in the order of ``--help``."""

HEADLINES: Mapping[str, str] = {name: flag.headline for name, flag in FLAGS.items() if flag.headline}
"""The key of a section's short form, a bare name."""

SECTIONS = ("parallel", "batch", "rl", "data_parallel")
"""Sections without a flag, for Python callers."""

ARGUMENTS = (*FLAGS, *SECTIONS)
"""Named arguments of Python callers."""


def key_of(name: str) -> str:
    """Return the key of a flag; return any other name unchanged.

    >>> key_of("pp"), key_of("network.latency")
    ('parallel.pp', 'network.latency')
    """
    return FLAGS[name].key if name in FLAGS else name


Section: TypeAlias = Mapping[str, Any]
"""A section as in a file."""
Count: TypeAlias = int | str | None
Named: TypeAlias = str | PathLike[str] | Section | None

_Reserved = TypedDict("_Reserved", {"global": Count}, total=False)
"""``global`` is a word of Python's, so it is given as ``**{"global": 64}``, or with ``batch``."""


class SettingsBesideSchedule(_Reserved, total=False):
    """Every flag but ``schedule``, and the sections without a flag; None means that a flag is absent."""

    pp: Count
    tp: Count
    dp: Count
    cp: Count
    ep: Count
    vp: Count
    microbatches: Count
    micro: Count
    sequence: Count
    model: Named
    device: Named
    stack: str | PathLike[str] | None
    network: Named
    cluster: Named
    contention: Sharing | str | Section | None
    p2p: PolicyName | str | Section | None
    costs: Named
    parallel: Section | None
    batch: Section | None
    rl: Section | None
    data_parallel: Section | None


class Settings(SettingsBesideSchedule, total=False):
    """Every flag, and the sections without a flag."""

    schedule: Named


_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_HINT = r"(?P<before>such as |write |or )--(?P<flag>[a-z][\w-]*) (?P<value>\S+?)(?=[,;)]?(?:\s|$))"
"""A flag with a value in a suggestion."""
_LISTS = ("set", "over", "vary")
"""Flags whose arguments are lists."""
_FLAG = r"(?<![\w-])--(?P<flag>[a-z][\w-]*)"


def names_arguments(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Return a function whose errors name its arguments in place of flags of the command line."""
    arguments = {name: name for name in (*ARGUMENTS, *signature(function).parameters)} | {"set": "sets"}

    def hint(flag: re.Match[str]) -> str:
        if flag["flag"] not in arguments:
            return flag[0]
        value = flag["value"] if flag["value"].isdecimal() else f'"{flag["value"]}"'
        value = f"[{value}]" if flag["flag"] in _LISTS else value
        return f"{flag['before']}{arguments[flag['flag']]}={value}"

    @wraps(function)
    def wrapped(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        try:
            return function(*args, **kwargs)
        except PptraceError as error:
            text = re.sub(_HINT, hint, str(error))
            error.args = (re.sub(_FLAG, lambda flag: arguments.get(flag["flag"], flag[0]), text),)
            raise

    return wrapped
