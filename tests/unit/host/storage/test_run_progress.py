"""How far a run is, by the logs of its ranks on a host."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.codec import encode
from runner.core.model.metrics import RankProgress
from runner.core.protocol.paths import RunPaths
from runner.host.storage.run_progress import TAIL, read_progress
from tests.golden.builders import plan


@pytest.fixture
def folder(tmp_path: Path) -> RunPaths:
    """That of a run in its second attempt."""
    return folder_of(tmp_path)


def folder_of(tmp_path: Path, pattern: str = "") -> RunPaths:
    """That of a run with a pattern."""
    order = replace(plan(1).nodes[0].order, workdir=str(tmp_path), attempt=1)
    order = replace(order, progress_pattern=pattern)
    folder = RunPaths(str(tmp_path), order.run_id, order.node)
    Path(folder.attempt_folder(1)).mkdir(parents=True)
    Path(folder.order).write_text(json.dumps(encode(order)))
    return folder


def write(folder: RunPaths, name: str, text: str) -> None:
    """Put down a file of the attempt."""
    Path(folder.attempt_folder(1), name).write_text(text)


def test_the_last_line_of_the_lowest_rank_counts(folder: RunPaths) -> None:
    """A torn line is none, a broken one is passed over."""
    assert read_progress(folder) is None
    write(folder, "rank_0.out", "hello\n")
    write(folder, "rank_2.out", '{"step": 1}\n{"step": 2, "steps": 9, "rate": 64, "unit": "s"}\n')
    write(folder, "rank_10.out", '{"step": 77}\n')
    assert read_progress(folder) == RankProgress(2, 2, 9, 64, "s")
    (Path(folder.attempt_folder(1)) / "rank_10.out").unlink()
    write(folder, "rank_2.out", "x" * 2 * TAIL + '\n{"step": 3}\n{"step": 4.5}\n{"step": 5}')
    assert read_progress(folder) == RankProgress(2, 3)
    write(folder, "rank_2.out", '{"step": 3, "rate": NaN}\n')
    assert read_progress(folder) == RankProgress(2, 3), "no rate can be shown"


def test_the_file_that_a_rank_appends_to_counts(folder: RunPaths) -> None:
    """A pipe in its place hangs nobody."""
    write(folder, "rank_0.metrics", '{"step": 3}\n')
    assert read_progress(folder) == RankProgress(0, 3)
    path = Path(folder.attempt_folder(1), "rank_0.metrics")
    path.unlink()
    os.mkfifo(path)
    assert read_progress(folder) is None


def test_time_left_is_that_of_the_steps_between_two_samples(folder: RunPaths) -> None:
    """Samples that are torn, of other logs or before the first step do not matter."""
    lines = ["hello\n", *(f'{{"step": {step}, "steps": 100}}\n' for step in range(10, 60, 10))]
    write(folder, "rank_0.out", "".join(lines))
    ends = [sum(map(len, lines[: count + 1])) for count in range(len(lines))]
    samples = [
        json.dumps({"wall": 1000.0 + 10 * index, "sizes": {"rank_0.out": end, "rank_1.out": 5}})
        for index, end in enumerate(ends)
    ]
    write(folder, "sizes.jsonl", "\n".join(["cut", *samples, '{"wall": 1']))
    assert read_progress(folder) == RankProgress(0, 50, 100, left_s=50.0)
    write(folder, "rank_0.out", '{"step": 60, "steps": 100}\n{"step": 5, "steps": 100}\n')
    write(
        folder, "sizes.jsonl", f'cut\n{{"wall": 1, "sizes": {{"rank_0.out": 27}}}}\n{samples[-1]}\n'
    )
    assert read_progress(folder) == RankProgress(0, 5, 100), "after a restart nothing is known"


def lived(folder: RunPaths, *lives: range, pause_s: float) -> None:
    """Put down a log with a step each second, sampled each ten, and a pause after each life."""
    text, wall, samples = "", 1000.0, []
    for life in lives:
        for step in life:
            text += f'{{"step": {step}, "steps": 1000}}\n'
            wall += 1.0
            if step % 10 == 0:
                samples.append(json.dumps({"wall": wall, "sizes": {"rank_0.out": len(text)}}))
        wall += pause_s
    write(folder, "rank_0.out", text)
    write(folder, "sizes.jsonl", "\n".join(["cut", *samples, ""]))


def test_time_left_is_that_of_the_life_that_goes_on(folder: RunPaths) -> None:
    """A program may begin again within an attempt, from its first step or from a checkpoint."""
    lived(folder, range(1, 401), range(1, 151), pause_s=30.0)
    assert read_progress(folder) == RankProgress(0, 150, 1000, left_s=850.0)
    lived(folder, range(1, 401), range(300, 421), pause_s=300.0)
    assert read_progress(folder) == RankProgress(0, 420, 1000, left_s=580.0)
    lived(folder, range(1, 401), range(1, 8), pause_s=30.0)
    assert read_progress(folder) == RankProgress(0, 7, 1000), "no sample has seen its steps"


def test_the_steps_in_all_are_those_of_an_earlier_line(folder: RunPaths) -> None:
    """Where the last one, of an evaluation, does not name them."""
    write(folder, "rank_0.out", '{"step": 2, "steps": 9, "rate": 64}\n{"step": 3, "eval": 0.5}\n')
    assert read_progress(folder) == RankProgress(0, 3, 9)


def test_an_evaluation_that_counts_its_own_steps_is_passed_over(folder: RunPaths) -> None:
    """As in the bar: where the training says in each line how many there are."""
    train = '{"step": 2, "steps": 9}\n{"step": 3, "steps": 9}\n'
    write(folder, "rank_0.out", train + '{"step": 1, "val_loss": 0.5}\n')
    assert read_progress(folder) == RankProgress(0, 3, 9)


def test_a_rank_that_tells_how_many_steps_there_are_comes_first(folder: RunPaths) -> None:
    """One below it may have said something once."""
    write(folder, "rank_0.out", '{"step": 0, "event": "init done"}\n')
    assert read_progress(folder) == RankProgress(0, 0)
    write(folder, "rank_1.out", '{"step": 5, "steps": 9}\n')
    assert read_progress(folder) == RankProgress(1, 5, 9)


def test_a_pattern_is_that_of_the_order(tmp_path: Path) -> None:
    """A program's own lines are read with it."""
    folder = folder_of(tmp_path, r"epoch (\d+)/(\d+)")
    write(folder, "rank_0.err", "epoch 2/3, loss 4\nnothing\n")
    assert read_progress(folder) == RankProgress(0, 2, 3)
