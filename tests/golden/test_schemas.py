"""JSON Schemas of a run's files: current, complete, and strict about what they say."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from docs import json_schemas
from runner.control.record.metrics_record import Stream, _line
from runner.core.model.metrics import parse_metrics
from runner.core.model.samples import GpuSample, GpuUser, Sample
from runner.core.protocol.events import EVENT_TYPES, Event, RankExited, Stalled, parse
from tests.lab.launching import ROOT

pytestmark = pytest.mark.documents("docs/formats.md")

PAGE = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
METRICS = parse_metrics(b'{"step": 3, "steps": 9, "loss": NaN, "rate": 1.5, "unit": "x", "a": "b"}')
GPU = GpuSample(
    *(0, "A100", 97, 1, 2, 300.5, 400.0, 64.0),
    throttled=("power",),
    users=(GpuUser(7, "ada", "python", 1, "0314-1592-digits-65a3"),),
    error="lost",
)
SAMPLE = Sample("gpu1", 0, 1e9, 8, 12.5, 1, 2, 3.0, 4.0, 5.0, 6.0, (GPU,), "hangs")
EVENT = Event("0314-1592-digits-65a3", "gpu1", 0, 1, 1e9, 5.5, RankExited(0, code=1))


def line_of(name: str) -> dict[str, Any]:
    """A line of a file in which every field has a value."""
    assert METRICS
    stream = Stream("gpu1", 0, 3, "out")
    written = {
        "metrics": lambda: _line(stream, 17, 1e9, METRICS),
        "samples": SAMPLE.to_line,
        "events": EVENT.to_line,
    }
    return dict(json.loads(written[name]()))


def committed(name: str) -> dict[str, Any]:
    """The schema in the repository."""
    return dict(json.loads(json_schemas.path_of(name).read_text(encoding="utf-8")))


def problems(name: str, line: object) -> list[str]:
    """What is wrong with a line."""
    validator = jsonschema.Draft202012Validator(committed(name))
    return [error.message for error in validator.iter_errors(line)]


def mutations(line: dict[str, Any], required: list[str]) -> Iterator[dict[str, Any]]:
    """Yield lines that each lack a field that has to be there, or have one of another type."""
    for key in required:
        yield {name: value for name, value in line.items() if name != key}
    for key, value in line.items():
        yield {**line, key: [value] if not isinstance(value, list) else "x"}
        yield {**line, key: {"x": [1]}}
    yield {**line, "v": 2}


@pytest.mark.parametrize("name", json_schemas.schemas())
def test_a_schema_is_current_and_a_schema(name: str) -> None:
    """`python -m docs.json_schemas` makes them."""
    made = json_schemas.schemas()[name]
    assert json_schemas.path_of(name).read_text(encoding="utf-8") == json_schemas.render(made)
    jsonschema.Draft202012Validator.check_schema(made)
    assert f"(schemas/{name}.schema.json)" in PAGE


@pytest.mark.parametrize("name", json_schemas.schemas())
def test_a_line_fits_and_each_change_of_it_does_not(name: str) -> None:
    """It has every field of the schema; another one is allowed, as a later release may add it."""
    line, schema = line_of(name), committed(name)
    fields = {*schema["properties"]}
    if name == "events":
        fields |= {*schema["$defs"]["rank_exited"]["properties"]}
    assert {*line} == fields
    assert problems(name, line) == []
    assert problems(name, {**line, "added_later": 1}) == []
    required = [*schema["required"], *(["rank"] if name == "events" else [])]
    for changed in mutations(line, required):
        assert problems(name, changed), changed


def test_values_out_of_their_limits_do_not_fit() -> None:
    """What our own reader would refuse, and texts that stand for no number."""
    gpu = line_of("samples")["gpus"][0]
    cases: dict[str, list[dict[str, Any]]] = {
        "metrics": [{"step": -1}, {"step": 1.5}, {"loss": "nan"}, {"stream": "log"}, {"node": "/"}],
        "samples": [{"cpu": 101}, {"cpu": None}, {"node": ""}, {"gpus": [{**gpu, "index": "0"}]}],
        "events": [{"kind": "exploded"}, {"rank": -1}, {"code": "1"}, {"attempt": -1}],
    }
    for name, changes in cases.items():
        for change in changes:
            assert problems(name, {**line_of(name), **change}), change


def test_every_kind_of_event_has_its_fields() -> None:
    """In the schema and by their types; the page of the run folder has a row of each."""
    schema = committed("events")
    assert schema["properties"]["kind"]["enum"] == [*schema["$defs"]] == [*EVENT_TYPES]
    rows = (ROOT / "docs" / "run-folder.md").read_text(encoding="utf-8").partition("## Events\n")[2]
    envelope = {**line_of("events")}
    for kind, cls in EVENT_TYPES.items():
        definition = schema["$defs"][kind]
        assert [*definition["properties"]] == [each.name for each in dataclasses.fields(cls)]
        assert f"\n| `{kind}` | " in rows
        for key in definition.get("required", []):
            bare = {name: envelope[name] for name in schema["required"]}
            assert any(key in text for text in problems("events", {**bare, "kind": kind}))
    stalled = dataclasses.replace(EVENT, body=Stalled(5.0))
    assert problems("events", json.loads(stalled.to_line())) == []
    assert parse(stalled.to_line()) == stalled


def test_the_page_names_every_field() -> None:
    """Of metrics, samples with their parts, and the envelope of events."""
    samples = committed("samples")
    for fields in (
        committed("metrics")["properties"],
        samples["properties"],
        *(each["properties"] for each in samples["$defs"].values()),
        committed("events")["properties"],
    ):
        assert {*fields} <= {*re.findall(r"`(\w+)`", PAGE)}
