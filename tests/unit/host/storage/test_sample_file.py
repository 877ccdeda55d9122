"""The file of samples of an attempt: bounded, from its first sample to its newest."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from runner.core.model.samples import GpuSample, GpuUser, Sample, parse_sample
from runner.core.protocol.paths import RunPaths
from runner.host.storage.sample_file import SampleFile

SAMPLE = Sample("n1", 0, 0.0, cpu=50.0)


@pytest.fixture
def folder(tmp_path: Path) -> RunPaths:
    folder = RunPaths(str(tmp_path), "r1", "n1")
    Path(folder.attempt_folder(0)).mkdir(parents=True)
    return folder


def append(file: SampleFile, sample: Sample, wall: float) -> None:
    assert file.append(replace(sample, wall=wall).to_line().encode()) == ""


def read(folder: RunPaths) -> list[Sample]:
    return [*map(parse_sample, Path(folder.samples(0)).read_bytes().splitlines())]


def test_it_stays_below_its_bound_and_covers_all(folder: RunPaths) -> None:
    """The gaps double, and are even but for the last one: the newest is always there."""
    max_size = 20_000
    file = SampleFile(folder, 0, max_size)
    for count in range(1, 5_001):
        append(file, SAMPLE, float(count))
        content = Path(folder.samples(0)).read_bytes()
        assert len(content) <= max_size + 200
        assert parse_sample(content.splitlines()[-1]).wall == count
    *gaps, last = [later.wall - earlier.wall for earlier, later in pairwise(read(folder))]

    (gap,) = {*gaps}
    assert gap == 16.0
    assert last <= gap
    assert read(folder)[0].wall <= gap


def test_processes_of_runs_are_in_the_newest_lines(folder: RunPaths) -> None:
    """Of those before, only others' stay: what a run has for processes is known."""
    rank = GpuUser(1, "alice", "python train.py", run_id="r1")
    other = GpuUser(2, "bob", "python")
    sample = replace(SAMPLE, gpus=(GpuSample(0, users=(rank, other)),))
    file = SampleFile(folder, 0, 2_000)
    for count in range(100):
        append(file, sample, float(count))
    first, *_, newest = read(folder)

    assert first.gpus[0].users == (other,)
    assert newest.gpus[0].users == (rank, other)


def test_a_line_that_a_power_cut_left_is_ended(folder: RunPaths) -> None:
    """What comes next is whole."""
    begin = SAMPLE.to_line().encode() + b'{"v":1,"no'
    Path(folder.samples(0)).write_bytes(begin)

    append(SampleFile(folder, 0), SAMPLE, 2.0)

    line = replace(SAMPLE, wall=2.0).to_line().encode()
    assert Path(folder.samples(0)).read_bytes() == begin + b"\n" + line
