"""`metrics.jsonl`: made from logs, the same whenever that is done."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from runner.control.record import metrics_record
from runner.control.record.metrics_record import MAX_ADVANCE
from runner.control.record.run_store import RunStore, try_lock_folder
from tests.golden.builders import plan

PLAN = plan(1)
LOG = b'start\n{"step": 1, "loss": 2}\n{"step": 0.5}\n{"step": 2, "loss": NaN}\n{"step": 3}'


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path)


def records(store: RunStore) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (store.folder / "metrics.jsonl").read_text().splitlines()]


def write(store: RunStore, name: str, data: bytes, node: str = "gpu1") -> None:
    path = store.logs / node / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def test_lines_have_their_origin_and_the_time_at_which_they_were_read(store: RunStore) -> None:
    """A torn line is none; what is found later has no time."""
    write(store, "rank_0.out", LOG[:31])
    store.metrics.advance("gpu1", 0, "rank_0.out", "", 100.5)
    write(store, "rank_0.out", LOG)
    store.metrics.advance("gpu1", 0, "program.out", "", 110.5)
    (first,) = records(store)
    assert first == {
        **{"v": 1, "node": "gpu1", "attempt": 0, "rank": 0, "stream": "out", "offset": 6},
        **{"time": 100.5, "step": 1, "steps": None, "loss": 2, "rate": None, "unit": ""},
        "more": {},
    }
    store.complete_metrics(PLAN)
    assert records(store)[0] == first
    (_, second) = records(store)
    assert (second["offset"], second["time"], second["loss"]) == (43, None, "NaN")
    assert store.metrics.broken == (
        "1 broken metrics line, left among the output: rank 0 on gpu1, at byte 29 of rank_0.out, "
        "its step is no whole number from 0"
    )


def test_the_last_line_of_each_stream_is_on_record_however_many_there_are(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest lines are thinned the most, and a process that comes later adds none twice."""
    monkeypatch.setattr(metrics_record, "MAX_SIZE", 20_000)
    lines = [b'{"step": %d, "loss": 2}\n' % step for step in range(1000)]
    for count in range(100, 1001, 100):
        for rank in range(2):
            write(store, f"rank_{rank}.out", b"".join(lines[:count]))
            store.metrics.advance("gpu1", 0, f"rank_{rank}.out", "", 1.0)
    RunStore(store.folder).complete_metrics(PLAN)
    assert (store.folder / "metrics.jsonl").stat().st_size < 40_000
    for rank in range(2):
        steps = [line["step"] for line in records(store) if line["rank"] == rank]
        assert steps == sorted(set(steps))
        assert steps[-1] == 999
        assert 0 < sum(step < 500 for step in steps) < sum(step >= 500 for step in steps)


def test_a_disk_that_was_full_loses_no_line(store: RunStore) -> None:
    """What could not be written when it was read is written at the end."""
    write(store, "rank_0.out", LOG)
    path = store.folder / "metrics.jsonl"
    path.mkdir()
    store.metrics.advance("gpu1", 0, "rank_0.out", "", 1.0)
    path.rmdir()
    store.metrics.complete("")
    assert [line["offset"] for line in records(store)] == [6, 43]


def test_other_hosts_do_not_wait_for_long_logs(store: RunStore) -> None:
    """A call looks at little more than a piece; the next one goes on there."""
    line = b'{"step": 1, "loss": 2}\n'
    write(store, "rank_0.out", line * (4 * MAX_ADVANCE // len(line)))
    size = (store.logs / "gpu1" / "rank_0.out").stat().st_size
    counts = []
    for _ in range(5):
        store.metrics.advance("gpu1", 0, "rank_0.out", "", None)
        counts.append(len(records(store)))
    assert counts[0] < counts[1] < counts[2] < counts[4]
    assert counts[4] == size // len(line)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_twice_however_it_came(store: RunStore, seed: int) -> None:
    """Followed in pieces, by processes that come and go and may be killed while they write."""
    write(store, "rank_0.out", LOG)
    store.complete_metrics(PLAN)
    expected = records(store)
    (store.folder / "metrics.jsonl").unlink()

    chance, size = random.Random(seed), 0  # noqa: S311 (a test)
    while size < len(LOG):
        size = min(len(LOG), size + chance.randrange(1, 40))
        write(store, "rank_0.out", LOG[:size])
        follower = RunStore(store.folder)
        follower.metrics.advance("gpu1", 0, "rank_0.out", "", None)
        path = store.folder / "metrics.jsonl"
        if chance.random() < 0.5 and path.exists():
            path.write_bytes(path.read_bytes()[:-5])  # a power cut
    RunStore(store.folder).complete_metrics(PLAN)
    lines = (store.folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines if line.endswith("}")] == expected


def test_another_process_that_writes_is_left_alone(store: RunStore) -> None:
    """Its lock is on the folder."""
    write(store, "rank_0.out", LOG)
    assert try_lock_folder(store.folder) is not None
    store.complete_metrics(PLAN)
    assert not (store.folder / "metrics.jsonl").exists()
