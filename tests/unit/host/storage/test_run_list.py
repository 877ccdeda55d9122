"""Runs of a host, as `ps` and `latest` see them, and how far they are."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.wire.codec import encode
from runner.core.wire.metrics import RankProgress
from runner.core.wire.paths import RunPaths
from runner.host.storage.run_list import TAIL, read_progress, read_run
from tests.golden.builders import plan


def test_the_folder_of_a_pasted_dry_run_is_no_run(tmp_path: Path) -> None:
    """It has the ranks' working folder and no record: `latest` must not choose it."""
    folder = RunPaths(str(tmp_path), "0102-0304-env-abcd", "gpu1")
    Path(folder.work).mkdir(parents=True)
    assert read_run(folder) is None

    Path(folder.order).write_text("damaged")
    status = read_run(folder)
    assert status is not None
    assert status.state is None


@pytest.fixture
def folder(tmp_path: Path) -> RunPaths:
    order = replace(plan(1).nodes[0].order, workdir=str(tmp_path), attempt=1)
    made = RunPaths(str(tmp_path), order.run_id, order.node)
    Path(made.attempt_folder(1)).mkdir(parents=True)
    Path(made.order).write_text(json.dumps(encode(order)))
    return made


def write(folder: RunPaths, name: str, text: str) -> None:
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


def test_plain_lines_count_where_a_rank_prints_no_json(folder: RunPaths) -> None:
    """Each form of a line that redraws itself is one; a summary of an epoch is no step."""
    bar = "\r 10%|#| {}/90 [00:01<00:09, 9.0it/s, loss=0.5]"
    write(folder, "rank_0.err", "".join(map(bar.format, (9, 18, 27))))
    assert read_progress(folder) == RankProgress(0, 18, 90, 9.0, "it")
    write(folder, "rank_0.out", "epoch 1/3 loss 0.5\n")
    assert read_progress(folder) == RankProgress(0, 18, 90, 9.0, "it")
    write(folder, "rank_0.metrics", '{"step": 19, "steps": 99}\n')
    assert read_progress(folder) == RankProgress(0, 19, 99)
