"""Schema of a YAML file of naming rules."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from pptrace.plugin import Kind

_GROUPS = ("action", "kind", "stage", "microbatch", "peer", "bytes")


def _compiled(text: str) -> str:
    try:
        re.compile(f"(?:{text})")
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{text!r} is no regular expression: {error}") from None
    return text


Pattern = Annotated[str, AfterValidator(_compiled)]


class ActionModel(BaseModel):
    """Rule that names one kind of event."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Pattern | None = Field(None, description="pattern of the event's whole name")
    args: dict[str, Pattern] = Field(default_factory=dict, description="patterns of whole arguments, by their key")
    kind: str | None = Field(None, description="F, B, I, W, SEND_F and so on")
    stage: int | None = Field(None, ge=0, lt=2**31)
    microbatch: int | None = Field(None, ge=0, lt=2**31)
    peer: int | None = Field(None, ge=0, lt=2**31)
    stream: Literal["compute", "send", "receive", "data-parallel"] = "compute"

    @model_validator(mode="after")
    def _check_patterns(self) -> ActionModel:
        patterns = [*([self.name] if self.name is not None else []), *self.args.values()]
        if not patterns:
            raise ValueError("needs a pattern: name, args, or both")
        groups = [group for pattern in patterns for group in re.compile(f"(?:{pattern})").groupindex]
        unknown = next((group for group in groups if group not in _GROUPS), None)
        if unknown is not None:
            raise ValueError(f"group {unknown!r} means nothing; there are {', '.join(_GROUPS)}")
        constants = {"kind": self.kind, "stage": self.stage, "microbatch": self.microbatch, "peer": self.peer}
        duplicates = [group for group in groups if groups.count(group) > 1 or constants.get(group) is not None]
        if duplicates:
            raise ValueError(f"{duplicates[0]!r} is said twice")
        if self.kind is not None and self.kind not in Kind.__members__:
            raise ValueError(f"kind {self.kind!r} is none; there are {', '.join(Kind.__members__)}")
        if self.stream == "compute" and self.kind is None and not {"action", "kind"} & set(groups):
            raise ValueError("says no kind: write kind:, or a group named action or kind")
        return self


class RankModel(BaseModel):
    """Rule that reads the global rank of a process."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str = Field(alias="from", description="file, pid, process_name, or args. and an argument's key")
    pattern: Pattern = r"(?P<rank>\d+)"

    @model_validator(mode="after")
    def _check_source(self) -> RankModel:
        if self.source not in {"file", "pid", "process_name"} and not re.fullmatch(r"args\..+", self.source):
            raise ValueError(f"{self.source!r} says no rank; there are file, pid, process_name and args.KEY")
        if set(re.compile(f"(?:{self.pattern})").groupindex) != {"rank"}:
            raise ValueError("the pattern needs one group, named rank")
        return self


class RulesModel(BaseModel):
    """Contents of a file of rules."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    actions: list[ActionModel] = Field(default_factory=list)
    communication: list[Pattern] = Field(default_factory=list)
    rank: RankModel | None = None
