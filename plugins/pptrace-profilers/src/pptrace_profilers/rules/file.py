"""A YAML file of rules: how names and arguments of a trace say actions, messages, communication and ranks.

Patterns are regular expressions of Python; those of names and arguments match the whole text, the others find a
part. What they capture by name, or what stands beside them, says what an event is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pptrace.errors import ConfigError
from pptrace.model.action import COMMUNICATION, Kind
from pptrace_profilers.assembly.pipelines import MOST_RANKS
from pptrace_profilers.rules.arguments import EventRule, Found, Stream
from pptrace_profilers.rules.names import BUILT_IN, Rules

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pptrace.config.places import Place, Places
    from pptrace_profilers.recording.recording import Recording
    from pptrace_profilers.rules.schema import ActionModel

__all__ = ["NO_FILE", "RankRule", "RulesFile", "read_rules"]

_EXAMPLE = r"actions: [{name: 'QQ:(?P<action>.+)'}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRule:
    """Where global ranks are read."""

    source: str = "file"
    """``file``, ``pid``, ``process_name``, or ``args.`` and an argument's key."""
    pattern: re.Pattern[str] = re.compile(r"rank[_\-.]?(?P<rank>\d+)", re.IGNORECASE)
    """Finds the rank in it."""

    def read(self, text: str) -> int:
        """Return the rank that a text says, -1 for none."""
        match = self.pattern.search(text)
        number = match["rank"] if match is not None else None
        return int(number) if number and number.isdecimal() and int(number) < MOST_RANKS else -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesFile:
    """All rules of an import."""

    rules: Rules = BUILT_IN
    """Those of names alone, the file's before the built-in ones; and communication."""
    events: tuple[EventRule, ...] = ()
    """The file's, in its order."""
    rank: RankRule | None = None
    """Where ranks are read, if the file says."""
    places: Places = field(default_factory=dict)
    """Where each of its values is written."""

    def built_in(self, name: str) -> Found | None:
        """Return what a name stands for where the file has no rule for it."""
        action = BUILT_IN.action(name)
        if action is None:
            return None
        moves = action.kind in COMMUNICATION
        return Found(action=action, sends=action.kind in {Kind.SEND_F, Kind.SEND_B} if moves else None)

    def by_name(self, profiler: str) -> Rules:
        """Return the rules for a profiler whose files are read by the names of annotations alone.

        Raises:
            ConfigError: one asks for arguments, or for a rank that stands in no file's name; says which.
        """
        number = next((number for number, rule in enumerate(self.events) if rule.args), None)
        if number is not None:
            message = f"files of {profiler} are read by the names of annotations alone: say name, without args"
            raise self._refused(f"actions[{number}].args", message)
        if self.rank is not None and self.rank.source != "file":
            message = (
                f"files of {profiler} say their rank by themselves, or in their name: say from: file, or nothing"
            )
            raise self._refused("rank.from", message)
        return self.rules

    def ranked(self, recordings: Sequence[Recording]) -> Sequence[Recording]:
        """Return what a file holds, with the rank that these rules read in its name if they do and it is one."""
        rank = self.rank.read(recordings[0].path.name) if self.rank is not None and len(recordings) == 1 else -1
        return [replace(recordings[0], rank=rank)] if rank >= 0 else recordings

    def _refused(self, key: str, message: str) -> ConfigError:
        place = self.places.get(key) or self.places.get(key.split(".", maxsplit=1)[0])
        file, line = (place.source, place.line) if place is not None else ("", 0)
        return ConfigError(message, key=key, file=file, line=line)


NO_FILE = RulesFile()
"""The built-in rules alone."""


def read_rules(path: Path | None) -> RulesFile:
    """Read a file of rules; without one there are the built-in ones.

    Raises:
        ConfigError: it cannot be read, or a rule cannot be; says which, with its line.
    """
    if path is None:
        return NO_FILE
    from pptrace.config.options import validate_options
    from pptrace.config.yaml_file import read_yaml
    from pptrace_profilers.rules.schema import RulesModel

    document = read_yaml(path, _EXAMPLE)
    values = document.value if isinstance(document.value, dict) else {}
    model = validate_options(RulesModel, values, positions=document.places, file=path)
    events = tuple(_event_rule(one) for one in model.actions)
    pattern = _either(model.communication, document.places.get("communication"))
    by_name = [rule for rule in events if not rule.args]
    return RulesFile(
        rules=Rules(actions=(*by_name, *BUILT_IN.actions), communication=pattern),
        events=events,
        rank=RankRule(source=model.rank.source, pattern=re.compile(model.rank.pattern)) if model.rank else None,
        places=document.places,
    )


def _event_rule(one: ActionModel) -> EventRule:
    return EventRule(
        pattern=re.compile(one.name if one.name is not None else ".*", re.DOTALL if one.name is None else 0),
        args={key: re.compile(pattern) for key, pattern in one.args.items()},
        kind=Kind[one.kind] if one.kind is not None else None,
        stage=one.stage, microbatch=one.microbatch, peer=one.peer, stream=Stream(one.stream),
    )  # fmt: skip


def _either(patterns: Sequence[str], place: Place | None) -> re.Pattern[str]:
    """Return what finds any of some patterns, or the built-in one."""
    text = "|".join(f"(?:{one})" for one in (*patterns, BUILT_IN.communication.pattern))
    try:
        return re.compile(text, re.IGNORECASE)
    except re.error as error:
        file, line = (place.source, place.line) if place is not None else ("", 0)
        message = f"the patterns do not go together: {error}"
        raise ConfigError(message, key="communication", file=file, line=line) from None
