"""The file of samples of an attempt: bounded, from its first sample to its newest."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from runner.core.model.samples import Sample
from runner.core.protocol.paths import RunPaths
from runner.host.storage.sample_file import SampleFile


@pytest.fixture
def folder(tmp_path: Path) -> RunPaths:
    folder = RunPaths(str(tmp_path), "r1", "n1")
    Path(folder.attempt_folder(0)).mkdir(parents=True)
    return folder


def line(wall: float) -> bytes:
    return Sample("n1", 0, wall, cpu=50.0).to_line().encode()


def walls(folder: RunPaths) -> list[float]:
    text = Path(folder.samples(0)).read_text()
    return [json.loads(each)["wall"] for each in text.splitlines()]


def test_it_stays_below_its_bound_and_covers_all(folder: RunPaths) -> None:
    """After any time: the first one, even gaps, the newest dense."""
    max_size, interval_s = 20_000, 5.0
    file, length = SampleFile(folder, 0, max_size), len(line(1.7e9))
    for count in range(5_000):
        assert file.append(line(1.7e9 + interval_s * count)) == ""
        assert Path(folder.samples(0)).stat().st_size <= max_size
    times = walls(folder)
    gaps = [later - earlier for earlier, later in pairwise(times)]

    assert times[0] == 1.7e9
    assert times[-1] == 1.7e9 + interval_s * 4_999
    assert len(times) * length > max_size / 3
    newest = int(0.3 * max_size / length)
    assert {*gaps[-newest:]} == {interval_s}
    assert max(gaps) < (times[-1] - times[0]) / 20


def test_a_line_that_a_power_cut_left_is_ended(folder: RunPaths) -> None:
    """What comes next is whole."""
    Path(folder.samples(0)).write_bytes(line(1.0) + b'{"v":1,"no')

    assert SampleFile(folder, 0).append(line(2.0)) == ""

    assert Path(folder.samples(0)).read_bytes() == line(1.0) + b'{"v":1,"no\n' + line(2.0)
