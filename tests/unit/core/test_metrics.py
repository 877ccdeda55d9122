"""Metrics lines: what is one, and what stays ordinary output."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.metrics import (
    MAX_LINE,
    LatestMetrics,
    Metrics,
    compile_pattern,
    parse_metrics,
)

EPOCH = re.compile(r"epoch (\d+)/(\d+)")


def test_all_figures_of_a_line_are_kept() -> None:
    """Numbers that have no name of their own, too; others are left out."""
    line = b'{"step": 20, "steps": 240, "loss": 0.5, "rate": 8, "unit": "images", "lr": 1e-3, '
    line += b'"phase": "warm", "list": [1], "done": true}\r'
    assert parse_metrics(line) == Metrics(20, 240, 0.5, 8, "images", {"lr": 0.001})
    assert parse_metrics(b'  {"loss": 1, "step": 3}  ') == Metrics(3, None, 1)
    assert parse_metrics(b'{"step": 5.0, "steps": 1e3}') == Metrics(5, 1000)
    odd = parse_metrics(b'{"step": 1, "steps": "all", "rate": [1], "unit": 3}')
    assert odd == Metrics(1)
    assert odd.is_all_figures is False


def test_what_is_not_finite_is_a_text_on_record() -> None:
    """NaN and infinity are news of a training, and no JSON."""
    metrics = parse_metrics(b'{"step": 1, "loss": NaN, "rate": Infinity, "grad": -1e999}')
    assert metrics is not None
    data = metrics.as_data()
    assert (data["loss"], data["rate"], data["more"]) == ("NaN", "Infinity", {"grad": "-Infinity"})
    json.dumps(data, allow_nan=False)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b'{"loss": 1, "step"',
        b'{"a": {"step": 3}}',
        b'{"step": "20"}',
        b'{"step": -1}',
        b'{"step": NaN}',
        b'{"step": 9007199254740992}',
        b'{ "step" : 1, "loss": 0.',
        b'{"step": 1, "a": ' + b"[" * 4000,
        b'{"step": 1, "a": "' + b"x" * MAX_LINE + b'"}',
        b'{"step": 1, "a": "\xff"}',
    ],
)
def test_other_lines_are_none(line: bytes) -> None:
    """Other JSON as well, also with a step that is no whole number; torn and endless lines."""
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


@given(st.binary(max_size=200), st.sampled_from([EPOCH, None]))
def test_no_line_is_too_strange(junk: bytes, pattern: re.Pattern[str] | None) -> None:
    """A line is metrics or not, whatever is in it."""
    for line in (junk, b'{"step": ' + junk, b'{"step": 1, ' + junk + b"}", b"step 3 loss " + junk):
        parse_metrics(line, pattern)


def test_a_pattern_finds_the_steps_of_a_programs_own_lines() -> None:
    """The last form of a line that redrew itself counts; JSON lines are metrics still."""
    assert parse_metrics(b"train epoch 3/10, loss 0.3", EPOCH) == Metrics(3, 10)
    assert parse_metrics(b"epoch 3/10\repoch 4/10\r", EPOCH) == Metrics(4, 10)
    assert parse_metrics(b'{"step": 1}', EPOCH) == Metrics(1)
    assert parse_metrics(b"epoch " + b"9" * 400 + b"/10", EPOCH) is None
    assert parse_metrics(b"x" * 195 + b"epoch 3/10", EPOCH) is None, "not in the first 200"
    one_of_two = compile_pattern(r"epoch (\d+)(?:/(\d+))?$|^it (\S+)")
    assert parse_metrics(b"it 5", one_of_two) == Metrics(5)
    assert parse_metrics(b"it V", one_of_two) is None
    assert compile_pattern("epoch (") is None, "a newer Python took it"


def test_each_named_group_of_a_pattern_is_a_metric() -> None:
    """What is no number is left out."""
    pattern = compile_pattern(r"it (?P<step>\d+) of (?P<steps>\S+): (?P<loss>\S+) (?P<bleu>\S+)")
    assert parse_metrics(b"it 5 of 9: 0.5 31.2", pattern) == Metrics(5, 9, 0.5, more={"bleu": 31.2})
    assert parse_metrics(b"it 5 of ?: 0.5 -", pattern) == Metrics(5, None, 0.5)
    only_loss = compile_pattern(r"loss is (?P<loss>\S+)")
    assert parse_metrics(b"loss is 0.5", only_loss) == Metrics(None, loss=0.5)
    assert parse_metrics(b"loss is unknown", only_loss) is None


BAR = "\N{FULL BLOCK}" * 4
OF_EPOCH_3: dict[str, Any] = {"more": {"epoch": 3}, "epoch": 3}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("epoch 3/10 loss 0.12", Metrics(3, 10, 0.12)),
        (
            "2024-01-01 12:00:00,123 - INFO - Epoch 3: train_loss=0.5, val acc: 91.5%",
            Metrics(3, more={"train_loss": 0.5, "val_acc": 91.5}),
        ),
        ("step 9/10 loss=2 lr 1e-3 8 tokens/s", Metrics(9, 10, 2, 8, "tokens", {"lr": 0.001})),
        ("[rank0]: global_step=7 val loss 2.0", Metrics(7, more={"val_loss": 2})),
        ("iter 100: loss 1.5, time 400.12ms, mfu 12.50%", Metrics(100, None, 1.5)),
        (
            f"Epoch 2:  42%|{BAR}| 42/100 [00:10<00:20,  2.00s/it, v_num=0, train_loss=0.25]",
            Metrics(42, 100, None, 0.5, "it", {"train_loss": 0.25, "epoch": 2}, 2),
        ),
        (
            "{'loss': 0.12, 'grad_norm': '1.5', 'learning_rate': 5e-05, 'epoch': 0.3}",
            Metrics(None, loss=0.12, more={"grad_norm": 1.5, "learning_rate": 5e-05, "epoch": 0.3}),
        ),
        ("Epoch [3/9], Step [12/99], Loss: 0.25", Metrics(12, 99, 0.25, **OF_EPOCH_3)),
        ("Train Epoch: 3 [640/60000 (1%)]\tLoss: 2.5", Metrics(640, 60000, 2.5, **OF_EPOCH_3)),
        (
            " [2024-05-01 10:00:00] iteration  100/ 500 | consumed samples: 256 | lm loss: 6.5E0 |",
            Metrics(100, 500, more={"lm_loss": 6.5}),
        ),
    ],
)
def test_the_usual_forms_of_plain_lines(line: str, expected: Metrics) -> None:
    """A step or an epoch at the beginning, and a loss, an accuracy or a perplexity after it."""
    found = parse_metrics(line.encode())
    assert found == expected
    assert not found.is_all_figures, "it is printed as well"


OTHER_TEXT = f"""\
Step 3/12 : RUN pip install torch
Epoch 3/10
checkpoint saved at step 1000 with loss 0.5
Loading checkpoint shards:  50%|{BAR}    | 2/4 [00:01<00:01, 1.2it/s]
step 3: lost connection after 3 tries, no data loss 3
Step 2: set learning_rate: 0.1 in the config
step 3: accepted: 5, access=3
loss=0.5 acc=0.9
step 1.5 loss 0.3
footstep 3 loss 0.3
  File "loss.py", line 3, in step
val epoch 3 loss 0.4
Epoch 3: loss did not improve from 0.5
{{'loss': 0.5, 'name': 'x'}}
"""


@pytest.mark.parametrize("line", OTHER_TEXT.splitlines())
def test_other_text_is_no_metrics(line: str) -> None:
    """It is not told what it may mean: a pattern says that."""
    assert parse_metrics(line.encode()) is None


def test_the_highest_form_of_a_ranks_lines_counts() -> None:
    """Lines without a step add their figures."""
    latest = LatestMetrics()
    taken = [
        latest.take(metrics)
        for text in (
            "epoch 1/3 loss 0.9",
            "step 5/9 loss 0.8",
            "epoch 2/3 loss 0.7",
            "step 6/9 acc 0.5",
        )
        if (metrics := parse_metrics(text.encode()))
    ]
    assert taken == [True, True, False, True]
    assert latest.metrics == Metrics(6, 9, 0.8, more={"acc": 0.5})
