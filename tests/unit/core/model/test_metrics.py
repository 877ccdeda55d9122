"""Metrics lines: what is one, what is broken, and what stays ordinary output."""

from __future__ import annotations

import itertools
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.model.metrics import (
    MAX_LINE,
    Metrics,
    MetricsReader,
    compile_pattern,
    parse_metrics,
)

EPOCH = re.compile(r"epoch (\d+)/(\d+)")


def test_all_figures_of_a_line_are_kept() -> None:
    """Numbers and short texts that have no name of their own, too; others are left out."""
    line = b'{"step": 20, "steps": 240, "loss": 0.5, "rate": 8, "unit": "images", "lr": 1e-3, '
    line += b'"phase": "warm", "list": [1], "done": true, "big": "' + b"x" * 300 + b'"}\r'
    assert parse_metrics(line) == Metrics(20, 240, 0.5, 8, "images", {"lr": 0.001, "phase": "warm"})
    assert parse_metrics(b'  {"loss": 1, "step": 3}  ') == Metrics(3, None, 1)
    assert parse_metrics(b'{"step": 5.0, "steps": 1e3}') == Metrics(5, 1000)


def test_what_is_not_finite_is_a_text_on_record() -> None:
    """NaN and infinity are news of a training, and no JSON."""
    metrics = parse_metrics(b'{"step": 1, "loss": NaN, "rate": Infinity, "grad": -1e999}')
    assert metrics is not None
    data = metrics.as_data()
    assert (data["loss"], data["rate"], data["more"]) == ("NaN", "Infinity", {"grad": "-Infinity"})
    json.dumps(data, allow_nan=False)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        pytest.param(b'{"step": 2.5}', "step is no whole number", id="float"),
        pytest.param(b'{"step": -1}', "step is no whole number", id="negative"),
        pytest.param(b'{"step": 9007199254740992}', "step is no whole number", id="large"),
        pytest.param(b'{"step": 1, "steps": "all"}', "steps is no whole number", id="steps"),
        pytest.param(b'{"step": 1, "rate": [1]}', "rate is no number", id="rate"),
        pytest.param(b'{ "step" : 1, "loss": 0.', "is no JSON", id="torn"),
        pytest.param(b'{"step": 1, "a": ' + b"[" * 4000, "nested too deeply", id="nested"),
        pytest.param(b'{"step": 1, "a": "' + b"x" * MAX_LINE + b'"}', "longer than", id="huge"),
        pytest.param(b'{"step": 1, "a": "\xff"}', "no UTF-8", id="binary"),
    ],
)
def test_a_broken_line_says_why(line: bytes, reason: str) -> None:
    """It begins as a metrics line does."""
    with pytest.raises(ValueError, match=reason):
        parse_metrics(line)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"step 3",
        b'{"loss": 1}',
        b'{"a": "step"}',
        b'{"loss": 1, "step"',
        b'{"a": {"step": 3}}',
        b'{"step": "20"}',
        b'{"step": null}',
    ],
)
def test_other_lines_are_none(line: bytes) -> None:
    """Other JSON as well, also with a step that is no number; what is torn before it was seen."""
    assert parse_metrics(line) is None


@pytest.mark.parametrize(
    ("line", "is_all"),
    [
        (b'{"step": 1, "steps": 9, "loss": null, "rate": 3.5, "unit": "images", "lr": 1e-3}', True),
        (b'{"level": "error", "msg": "checkpoint failed: disk full", "step": 99}', False),
        (b'{"step": 3, "losses": [1, 2]}', False),
        (b"epoch 1/3 val_acc 0.91 WARNING grad overflow", False),
    ],
)
def test_a_line_is_all_figures_or_says_more(line: bytes, is_all: bool) -> None:
    """A bar may stand for the former; what a pattern matches is never known to be."""
    metrics = parse_metrics(line, EPOCH)
    assert metrics is not None
    assert metrics.is_all_figures == is_all


@given(st.binary(max_size=200))
def test_no_line_is_too_strange(junk: bytes) -> None:
    """A line is metrics, broken or neither, whatever is in it."""
    reasons: list[str] = []
    reader = MetricsReader(EPOCH, on_broken=lambda _, reason: reasons.append(reason))
    for line in (junk, b'{"step": ' + junk, b'{"step": 1, ' + junk + b"}"):
        reader.feed(line + b"\n")
    assert all(reason.isprintable() for reason in reasons)


LINES = [b'{"step": 1}', b"", b"noise", b'{"step": 0', b'{"a": "' + b"y" * 9000, b'{"step": 7}\r']


@given(st.lists(st.sampled_from(LINES), max_size=8), st.lists(st.integers(0, 20_000), max_size=6))
def test_pieces_do_not_matter(lines: list[bytes], cuts: list[int]) -> None:
    """Where a stream is cut changes nothing of what is found, or where."""
    text = b"".join(line + b"\n" for line in lines) + b'{"step": 9}'
    expected, start = [], 0
    for line in lines:
        if line in (LINES[0], LINES[-1]):
            expected.append((start, 1 if line is LINES[0] else 7))
        start += len(line) + 1
    broken: list[int] = []
    reader = MetricsReader(on_broken=lambda offset, _: broken.append(offset))
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    found = []
    for begin, end in itertools.pairwise(places):
        assert reader.position == begin
        found += [(offset, metrics.step) for offset, metrics in reader.feed(text[begin:end])]
    assert found == expected, "the last line has no end"
    assert len(broken) == lines.count(LINES[3])


def test_a_pattern_finds_the_steps_of_a_programs_own_lines() -> None:
    """The last form of a line that redrew itself counts; JSON lines are metrics still."""
    assert parse_metrics(b"train epoch 3/10, loss 0.3", EPOCH) == Metrics(3, 10)
    assert parse_metrics(b"epoch 3/10\repoch 4/10\r", EPOCH) == Metrics(4, 10)
    assert parse_metrics(b'{"step": 1}', EPOCH) == Metrics(1)
    assert parse_metrics(b"epoch x/10", EPOCH) is None
    assert parse_metrics(b"epoch " + b"9" * 400 + b"/10", EPOCH) is None
    assert parse_metrics(b"x" * 195 + b"epoch 3/10", EPOCH) is None, "not in the first 200"
    one_of_two = compile_pattern(r"epoch (\d+)(?:/(\d+))?$|^it (\S+)")
    assert parse_metrics(b"epoch 3", one_of_two) == Metrics(3)
    assert parse_metrics(b"it 5", one_of_two) == Metrics(5)
    assert parse_metrics(b"it V", one_of_two) is None
    assert compile_pattern("epoch (") is None, "a newer Python took it"
