"""Log reader of the agent: the last lines, and a disk that fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.core.wire.paths import RunPaths
from runner.host.agent import log_reader
from runner.host.agent.log_reader import LogReader


@pytest.fixture
def folder(tmp_path: Path) -> RunPaths:
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


def test_a_disk_that_fails_is_not_the_end_of_a_log(folder: RunPaths) -> None:
    """It may come back; if the run is over, what is missing is said."""
    Path(folder.stream_log(0, "rank_0", "out")).mkdir()  # reading it is an error
    reader = LogReader(folder)
    where = {"source": "rank_0", "stream": "out", "attempt": 0, "offset": 5, "n": 9}
    reader.submit({"id": 1, **where})
    assert list(reader.poll(ended=False)) == []
    ((told, payload),) = reader.poll(ended=True)
    assert (told["eof"], told["error"], payload) == (True, "Is a directory", b"")
