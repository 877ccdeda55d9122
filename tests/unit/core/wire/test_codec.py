"""Data goes to JSON and comes back the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runner.core.outcome.attempt_events import NodeResult, RankResult
from runner.core.outcome.verdict import Verdict
from runner.core.results import PullResult
from runner.core.wire.codec import decode, encode
from runner.core.wire.events import Ended, RankExited
from runner.core.wire.facts import Facts, FactsRequest, Gpu
from tests.golden.builders import failed
from tests.unit.control.lying_host import BODIES, FACTS, INFO, LIAR, PLAN

WHOLE = Verdict(
    "failed",
    1,
    0.5,
    failed("a", 1, -9),
    unverified=("b",),
    nodes={"a": NodeResult(1, survivors=(4711,))},
    ranks={"1": RankResult("a", None, 9, traceback="ß→🙂\x00\x1b", facts={"path": "/bin"})},
    past_attempts=INFO.past_attempts,
)
ASKED = FactsRequest(node="a", setup=("x",), tool_timeout_s=0.5)
SAMPLES = [*BODIES, FACTS[LIAR], PLAN, INFO, WHOLE, ASKED]
SAMPLES = [*BODIES, FACTS[LIAR], PLAN, INFO, WHOLE, ASKED]


@pytest.mark.parametrize(
    "value",
    SAMPLES,
    ids=lambda value: type(value).__name__,
)
def test_every_kind_of_data_survives_json(value: Any) -> None:
    """What is written as JSON text is read back equal, whatever is in it."""
    assert decode(type(value), json.loads(json.dumps(encode(value)))) == value


def test_unknown_fields_are_ignored() -> None:
    """A newer side may say more, at every depth."""
    data = {"node": "a", "moon": 1, "gpus": [{"index": 3, "colour": "red"}]}

    assert decode(Facts, data) == Facts("a", gpus=(Gpu(3),))


@pytest.mark.parametrize(
    ("cls", "data"),
    [
        (RankExited, ["rank", 3]),
        (Ended, {"state": "stuck", "survivors": "78"}),
        (Facts, {"node": "a", "preset_env": ["A"]}),
        (Facts, {"node": "a", "gpus": [7]}),
    ],
)
def test_data_of_another_shape_is_a_value_error(cls: type[Any], data: Any) -> None:
    """Whatever comes from outside, readers need to catch one exception only."""
    with pytest.raises(ValueError):  # noqa: PT011 (any of them will do)
        decode(cls, data)


def test_a_set_becomes_a_list() -> None:
    """In order, as `pull --json` prints it."""
    assert json.loads(json.dumps(encode(PullResult(folders={"b", "a"}))))["folders"] == ["a", "b"]
