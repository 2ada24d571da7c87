"""A YAML file of rules: how names and arguments of a trace say actions, messages, communication and ranks.

Patterns are regular expressions of Python; those of names and arguments match the whole text, the others find a
part. What they capture by name, or what stands beside them, says what an event is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pptrace.plugin import ConfigError, Kind
from pptrace_profilers.rules.actions import BUILT_IN, Rule, Rules, Stream
from pptrace_profilers.rules.ranks import RankRule
from pptrace_profilers.rules.timed import TimedPattern

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pptrace.plugin import Place, Places
    from pptrace_profilers.recording.recording import Recording
    from pptrace_profilers.rules.schema import ActionModel
    from pptrace_profilers.rules.timed import Matcher

__all__ = ["NO_FILE", "RulesFile", "read_rules"]

_EXAMPLE = r"actions: [{name: 'QQ:(?P<action>.+)'}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesFile:
    """All rules of an import."""

    rules: Rules = BUILT_IN
    """Those of events, the file's before the built-in ones; and communication."""
    rank: RankRule | None = None
    """Where ranks are read, if the file says."""
    places: Places = field(default_factory=dict)
    """Where each of its values is written."""

    def by_name(self, profiler: str) -> Rules:
        """Return the rules for a profiler whose files are read by the names of annotations alone.

        Raises:
            ConfigError: one asks for arguments, or for a rank that stands in no file's name; says which.
        """
        number = next((number for number, rule in enumerate(self.rules.actions) if rule.args), None)
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
        return _error_at(place, key, message)


NO_FILE = RulesFile()
"""The built-in rules alone."""


def read_rules(path: Path | None) -> RulesFile:
    """Read a file of rules; without one there are the built-in ones.

    Raises:
        ConfigError: it cannot be read, or a rule cannot be; says which, with its line.
    """
    if path is None:
        return NO_FILE
    from pptrace.plugin import read_yaml, validate_options
    from pptrace_profilers.rules.schema import RulesModel

    document = read_yaml(path, _EXAMPLE)
    values = document.value if isinstance(document.value, dict) else {}
    model = validate_options(RulesModel, values, positions=document.places, file=path)
    return RulesFile(
        rules=Rules(
            actions=(
                *(_rule(action, number, document.places) for number, action in enumerate(model.actions)),
                *BUILT_IN.actions,
            ),
            communication=_either(model.communication, document.places),
        ),
        rank=RankRule(
            source=model.rank.source, pattern=_timed(model.rank.pattern, "rank.pattern", document.places)
        )
        if model.rank
        else None,
        places=document.places,
    )


def _rule(model: ActionModel, number: int, places: Places) -> Rule:
    key = f"actions[{number}]"
    return Rule(
        pattern=re.compile(".*", re.DOTALL) if model.name is None else _timed(model.name, f"{key}.name", places),
        args={name: _timed(pattern, f"{key}.args.{name}", places) for name, pattern in model.args.items()},
        kind=Kind[model.kind] if model.kind is not None else None,
        stage=model.stage, microbatch=model.microbatch, peer=model.peer, stream=Stream(model.stream),
    )  # fmt: skip


def _timed(text: str, key: str, places: Places, flags: int = 0) -> TimedPattern:
    """Return a user's pattern, with the error that says where it stands."""
    place = places.get(key) or places.get(key.rpartition(".")[0]) or places.get(key.partition("[")[0])
    return TimedPattern(compiled=re.compile(text, flags), error=lambda what: _error_at(place, key, what))


def _either(patterns: Sequence[str], places: Places) -> Matcher:
    """Return what finds any of some patterns, or the built-in one."""
    if not patterns:
        return BUILT_IN.communication
    text = "|".join(f"(?:{pattern})" for pattern in (*patterns, BUILT_IN.communication.pattern))
    try:
        return _timed(text, "communication", places, re.IGNORECASE)
    except re.error as error:
        place = places.get("communication")
        raise _error_at(place, "communication", f"the patterns do not go together: {error}") from None


def _error_at(place: Place | None, key: str, message: str) -> ConfigError:
    file, line = (place.source, place.line) if place is not None else ("", 0)
    return ConfigError(message, key=key, file=file, line=line)
