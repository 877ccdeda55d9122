"""`metrics.jsonl`: made from logs, the same whenever that is done."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from runner.control.record import metrics_record
from runner.control.record.metrics_record import METRICS_FILE, is_made_of_logs, record_metrics


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / METRICS_FILE).read_text().splitlines()]


def write(folder: Path, name: str, data: bytes, node: str = "gpu1") -> None:
    path = folder / "logs" / node / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def steps_of(folder: Path, text: str) -> list[tuple[int, float | None]]:
    """Return step and loss of each line on record of a log."""
    write(folder, "rank_0.out", text.encode())
    record_metrics(folder, "")
    return [(each["step"], each["loss"]) for each in records(folder)]


def test_of_many_lines_every_nth_and_the_last_of_each_log_are_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first to the last, however many there are."""
    monkeypatch.setattr(metrics_record, "MAX_LINES", 500)
    for rank in range(2):
        lines = [b'{"step": %d, "loss": 2}\n' % step for step in range(1000 + rank)]
        write(tmp_path, f"rank_{rank}.out", b"".join(lines))
    record_metrics(tmp_path, "")
    assert len(records(tmp_path)) <= 500
    for rank in range(2):
        steps = [line["step"] for line in records(tmp_path) if line["rank"] == rank]
        assert (steps[0], steps[-1]) == (0, 999 + rank)
        pauses = {after - before for before, after in itertools.pairwise(steps)}
        assert max(pauses) <= 8


def test_logs_of_all_attempts_come_in_their_order(tmp_path: Path) -> None:
    """The lowest ranks first; other files are no logs of ranks."""
    for name in ("attempt_1/rank_0.out", "rank_10.out", "rank_2.metrics", "program.out", "x/y"):
        write(tmp_path, name, b'{"step": 1}\n')
    record_metrics(tmp_path, "")
    found = [(each["attempt"], each["rank"], each["stream"]) for each in records(tmp_path)]
    assert found == [(0, 2, "metrics"), (0, 10, "out"), (1, 0, "out")]


def test_a_line_that_redraws_itself_has_all_its_forms_on_record(tmp_path: Path) -> None:
    """As tqdm's; the last one may be torn."""
    bar = "\r {}%|##  | {}/100 [00:10<00:20, 12.3it/s, loss=0.{}]"
    text = "".join(bar.format(n, n, n) for n in (10, 20, 30))
    assert steps_of(tmp_path, text) == [(10, 0.1), (20, 0.2)]


def test_steps_that_begin_anew_in_each_epoch_go_on(tmp_path: Path) -> None:
    """Those that do not stay as they are printed, and lines without one are counted."""
    anew = "".join(f"epoch {e} step {s}/20 loss 0.{e}\n" for e in (1, 2, 3) for s in (10, 20))
    assert [step for step, _ in steps_of(tmp_path, anew)] == [10, 20, 30, 40, 50, 60]
    ahead = "".join(f"epoch {s // 20} step {s}/60 loss 0.5\n" for s in (10, 20, 30, 60))
    assert [step for step, _ in steps_of(tmp_path, ahead)] == [10, 20, 30, 60]
    none = "".join(f"{{'loss': 0.{n}, 'epoch': 0.{n}}}\n" for n in (3, 2))
    assert steps_of(tmp_path, none) == [(1, 0.3), (2, 0.2)]


def test_of_a_rank_only_lines_in_one_form_count(tmp_path: Path) -> None:
    """JSON before steps before epochs: a summary of an epoch is no step, whatever file it is in."""
    steps = "epoch 1/3 loss 0.9\nstep 5 loss 0.8\nepoch 2/3 loss 0.7\nstep 9 loss 0.6\n"
    assert steps_of(tmp_path, steps) == [(5, 0.8), (9, 0.6)]
    assert steps_of(tmp_path, steps + '{"step": 7, "loss": 0.5}\n' + steps) == [(7, 0.5)]
    write(tmp_path, "rank_0.metrics", b'{"step": 8, "loss": 0.25}\n')
    assert steps_of(tmp_path, steps) == [(8, 0.25)]


def test_logs_without_metrics_are_looked_through_once(tmp_path: Path) -> None:
    """Those of an earlier record stay."""
    write(tmp_path, "rank_0.out", b"hello\n")
    assert not is_made_of_logs(tmp_path)
    for content in ("", "earlier\n"):
        (tmp_path / METRICS_FILE).write_text(content)
        os.utime(tmp_path / METRICS_FILE, (0, 0))
        record_metrics(tmp_path, "")
        assert is_made_of_logs(tmp_path)
        assert (tmp_path / METRICS_FILE).read_text() == content


def test_no_line_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes after it is found."""
    monkeypatch.setattr(metrics_record, "BLOCK", 5000)
    write(tmp_path, "rank_0.out", b"x" * 23_456 + b'\n{"step": 1}\n')
    record_metrics(tmp_path, "")
    assert [each["step"] for each in records(tmp_path)] == [1]
