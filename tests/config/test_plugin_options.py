"""A plugin's parameter model gets the same one-line errors, presets below what the user wrote, and origins."""

from pathlib import Path
from typing import Annotated, Literal, Self

import pytest
from pydantic import BaseModel, ConfigDict, Field, model_validator

from pptrace.config.places import Place
from pptrace.config.quantities import Duration, Flops, Rate, Size
from pptrace.config.resolution import load
from pptrace.config.validation import merged, validate_options
from pptrace.errors import ConfigError


class Rates(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    matmul: Annotated[float, Field(gt=0, le=1)] = 0.7
    copies: float = 0.9


class Device(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    memory: Size = Field(description="Memory of one device.")
    peak: Flops
    link: Rate | None = None
    message: Size | list[Size] = 0
    launch: Duration = 3000
    efficiency: Rates = Rates()
    split: tuple[int, ...] | int | None = None
    precision: Literal["bf16", "fp8"] = "bf16"
    stages: list[Rates] = []

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.precision == "fp8" and self.memory < 2**30:
            msg = "fp8 needs\n1 GiB of memory"
            raise ValueError(msg)
        return self


PRESET = {"memory": 80 * 2**30, "peak": 989 * 10**12, "efficiency": {"matmul": 0.6}}
STEP = """\
schedule: 1f1b
parallel: {pp: 8}
batch: {microbatches: 32}
device:
  preset: h100
  launch: 4 us
  efficiency: {copies: 0.5}
"""


def test_a_preset_stands_under_what_the_user_wrote(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(STEP, encoding="utf-8")

    resolved, device = load(tmp_path / "s.yaml").options("device", Device, PRESET)

    assert (device.memory, device.launch) == (80 * 2**30, 4000)
    assert device.efficiency == Rates(matmul=0.6, copies=0.5)
    rows = {key: (value, origin) for key, value, origin in resolved.explain()}
    assert rows["device.preset"][0] == "h100"
    assert rows["device.memory"] == ("80 GiB", "preset h100")
    assert rows["device.efficiency.matmul"] == (0.6, "preset h100")
    assert rows["device.efficiency.copies"] == (0.5, f"{tmp_path / 's.yaml'}:7")
    assert rows["device.launch"] == ("4 us", f"{tmp_path / 's.yaml'}:6")
    assert rows["device.precision"] == ("bf16", "default")
    assert resolved.options("device", Device)[1] == device


def test_the_options_of_a_schedule_stand_under_options() -> None:
    flags = {"schedule": {"name": "zb", "options": {"matmul": 0.5}}, "pp": 2, "microbatches": 4}

    resolved, options = load(None, flags=flags).options("schedule", Rates)

    assert options == Rates(matmul=0.5)
    assert resolved.experiment.schedule.options == {"matmul": 0.5, "copies": 0.9}
    assert resolved.origin("schedule.options.matmul") == "--schedule"
    assert resolved.origin("schedule.options.copies") == "default"


def test_a_section_that_nobody_wrote_takes_defaults() -> None:
    resolved = load(None, flags={"schedule": "1f1b", "pp": 2, "microbatches": 4})

    assert resolved.options("device", Rates)[1] == Rates()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"memry": "1 GiB"}, "device.memry: unknown key (did you mean 'memory'? known: efficiency, launch"),
        ({"memory": 80}, "device.memory: 80 has no unit; write a size as"),
        ({"memory": "80 Gib"}, "device.memory: unknown unit 'Gib' (did you mean 'GiB'?)"),
        ({"launch": 1.5}, "device.launch: 1.5 has no unit"),
        ({"launch": True}, "device.launch: must be a time in text"),
        ({"message": 0}, "device.message: 0 has no unit; write a size as"),
        ({"message": "3 parsecs"}, "device.message: unknown unit 'parsecs'; write a size as"),
        ({"efficiency": {"matmul": 0}}, "device.efficiency.matmul: must be above 0, not 0"),
        ({"efficiency": {"matmul": "0.5"}}, "matmul: must be a number, not '0.5'; remove the quotes"),
        ({"efficiency": {"matmull": 1}}, "device.efficiency.matmull: unknown key (did you mean 'matmul'?"),
        ({"split": "8"}, "device.split: must be a list or a whole number, not '8'; remove the quotes"),
        ({"split": [1, "x"]}, "device.split[1]: must be a whole number, not 'x'"),
        ({"split": [1, True]}, "device.split[1]: must be a whole number, not true"),
        ({"stages": [{}, {"x": 1}]}, "device.stages[1].x: unknown key (known: copies, matmul)"),
        ({"precision": "fp16"}, "device.precision: unknown value 'fp16' (did you mean 'bf16'? known: bf16, fp8)"),
        ({"precision": "fp8", "memory": "1 MiB"}, "device: fp8 needs 1 GiB of memory"),
        ({"efficiency": None}, "device.efficiency: must be a mapping, not nothing"),
        ({"efficiency": {"copies": float("nan")}}, "device.efficiency.copies: a number must be finite"),
    ],
)
def test_a_wrong_option_is_one_line(values: dict[str, object], message: str) -> None:
    places = {f"device.{key}": Place(source="s.yaml", line=4, column=3) for key in values}

    with pytest.raises(ConfigError) as caught:
        validate_options(Device, merged(PRESET, values), "device", places, file="s.yaml")

    assert message in str(caught.value)
    assert str(caught.value).startswith("s.yaml:4:3: " if "fp8 needs" not in message else "s.yaml: ")
    assert "\n" not in str(caught.value)


def test_a_missing_option_says_what_it_is() -> None:
    with pytest.raises(ConfigError, match=r"^device\.memory: missing: memory of one device$"):
        validate_options(Device, {"peak": "1 PFLOP/s"}, "device")
    with pytest.raises(ConfigError, match=r"^device\.peak: missing; write it$"):
        validate_options(Device, {"memory": "1 GiB"}, "device")


def test_the_key_and_place_stand_in_the_error_for_others_to_read() -> None:
    place = Place(source="s.yaml", line=4, column=3)

    with pytest.raises(ConfigError) as caught:
        validate_options(Rates, {"matmul": 2}, "costs", {"costs.matmul": place})

    error = caught.value
    assert (error.key, error.file, error.line, error.column) == ("costs.matmul", "s.yaml", 4, 3)
    assert error.message == "must be at most 1, not 2"


def test_a_model_that_would_ignore_an_unknown_key_does_not() -> None:
    class Careless(BaseModel):
        depth: int = 3

    places = {"schedule.options.dept": Place(source="s.yaml", line=4, column=3)}

    with pytest.raises(ConfigError, match=r"^s\.yaml:4:3: schedule\.options\.dept: unknown key \(did you mean"):
        validate_options(Careless, {"dept": 4}, "schedule.options", places)


@pytest.mark.parametrize("values", [{"memory": "\udcff"}, {"memory": ["a", {"b": "\udcff"}]}, {"\udcff": 1}])
def test_text_that_is_no_unicode_is_named(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"^device\..* not UTF-8 text$"):
        validate_options(Device, values, "device")
