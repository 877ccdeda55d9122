"""Log reader of the agent: the last lines, or those of the last minutes."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.core.protocol.paths import RunPaths
from runner.host.agent import log_reader
from runner.host.agent.log_reader import LogReader
from runner.host.supervisor.log_size_recorder import LogSizeRecorder


@pytest.fixture
def folder(tmp_path: Path) -> RunPaths:
    """A run folder with one attempt."""
    made = RunPaths(str(tmp_path), "run", "a")
    Path(made.attempt_folder(0)).mkdir(parents=True)
    return made


def read(folder: RunPaths, **words: Any) -> tuple[int, bytes]:
    """Ask for the log of rank 0; return where the answer begins, and what it is."""
    reader = LogReader(folder)
    where = {"source": "rank_0", "stream": "out", "attempt": 0, "offset": 0, "n": 1 << 20}
    reader.submit({"id": 1, "wait": False, **where, **words})
    ((told, payload),) = reader.poll(ended=False)
    return told["offset"], payload


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=9).filter(lambda line: b"\n" not in line)), st.integers(0, 9))
def test_the_last_lines(tmp_path: Path, lines: list[bytes], count: int) -> None:
    """However long they are, whether the last one has its end or not, and however they are read."""
    content = b"".join(line + b"\n" for line in lines)
    for text in (content, content + b"unfinished"):
        path = tmp_path / "log"
        path.write_bytes(text)
        with path.open("rb") as file:
            tail = text[log_reader._tail_offset(file.fileno(), count) :]
        whole = [part + b"\n" for part in text.split(b"\n")]
        whole[-1:] = [whole[-1][:-1]] if whole[-1] != b"\n" else []
        assert tail == b"".join(whole[len(whole) - min(count, len(whole)) :])


def test_tails_across_blocks(folder: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long file is read from its end, block by block."""
    monkeypatch.setattr(log_reader, "MAX_READ", 7)
    Path(folder.stream_log(0, "rank_0", "out")).write_bytes(
        b"".join(b"%d\n" % n for n in range(100))
    )
    assert read(folder, tail=3)[0] == 290 - 9
    assert read(folder, tail=1000)[0] == 0
    assert read(folder, tail=0) == (290, b"")


def test_what_came_since_a_moment(folder: RunPaths) -> None:
    """To within the pause between two looks at the lengths, and never half a line."""
    path = Path(folder.stream_log(0, "rank_0", "out"))
    path.write_bytes(b"old\nhalf")
    recorder = LogSizeRecorder(folder, 0)
    recorder.record()
    recorder.record()  # nothing has grown: no other line
    text = Path(folder.log_sizes(0)).read_text()
    (sample,) = [json.loads(line) for line in text.splitlines()]
    assert sample["sizes"] == {"rank_0.out": 8}
    Path(folder.log_sizes(0)).write_text(
        text.replace(str(sample["wall"]), str(sample["wall"] - 60))
    )
    with path.open("ab") as file:
        file.write(b" a line\nnew\n")
    assert read(folder, since=30)[1] == b"new\n"
    assert read(folder, since=90)[1] == b"old\nhalf a line\nnew\n"
    Path(folder.log_sizes(0)).write_text('{"wall": 1, "siz')
    assert read(folder, since=30)[1] == b"old\nhalf a line\nnew\n"


def test_a_disk_that_fails_is_not_the_end_of_a_log(folder: RunPaths) -> None:
    """It may come back; if the run is over, what is missing is said."""
    Path(folder.stream_log(0, "rank_0", "out")).mkdir()  # reading it is an error
    reader = LogReader(folder)
    where = {"source": "rank_0", "stream": "out", "attempt": 0, "offset": 5, "n": 9}
    reader.submit({"id": 1, **where})
    assert list(reader.poll(ended=False)) == []
    ((told, payload),) = reader.poll(ended=True)
    assert (told["eof"], told["error"], payload) == (True, "Is a directory", b"")


class Clock:
    """A time that passes by itself only where it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        """Tell it."""
        return self.now


def test_a_quiet_file_of_a_job_is_opened_ever_less_often(
    folder: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is not there; not the events, and not once there is data."""
    clock, opened, real_open = Clock(), list[str](), os.open

    def count(path: str, flags: int) -> int:
        opened.append(Path(path).name)
        return real_open(path, flags)

    system = SimpleNamespace(**{**vars(os), "open": count})
    monkeypatch.setattr(log_reader, "time", clock)
    monkeypatch.setattr(log_reader, "os", system)
    reader = LogReader(folder, (0.25, 2.0))
    path = Path(folder.stream_log(0, "rank_0", "out"))
    path.touch()
    ask = {"id": 1, "stream": "out", "attempt": 0, "offset": 0, "n": 9}
    for source in ("rank_0", "rank_1", "events"):
        reader.submit({**ask, "source": source})

    def pass_s(polls: int) -> dict[str, int]:
        opened.clear()
        for _ in range(polls):
            clock.now += 0.25
            assert reader.poll(ended=False) == []
        return Counter(opened)

    pass_s(40)
    assert pass_s(80) == {"rank_0.out": 10, "rank_1.out": 10, "events.jsonl": 80}
    path.write_bytes(b"more than 9 bytes")
    clock.now += 2
    ((_, payload),) = reader.poll(ended=False)
    reader.submit({**ask, "source": "rank_0", "offset": 9})
    ((_, rest),) = reader.poll(ended=False)  # at once: there was more
    assert payload + rest == b"more than 9 bytes"
    reader.submit({**ask, "source": "rank_0", "offset": 17})
    assert pass_s(4)["rank_0.out"] == 4
    opened.clear()
    reader.submit({**ask, "source": "rank_0", "offset": 17, "wait": False})
    assert len(reader.poll(ended=False)) == 1
    assert len(reader.poll(ended=True)) == 3
