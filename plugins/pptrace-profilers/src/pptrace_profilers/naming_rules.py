"""Rules that name the actions and the ranks of a recording.

``re`` checks for signals every few thousand steps (``sre_lib.h``, ``MAYBE_CHECK_SIGNALS``), so a timer stops a
slow search. The timer counts processor time, so that a busy machine stops no pattern. Only the main thread of a
process receives signals: patterns in other threads have no limit.

Sources: PyTorch's ``_PipelineScheduleRuntime`` (``PP:`` and the action) and its ``ScheduleGPipe`` (``Forward 3``);
kernels of NCCL before 2.9 (``ncclSendRecvKernel_``), before and since 2.19 (``ncclKernel_``, ``ncclDevKernel_``)
and of its symmetric memory (``ncclSymkDevKernel_``), RCCL with MSCCL, DeepEP, NVSHMEM.

Patterns are regular expressions of Python. Patterns of names and arguments match the whole text; all others match
a part. Named groups and the constants of a rule give the meaning of an event.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from pydantic import AfterValidator, Field, model_validator

from pptrace.plugin import Action, ConfigError, Kind, Parameters, TableError, kinds, read_yaml, validate_options
from pptrace_profilers.recording import MOST_RANKS, NO_STAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import FrameType
    from typing import NoReturn

    from numpy.typing import NDArray

    from pptrace_profilers.recording import Recording

Matcher: TypeAlias = "re.Pattern[str] | TimedPattern"
"""A built-in pattern, or a pattern of the user."""
MOST_S, MOST_IN_ALL_S = 1.0, 60.0
"""Seconds of processor time that a pattern may take for one text, and for all texts of a run."""
_SHOWN = 60


class _TimeoutError(Exception):
    """Timeout of a pattern."""


class TimedPattern(Struct, kw_only=True):
    """A compiled pattern with the time limit :data:`MOST_S`."""

    compiled: re.Pattern[str]
    error: Callable[[str], ConfigError]
    """Return the error with the location of the pattern."""
    spent_s: float = 0.0
    """Time of all texts so far."""

    @property
    def pattern(self) -> str:
        """The pattern's text."""
        return self.compiled.pattern

    def fullmatch(self, text: str) -> re.Match[str] | None:
        """Match a whole text.

        Raises:
            ConfigError: the search takes too long.
        """
        return self._match_in_time(self.compiled.fullmatch, text)

    def search(self, text: str) -> re.Match[str] | None:
        """Find the pattern in a text; raises what :meth:`fullmatch` does."""
        return self._match_in_time(self.compiled.search, text)

    def _match_in_time(self, find: Callable[[str], re.Match[str] | None], text: str) -> re.Match[str] | None:
        if threading.current_thread() is not threading.main_thread():
            return find(text)
        start, previous_handler = time.thread_time(), signal.signal(signal.SIGVTALRM, _raise_timeout)
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, MOST_S)
            try:
                return find(text)
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)  # the signal may still arrive here
        except _TimeoutError:
            raise self._config_error(f"takes more than {MOST_S:g} s for {text:.{_SHOWN}}") from None
        finally:
            signal.signal(signal.SIGVTALRM, previous_handler)
            self._count(time.thread_time() - start)

    def _count(self, seconds: float) -> None:
        self.spent_s += seconds
        if self.spent_s > MOST_IN_ALL_S:
            raise self._config_error(f"took more than {MOST_IN_ALL_S:g} s")

    def _config_error(self, what: str) -> ConfigError:
        return self.error(f"the pattern {self.pattern:.{_SHOWN}} {what}: write it without nested repeats")


def _raise_timeout(number: int, frame: FrameType | None) -> NoReturn:
    del number, frame
    raise _TimeoutError


_MOST_MICROBATCHES = 2**16
_WORDS = {"forward": Kind.F, "fwd": Kind.F, "backward": Kind.B, "bwd": Kind.B}


class Meaning(Struct, frozen=True, kw_only=True):
    """Meaning of an event."""

    action: Action | None
    """The action; None for a message with unknown contents."""
    sends: bool | None = None
    """Whether it is a sent message, or a received one; None for an action."""
    peer: int = -1
    """Global rank at the other end of the message; -1 if unknown."""
    size_bytes: int = 0
    """Size of the message; 0 if unknown."""


class Rule(Struct, frozen=True, kw_only=True):
    """A rule that names events, from the groups of its patterns and its constants."""

    pattern: Matcher
    """Matches whole names; its groups are ``action``, or ``kind``, ``stage``, ``microbatch`` and so on."""
    args: Mapping[str, Matcher] = field(default_factory=dict)
    """Patterns of whole arguments, by key."""
    constants: Mapping[str, str] = field(default_factory=dict)
    """Values of ``kind``, ``stage``, ``microbatch`` and ``peer``, if no pattern has a group for them."""
    stream: str = "compute"
    """Stream: ``compute``, ``send``, ``receive`` or ``data-parallel``."""

    def meaning(self, name: str, args: Mapping[str, object]) -> Meaning | None:
        """Return the meaning of an event; None if the rule does not match or captures an invalid number."""
        groups = self._groups(name, args)
        if groups is None:
            return None
        try:
            stage, microbatch, peer = (_number(groups, key) for key in ("stage", "microbatch", "peer"))
            size = _number(groups, "bytes", 2**62)
            action = self._action(groups, stage, microbatch)
        except ValueError:
            return None
        if action is None and self.stream == "compute":
            return None
        sends = action.kind in kinds.SENDS if action is not None else self.stream == "send"
        moves = action is None or action.kind in kinds.COMMUNICATION
        return Meaning(
            action=action, sends=sends if moves else None,
            peer=-1 if peer is None else peer, size_bytes=size or 0,
        )  # fmt: skip

    def _groups(self, name: str, args: Mapping[str, object]) -> dict[str, str] | None:
        """Return the constants and all groups that matched; None if the rule does not match."""
        matches = [self.pattern.fullmatch(name)]
        for key, pattern in self.args.items():
            value = args.get(key)
            matches.append(pattern.fullmatch(str(value)) if value is not None else None)
        groups = dict(self.constants)
        for match in matches:
            if match is None:
                return None
            groups |= {key: value for key, value in match.groupdict().items() if value is not None}
        return groups

    def _action(self, groups: Mapping[str, str], stage: int | None, microbatch: int | None) -> Action | None:
        if "action" in groups:
            return _parsed(groups["action"])
        kind = _kind(groups.get("kind"))
        if self.stream in {"send", "receive"}:
            if kind in kinds.PASSES:
                kind = kinds.message_kind(sends=self.stream == "send", forward=kind is Kind.F)
            if stage is None or microbatch is None:
                return None
        elif self.stream == "data-parallel" and kind is None:
            kind = Kind.REDUCE_GRAD
        if kind is None:
            return None
        number = -1 if kind.traits.per_stage else microbatch or 0
        return Action(kind=kind, stage=NO_STAGE if stage is None else stage, microbatch=number)


_MOST_DIGITS = 19


class RankRule(Struct, frozen=True, kw_only=True):
    """Rule that reads global ranks."""

    source: str = "file"
    """``file``, ``pid``, ``process_name``, or ``args.`` and an argument's key."""
    pattern: Matcher = re.compile(r"rank[_\-.]?(?P<rank>\d+)", re.IGNORECASE)
    """Finds the rank in the source."""

    def read(self, text: str) -> int:
        """Return the rank in a text, -1 for none.

        >>> RankRule().read("rank_3.json"), RankRule().read("trace.json")
        (3, -1)
        """
        match = self.pattern.search(text)
        digits = match["rank"] if match is not None else None
        rank = int(digits) if digits and digits.isdecimal() and len(digits) <= _MOST_DIGITS else MOST_RANKS
        return rank if rank < MOST_RANKS else -1


FILE_NAME = RankRule()
"""Rule of ranks without a rules file."""


class Rules(Struct, frozen=True, kw_only=True):
    """Rules in order of precedence."""

    actions: Sequence[Rule]
    """Rules of actions and messages, those of the file before the built-in ones."""
    communication: tuple[Matcher, ...]
    """Each finds names of kernels that communicate."""
    rank: RankRule | None = None
    """Rule of ranks; None if the file has none."""
    places: Mapping[str, Any] = field(default_factory=dict)
    """Location of each value in the file."""

    def meaning(self, name: str, args: Mapping[str, object]) -> Meaning | None:
        """Return the meaning of an event; None if no rule matches."""
        meanings = (rule.meaning(name, args) for rule in self.actions)
        return next((meaning for meaning in meanings if meaning is not None), None)

    def communicate(self, names: Sequence[str]) -> NDArray[np.bool_]:
        """Return which names are those of kernels that communicate, shape (names,)."""
        return np.array(
            [any(pattern.search(name) for pattern in self.communication) for name in names], dtype=bool
        )

    def action(self, name: str) -> Action | None:
        """Return the action of a name without arguments; None if no rule matches."""
        meanings = (rule.meaning(name, {}) for rule in self.actions)
        return next((meaning.action for meaning in meanings if meaning is not None and meaning.action), None)

    def check_names_alone(self, profiler: str) -> None:
        """Check the rules for a profiler that identifies actions by the names of annotations alone.

        Raises:
            ConfigError: a rule needs arguments, or reads the rank elsewhere than in the file name.
        """
        number = next((number for number, rule in enumerate(self.actions) if rule.args), None)
        if number is not None:
            message = f"actions of {profiler} are read from names of annotations alone: write name, without args"
            raise _error_at(self.places, f"actions[{number}].args", message)
        if self.rank is not None and self.rank.source != "file":
            message = (
                f"files of {profiler} have the rank in their contents or name: write from: file, or leave rank out"
            )
            raise _error_at(self.places, "rank.from", message)

    def ranked(self, recordings: Sequence[Recording]) -> Sequence[Recording]:
        """Return the recordings of a file; a single recording gets the rank in the file name by these rules."""
        rank = self.rank.read(recordings[0].path.name) if self.rank is not None and len(recordings) == 1 else -1
        return [replace(recordings[0], rank=rank)] if rank >= 0 else recordings


BUILT_IN = Rules(
    actions=(
        Rule(pattern=re.compile(r"(?:PP:|compute:)(?P<action>.+)")),
        Rule(pattern=re.compile(r"(?P<kind>Forward|Backward) (?P<microbatch>\d+)")),
    ),
    communication=(
        re.compile(r"^nccl\w*Kernel|^rccl|^msccl|::ep::|deep_ep|nvshmem|internode|intranode", re.IGNORECASE),
        # Collectives over symmetric memory or pointers of peers, by the name of the function without parameters.
        re.compile(
            r"^(?:void )?(?:\(anonymous namespace\)|[\w:])*(?:multimem_|userbuffers|cross_device_reduce|"
            r"(?<!block)(?<!warp)all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|"
            r"\b(?:barrier|put_signal|wait_signal)_kernel)",
            re.IGNORECASE,
        ),
    ),
)
"""Rules without a rules file."""


def _parsed(text: str) -> Action | None:
    """Return the action of a text; None if it is invalid or has too many microbatches."""
    try:
        action = Action.parse(text)
    except TableError:
        return None
    return None if any(part.span > _MOST_MICROBATCHES for part in (action, *action.sub_actions)) else action


def _kind(text: str | None) -> Kind | None:
    if text is None:
        return None
    return Kind[text.upper()] if text.upper() in Kind.__members__ else _WORDS.get(text.lower())


def _number(groups: Mapping[str, str], key: str, most: int = 2**31) -> int | None:
    """Return the number of a group, None without the group.

    Raises:
        ValueError: the text is not a number, or the number is too large.
    """
    text = groups.get(key)
    if text is None:
        return None
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(most)) else most
    if number >= most:
        raise ValueError(text)
    return number


_EXAMPLE = r"actions: [{name: 'QQ:(?P<action>.+)'}]"


_GROUPS = ("action", "kind", "stage", "microbatch", "peer", "bytes")


def _compiled(text: str) -> str:
    try:
        re.compile(f"(?:{text})")
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from None
    return text


Pattern = Annotated[str, AfterValidator(_compiled)]


class ActionModel(Parameters):
    """Rule that names one kind of event."""

    name: Pattern | None = Field(None, description="pattern of the event's whole name")
    args: dict[str, Pattern] = Field(default_factory=dict, description="patterns of whole arguments, by their key")
    kind: str | None = Field(None, description="F, B, I, W, SEND_F and so on")
    stage: int | None = Field(None, ge=0, lt=2**31)
    microbatch: int | None = Field(None, ge=0, lt=2**31)
    peer: int | None = Field(None, ge=0, lt=2**31)
    stream: Literal["compute", "send", "receive", "data-parallel"] = "compute"

    def constants(self) -> dict[str, Any]:
        """Return the values that no pattern captures."""
        return self.model_dump(include={"kind", "stage", "microbatch", "peer"}, exclude_none=True)

    @model_validator(mode="after")
    def _check_patterns(self) -> ActionModel:
        patterns = [*([self.name] if self.name is not None else []), *self.args.values()]
        if not patterns:
            raise ValueError("needs a pattern: name, args, or both")
        groups = [group for pattern in patterns for group in re.compile(f"(?:{pattern})").groupindex]
        unknown = next((group for group in groups if group not in _GROUPS), None)
        if unknown is not None:
            raise ValueError(f"group {unknown!r} means nothing; there are {', '.join(_GROUPS)}")
        constants = self.constants()
        duplicates = [group for group in groups if groups.count(group) > 1 or group in constants]
        if duplicates:
            raise ValueError(f"{duplicates[0]!r} is given twice")
        if self.kind is not None and self.kind not in Kind.__members__:
            raise ValueError(f"kind {self.kind!r} is none; there are {', '.join(Kind.__members__)}")
        if self.stream == "compute" and self.kind is None and not {"action", "kind"} & set(groups):
            raise ValueError("has no kind: write kind:, or a group named action or kind")
        return self


class RankModel(Parameters):
    """Rule that reads the global rank of a process."""

    source: str = Field(alias="from", description="file, pid, process_name, or args. and an argument's key")
    pattern: Pattern = r"(?P<rank>\d+)"

    @model_validator(mode="after")
    def _check_source(self) -> RankModel:
        if self.source not in {"file", "pid", "process_name"} and not re.fullmatch(r"args\..+", self.source):
            raise ValueError(f"{self.source!r} is not a source of ranks; use file, pid, process_name or args.KEY")
        if set(re.compile(f"(?:{self.pattern})").groupindex) != {"rank"}:
            raise ValueError("the pattern needs one group, named rank")
        return self


class RulesModel(Parameters):
    """Contents of a file of rules."""

    actions: list[ActionModel] = Field(default_factory=list)
    communication: list[Pattern] = Field(default_factory=list)
    rank: RankModel | None = None


def read_rules(path: Path | None) -> Rules:
    """Read a file of rules; None returns the built-in rules.

    Raises:
        ConfigError: the file cannot be read, or a rule is invalid; with its line.
    """
    if path is None:
        return BUILT_IN
    document = read_yaml(path, _EXAMPLE)
    values = document.value if isinstance(document.value, dict) else {}
    model = validate_options(RulesModel, values, positions=document.places, file=path)
    actions = [_rule(action, number, document.places) for number, action in enumerate(model.actions)]
    rank = None
    if model.rank is not None:
        pattern = _compile(model.rank.pattern, "rank.pattern", document.places)
        rank = RankRule(source=model.rank.source, pattern=pattern)
    communication = [
        _compile(pattern, f"communication[{number}]", document.places, re.IGNORECASE)
        for number, pattern in enumerate(model.communication)
    ]
    return Rules(
        actions=(*actions, *BUILT_IN.actions), communication=(*communication, *BUILT_IN.communication),
        rank=rank, places=document.places,
    )  # fmt: skip


def _rule(model: ActionModel, number: int, places: Mapping[str, Any]) -> Rule:
    key = f"actions[{number}]"
    return Rule(
        pattern=re.compile(".*", re.DOTALL) if model.name is None else _compile(model.name, f"{key}.name", places),
        args={name: _compile(pattern, f"{key}.args.{name}", places) for name, pattern in model.args.items()},
        constants={key: str(value) for key, value in model.constants().items()}, stream=model.stream,
    )  # fmt: skip


def _compile(text: str, key: str, places: Mapping[str, Any], flags: int = 0) -> TimedPattern:
    """Return a pattern of the user, with the location for its errors."""
    return TimedPattern(compiled=re.compile(text, flags), error=lambda what: _error_at(places, key, what))


def _error_at(places: Mapping[str, Any], key: str, message: str) -> ConfigError:
    """Return an error with the location of a key in the file, by default that of a key around it."""
    keys = (key, key.rpartition(".")[0], key.partition("[")[0])
    place = next((places[each] for each in keys if each in places), None)
    file, line = (place.source, place.line) if place is not None else ("", 0)
    return ConfigError(message, key=key, file=file, line=line)
