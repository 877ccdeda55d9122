"""JSON Schemas of a run's files, made from the code: `python -m docs.json_schemas` writes them."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

from runner.control.record import metrics_record
from runner.core.model import metrics, samples
from runner.core.protocol import events
from runner.core.protocol.paths import ATTEMPT, NODE_NAME, RANK

FOLDER = Path(__file__).with_name("schemas")
DIALECT = "https://json-schema.org/draft/2020-12/schema"
SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean"}
NOT_FINITE = ["NaN", "Infinity", "-Infinity"]
"""Texts in place of the numbers that JSON lacks."""

Schema = dict[str, Any]


def schemas() -> dict[str, Schema]:
    """Return the schema of each file, by its name without the suffix."""
    return {"metrics": metrics_schema(), "samples": samples_schema(), "events": events_schema()}


def metrics_schema() -> Schema:
    """Return the schema of a line of `metrics.jsonl`."""
    count = {"type": "integer", "minimum": 0}
    step = {**count, "exclusiveMaximum": metrics.MAX_STEP}
    number = {"anyOf": [{"type": "number"}, {"enum": NOT_FINITE}]}
    origin = {"node": (str, NODE_NAME), "attempt": (int, ATTEMPT), "rank": (int, RANK)}
    text = {"type": "string", "maxLength": metrics.MAX_TEXT}
    more = {"type": "object", "additionalProperties": {"anyOf": [{"type": "number"}, text]}}
    figures: Schema = {
        "step": {**step, "description": "the steps done"},
        "steps": {"anyOf": [step, {"type": "null"}], "description": "the steps in all"},
        "loss": {"anyOf": [*number["anyOf"], {"type": "null"}]},
        "rate": {
            "anyOf": [*number["anyOf"], {"type": "null"}],
            "description": "what is done per second by all ranks together, in `unit`",
        },
        "unit": {"type": "string", "maxLength": metrics.MAX_UNIT},
        "more": {**more, "maxProperties": metrics.MAX_MORE},
    }
    assert list(figures) == list(metrics.Metrics(0).as_data())  # noqa: S101
    properties = {
        **{name: of_type(hint, metadata, {}) for name, (hint, metadata) in origin.items()},
        "stream": {"enum": ["out", "err", "metrics"]},
        "offset": {**count, "description": "where the line begins in that log, in bytes"},
        "time": {
            "type": ["number", "null"],
            "description": "seconds since 1970, when the host first saw the line",
        },
        **figures,
    }
    assert list(properties)[:4] == list(metrics_record.Stream._fields)  # noqa: S101
    title = "A line of metrics.jsonl: what a program tells of its progress"
    return _file("metrics", metrics_record.VERSION, title, properties, list(properties))


def samples_schema() -> Schema:
    """Return the schema of a line of `samples.jsonl`, in which what is unknown is left out."""
    definitions: Schema = {}
    body = of_class(samples.Sample, definitions, may_be_null=False)
    title = "A line of samples.jsonl: the load of a host and of its GPUs at one moment"
    made = _file(
        "samples", samples.SAMPLES_VERSION, title, body["properties"], body.get("required", [])
    )
    return {**made, "$defs": definitions}


def events_schema() -> Schema:
    """Return the schema of a line of `events.jsonl`: an envelope, and the fields of each kind."""
    definitions: Schema = {}
    envelope = of_class(events.Event, definitions)
    del envelope["properties"]["body"]
    kinds = {kind: of_class(cls, {}) for kind, cls in events.EVENT_TYPES.items()}
    properties = {"kind": {"enum": list(kinds)}, **envelope["properties"]}
    title = "A line of events.jsonl: what happened in a run, where and when"
    made = _file("events", events.EVENT_VERSION, title, properties, list(properties))
    choices = [
        {
            "if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]},
            "then": {"$ref": f"#/$defs/{kind}"},
        }
        for kind in kinds
    ]
    return {**made, "allOf": choices, "$defs": kinds}


def _file(
    name: str, version: int, title: str, properties: Mapping[str, Any], required: list[str]
) -> Schema:
    """Return the schema of one line of a file."""
    return {
        "$schema": DIALECT,
        "$id": f"urn:runner:{name}:{version}",
        "title": title,
        "type": "object",
        "properties": {"v": {"const": version}, **properties},
        "required": ["v", *required],
    }


def of_class(cls: type, definitions: Schema, *, may_be_null: bool = True) -> Schema:
    """Return the schema of a dataclass; those of other classes in it go to `definitions`."""
    hints, comments = get_type_hints(cls), _comments(cls)
    properties, required = {}, []
    for field in dataclasses.fields(cls):
        made = of_type(hints[field.name], field.metadata, definitions, may_be_null=may_be_null)
        if comment := comments.get(field.name):
            made["description"] = comment
        properties[field.name] = made
        has_default = field.default is not dataclasses.MISSING
        if not has_default and field.default_factory is dataclasses.MISSING:
            required.append(field.name)
    summary = " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())
    made = {"description": summary, "type": "object", "properties": properties}
    return {**made, "required": required} if required else made


def of_type(
    hint: Any, metadata: Mapping[str, Any], definitions: Schema, *, may_be_null: bool = True
) -> Schema:
    """Return the schema of a field's value, with the limits that are checked when it is read."""
    args: tuple[Any, ...] = getattr(hint, "__args__", ())
    if type(None) in args:
        inner = next(arg for arg in args if arg is not type(None))
        made = of_type(inner, metadata, definitions, may_be_null=may_be_null)
        return {"anyOf": [made, {"type": "null"}]} if may_be_null else made
    if getattr(hint, "__origin__", None) is tuple:
        items = of_type(args[0], metadata, definitions, may_be_null=may_be_null)
        return {"type": "array", "items": items}
    if dataclasses.is_dataclass(hint):
        assert isinstance(hint, type)  # noqa: S101 (for mypy)
        definitions[hint.__name__] = of_class(hint, definitions, may_be_null=may_be_null)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {"enum": [member.value for member in hint]}
    made = {"type": SCALARS[hint]} if hint in SCALARS else {}
    if "bounds" in metadata:
        low, high = metadata["bounds"]
        made |= {"minimum": int(low), "maximum": int(high)}
    if "pattern" in metadata:
        made["pattern"] = f"^(?:{metadata['pattern'].pattern})$"
    return made


def _comments(cls: type) -> dict[str, str]:
    """Return the comments behind the fields of a class."""
    found = re.findall(r"^    (\w+): [^#\n]*?  # (.+)$", inspect.getsource(cls), re.MULTILINE)
    return dict(found)


def render(schema: Schema) -> str:
    """Return the text of a schema's file."""
    return json.dumps(schema, indent=2) + "\n"


def path_of(name: str) -> Path:
    """Return the file of a schema."""
    return FOLDER / f"{name}.schema.json"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each, made in schemas().items():
        path_of(each).write_text(render(made), encoding="utf-8")
