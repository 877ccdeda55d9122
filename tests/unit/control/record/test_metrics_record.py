"""`metrics.jsonl`: made from logs, the same whenever that is done."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from runner.control.record.metrics_record import BLOCK
from runner.control.record.run_store import RunStore, try_lock_folder
from tests.golden.builders import plan

PLAN = plan(1)
LOG = b'start\n{"step": 1, "loss": 2}\n{"step": 0.5}\n{"step": 2, "loss": NaN}\n{"step": 3}'
SIZES = (
    b'{"wall": 100.5, "sizes": {"rank_0.out": 31, "program.out": 9, "../x": 5, "rank_1.out": 3}}\n'
    b'torn{"wall\n{"wall": "soon", "sizes": {}}\n'
    b'{"wall": 110.5, "sizes": {"rank_0.out": 72}}\n'
)


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """The record of a run whose logs are in `tmp_path`, and not locked."""
    return RunStore(tmp_path)


def records(store: RunStore) -> list[dict[str, Any]]:
    """What is on record."""
    return [json.loads(line) for line in (store.folder / "metrics.jsonl").read_text().splitlines()]


def write(store: RunStore, name: str, data: bytes, node: str = "gpu1") -> None:
    """Put down a log, as far as it is there."""
    path = store.logs / node / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def test_lines_have_their_origin_and_the_time_of_a_sample(store: RunStore) -> None:
    """That is the first one in which the line is whole; a torn line is none."""
    write(store, "rank_0.out", LOG)
    write(store, "rank_1.out", b"abc")
    write(store, "sizes.jsonl", SIZES)
    store.metrics.advance("gpu1", 0, "")
    first, second = records(store)
    assert first == {
        **{"v": 1, "node": "gpu1", "attempt": 0, "rank": 0, "stream": "out", "offset": 6},
        **{"time": 100.5, "step": 1, "steps": None, "loss": 2, "rate": None, "unit": ""},
        "more": {},
    }
    assert (second["offset"], second["time"], second["loss"]) == (43, 110.5, "NaN")
    store.complete_metrics(PLAN)
    assert records(store) == [first, second]
    (note,) = store.metrics.notes
    assert note == (
        "1 broken metrics line, left among the output: rank 0 on gpu1, at byte 29 of rank_0.out, "
        "its step is no whole number from 0"
    )


def test_other_hosts_do_not_wait_for_long_logs(store: RunStore) -> None:
    """A call looks at one block; the next one goes on there."""
    line = b'{"step": 1, "loss": 2}\n'
    write(store, "rank_0.out", line * (4 * BLOCK // len(line)))
    size = (store.logs / "gpu1" / "rank_0.out").stat().st_size
    write(store, "sizes.jsonl", b'{"wall": 1.5, "sizes": {"rank_0.out": %d}}\n' % size)
    seen = []
    store.metrics.advance("gpu1", 0, "")
    while store.metrics.has_backlog("gpu1"):
        seen.append(len(records(store)))
        store.metrics.advance("gpu1", 0, "")
    assert seen == sorted({*seen})
    assert len(seen) == 3
    assert len(records(store)) == size // len(line)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_twice_however_it_came(store: RunStore, seed: int) -> None:
    """Followed in pieces, by processes that come and go and may be killed while they write."""
    write(store, "rank_0.out", LOG)
    write(store, "sizes.jsonl", b"".join(SIZES.splitlines(keepends=True)[-1:]))
    store.complete_metrics(PLAN)
    expected = records(store)
    (store.folder / "metrics.jsonl").unlink()

    chance, size = random.Random(seed), 0  # noqa: S311 (a test)
    while size < len(LOG):
        size = min(len(LOG), size + chance.randrange(1, 40))
        write(store, "rank_0.out", LOG[:size])
        follower = RunStore(store.folder)
        follower.metrics.advance("gpu1", 0, "")
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
