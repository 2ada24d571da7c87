"""A JSON Schema of Perfetto's trace manifest, from https://perfetto.dev/docs/reference/perfetto-manifest."""

from __future__ import annotations

from typing import Any

__all__ = ["MANIFEST", "placed"]

_CLOCK = {"enum": ["REALTIME", "REALTIME_COARSE", "MONOTONIC", "MONOTONIC_COARSE", "MONOTONIC_RAW", "BOOTTIME"]}
_WORD = {"type": "string", "minLength": 1}


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


MANIFEST = _object(
    ["perfetto_manifest"],
    perfetto_manifest=_object(
        ["version"],
        version={"const": 1},
        trace_time=_object(["clock"], clock=_CLOCK, file=_WORD, machine=_WORD),
        files={
            "type": "array",
            "items": {
                **_object(
                    ["path"],
                    path=_WORD,
                    machine=_object(["name"], name=_WORD),
                    machines={
                        "type": "array",
                        "items": _object(["id", "name"], id={"type": "integer"}, name=_WORD),
                    },
                    clocks=_object(
                        ["sync_to"],
                        clock=_CLOCK,
                        machine=_WORD,
                        sync_to=_object(["file"], file=_WORD, machine=_WORD, clock=_CLOCK),
                        offset_ns={"type": "integer", "exclusiveMinimum": -(2**63), "maximum": 2**63 - 1},
                    ),
                ),
                "not": {"required": ["machine", "machines"]},
            },
        },
        attributes={"type": "object", "additionalProperties": {"type": ["string", "integer"]}},
    ),
)


def placed(manifest: dict[str, Any]) -> dict[str, int]:
    """Return what is added to each file's times, as a trace processor does by the manifest's words.

    "At a common instant, the source clock reads T when the reference clock reads T + offset_ns."
    """
    files = {entry["path"]: entry.get("clocks") for entry in manifest["perfetto_manifest"]["files"]}
    for clocks in files.values():
        assert clocks is None or clocks["sync_to"]["file"] in files
    references = {path for path, clocks in files.items() if clocks is None}
    assert len(references) == 1
    assert all(clocks["sync_to"]["file"] in references for clocks in files.values() if clocks)
    return {path: clocks["offset_ns"] if clocks else 0 for path, clocks in files.items()}
