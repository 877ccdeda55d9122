"""Reading of records: whole ones, damaged ones, and what a hostile host may have left in them."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.control.history import samples_reader
from runner.control.history.bounded_reader import BLOCK, MAX_LINE, Problems, blocks_of_lines
from runner.control.history.config_reader import read_config
from runner.control.history.run_reader import read_events, read_run
from runner.control.record.run_store import RunStore
from runner.core.history.run_data import Metric, RunData
from runner.core.model.results import Failure
from runner.core.model.run_info import PastAttempt
from runner.core.model.samples import GpuSample, Sample
from runner.core.outcome.verdict import Verdict
from runner.core.protocol.events import Ended, Event, HostLost, RankExited, RankStarted
from runner.core.protocol.states import State
from tests.golden.builders import plan, request

BEGAN = 1.7e9
RUN_ID = "0101-1200-train-abcd"
FILES = [
    *("contact.json", "plan.json", "plan.0.json", "result.json", "config.yaml", "overrides.yaml"),
    *("events.jsonl", "metrics.jsonl", "samples.jsonl", "sweep.json"),
]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    """The record of a run of two attempts that failed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    store = RunStore(tmp_path / RUN_ID)
    store.reserve()
    yaml = "task:\n  args: {lr: 0.1, steps: [1, 2]}\nrun_id: x\n"
    asked = replace(request(store.folder, yaml), launched_at=BEGAN, overrides=("task.args.lr=0.1",))
    store.create(asked)
    first = replace(plan(1, 1), run_id=RUN_ID)
    store.write_plan(first)
    store.write_plan(replace(first, attempt=1))
    verdict = Verdict("failed", 1, 20.0, Failure("b", 1, "exited with 3"))
    past = PastAttempt(0, ("a", "b"), "lost b", 10.0)
    store.write_result(plan(1, 1), replace(verdict, past_attempts=(past,)), BEGAN, None)
    result = json.loads((store.folder / "result.json").read_text())
    store.write_json("result.json", {**result, "attempt": 1})
    bodies = [RankStarted(0, 7), RankExited(1, 3), Ended(State.FAILED)]
    for seq, body in enumerate(bodies, start=1):
        store.append(Event(RUN_ID, "a", 1, seq, BEGAN + 10 - seq, float(seq), body))
    return store


def metrics_line(step: int, /, **fields: Any) -> str:
    origin = {"v": 1, "node": "a", "attempt": 0, "rank": 0, "stream": "out", "offset": step * 100}
    figures: dict[str, Any] = {"steps": None, "loss": None, "rate": None, "unit": "", "more": {}}
    return json.dumps({**origin, "time": BEGAN + step, "step": step, **figures, **fields}) + "\n"


def metrics(store: RunStore, *lines: str, **options: Any) -> dict[str, Metric]:
    (store.folder / "metrics.jsonl").write_text("".join(lines))
    return {metric.name: metric for metric in read_run(store.folder, **options).metrics}


def sample_lines(*samples: Sample) -> str:
    return "".join(sample.to_line() for sample in samples)


def test_a_whole_record_is_read_without_problems(store: RunStore) -> None:
    """What was launched, what came of it, and every file of it."""
    for node, name, text in (("a", "rank_0.out", "x\n"), ("b", "rank_1.err", "y\nz\n")):
        store.write_log(node, name, 0, text.encode())
        store.write_log(node, f"attempt_1/{name}", 0, text.encode())
    (store.folder / "metrics.jsonl").write_text(metrics_line(1, loss=0.5, steps=9))
    gpu = GpuSample(0, "A100", utilization=90)
    samples = [Sample("a", 1, BEGAN + n, cpu=10.0 * n, gpus=(gpu,)) for n in range(3)]
    (store.folder / "samples.jsonl").write_text(sample_lines(*samples))
    store.write_json("sweep.json", {"sweep": "0101-1200-sweep", "number": 1})
    data = read_run(store.folder)
    assert data.problems == ()
    assert (data.run_id, data.cluster, data.task) == (RUN_ID, "lab", "train")
    assert data.sweep_id == "0101-1200-sweep"
    assert (data.launched_at, data.seconds) == (BEGAN, 20.0)
    assert [each.attempt for each in data.plans] == [0, 1]
    assert data.config["task"] == {"args": {"lr": 0.1, "steps": [1, 2]}}
    assert data.overrides == ("task.args.lr=0.1",)
    assert [event.seq for event in data.events] == [3, 2, 1], "by time"
    assert (data.event_count, data.step, data.steps) == (3, 1, 9)
    assert data.verdict is not None
    assert data.verdict.past_attempts[0].seconds == 10
    (load,) = data.loads
    assert load.series["cpu"].values == (0.0, 10.0, 20.0)
    assert load.gpus[0].series["utilization"].values == (90.0, 90.0, 90.0)
    ends = [(log.attempt, log.node, log.source, log.text) for log in data.logs]
    assert ends[0] == (1, "b", "rank_1", "y\nz\n"), "that of the failed rank comes first"
    assert len(ends) == 4


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_a_problem_and_the_rest_is_read(store: RunStore, name: str) -> None:
    """Whatever it has become: cut off, of other types, binary, nested without end, or a pipe."""
    path = store.folder / name
    path.touch()
    for content in (
        b"{",
        b"[]\n",
        b"\0\xff" * 100,
        b'{"v": 1, "node": 3, "runs": 1}\n',
        b"[" * 200_000,
    ):
        path.write_bytes(content)
        assert isinstance(read_run(store.folder), RunData)
    for kind in ("pipe", "folder", "link"):
        path.unlink()
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        else:
            path.symlink_to("/etc/passwd")
        data = read_run(store.folder)
        assert any(name.partition(".")[0] in line for line in data.problems), (name, data.problems)
        if path.is_dir():
            path.rmdir()
            path.touch()


def test_metrics_keep_their_peaks(store: RunStore) -> None:
    """A long series is reduced; its least and its most are those of all lines."""
    lines = [
        metrics_line(n, loss=9.0 if n == 777 else -9.0 if n == 3 else 1.0) for n in range(5000)
    ]
    loss = metrics(store, *lines, max_points=100)["loss"]
    series = loss.by_attempt[0]
    assert 50 <= len(series.values) <= 100
    assert max(v for v in series.high if v is not None) == 9
    assert min(v for v in series.low if v is not None) == -9
    assert (loss.least, loss.most, loss.last) == (-9, 9, 1)
    assert (series.steps[-1], series.times[-1]) == (4999, BEGAN + 4999)
    assert loss.spread == {}


def test_metrics_of_several_ranks_have_a_spread(store: RunStore) -> None:
    """The series is that of the lowest rank, whenever its lines come."""
    lines = [
        metrics_line(
            step, rank=rank, node="a", loss=float(rank + step), steps=10 if rank == 1 else None
        )
        for step in range(4)
        for rank in (3, 1, 2)
    ]
    found = metrics(store, *lines)["loss"]
    assert (found.rank, found.rank_count) == (1, 3)
    assert found.by_attempt[0].values == (1.0, 2.0, 3.0, 4.0)
    spread = found.spread[0]
    assert (spread.low, spread.values, spread.high) == ((1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6))
    data = read_run(store.folder)
    assert (data.step, data.steps) == (3, 10)


def test_hostile_metrics_are_left_out(store: RunStore) -> None:
    """Types, sizes and names that no line of ours has: they are counted, the rest is read."""
    bad: list[dict[str, Any]] = [
        {"rank": -1},
        {"rank": "0"},
        {"attempt": 1e9},
        {"step": 1 << 60},
        {"step": True},
        {"steps": "x"},
        {"rank": None},
    ]
    lines = [metrics_line(1, **each) for each in bad]
    odd = [
        metrics_line(1, time=1e300, loss=1.0),
        metrics_line(2, more={"\x1b[2J": 1.0, "x" * 999: 2.0, "fine": 10**300}),
        metrics_line(3, more=[1]),
        metrics_line(4, unit="\x1b]0;x", loss=3.0),
        metrics_line(5, loss=1.25).replace("1.25", "1.2.5"),
        metrics_line(5, more={"fine": 10**400}),
        "[" * 5000 + "\n",
        "x" * (MAX_LINE + BLOCK) + "\n",
        metrics_line(6, loss=4.0),
        '{"torn',
    ]
    found = metrics(store, *lines, *odd)
    assert sorted(found) == ["fine", "loss"]
    assert found["loss"].by_attempt[0].values == (1.0, 3.0, 4.0)
    assert found["loss"].by_attempt[0].times[0] is None
    problems = " ".join(read_run(store.folder).problems)
    assert f"{len(bad) + 3:,} lines are no metrics" in problems
    assert "a line is too long" in problems


def test_many_names_and_attempts_are_bounded(store: RunStore) -> None:
    """A host may make up as many as it likes."""
    lines = [metrics_line(n, more={f"m{n}-{i}": 1.0 for i in range(30)}) for n in range(50)]
    assert len(metrics(store, *lines)) == 100
    lines = [metrics_line(1, attempt=n, loss=1.0) for n in range(2000)]
    assert len(metrics(store, *lines)["loss"].by_attempt) == 256


def test_many_events_leave_the_important_ones(store: RunStore) -> None:
    """A start is left out before a loss is, and the middle before the end."""
    path = store.folder / "events.jsonl"
    with path.open("a") as file:
        for seq in range(4, 500):
            lost = seq % 100 == 0
            body = HostLost("x") if lost else RankStarted(seq, 1)
            file.write(Event(RUN_ID, "a", 0, seq, BEGAN + seq, 0.0, body).to_line())
    problems = Problems()
    events, count = read_events(store.folder, problems, 50)
    assert (len(events), count) == (50, 499)
    kinds = [type(event.body) for event in events]
    assert (kinds.count(HostLost), kinds.count(Ended), kinds.count(RankExited)) == (4, 1, 1)
    assert problems.lines == ["events.jsonl: 50 of 499 events are read"]
    few = [event.seq for event in read_events(store.folder, Problems(), 4)[0]]
    assert (few[0], few[-1]) == (3, 400)


def test_a_file_of_samples_may_go_while_it_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as by a `pull` at the same time."""
    monkeypatch.setattr(samples_reader, "_files", lambda folder: [folder / "samples.jsonl"])
    assert samples_reader.read_loads(tmp_path, 10, 0.0, Problems()) == ()


def test_of_a_huge_file_the_middle_is_left_out(tmp_path: Path) -> None:
    """How it ended is what is asked about."""
    lines = [b"%06d" % number + b"x" * 1000 + b"\n" for number in range(5000)]
    (tmp_path / "file").write_bytes(b"".join(lines))
    problems = Problems()
    read = b"".join(blocks_of_lines(tmp_path / "file", 2 << 20, problems)).splitlines(keepends=True)
    assert (read[0], read[-1]) == (lines[0], lines[-1])
    assert set(read) < set(lines)
    assert problems.lines == ["file: only 2 MiB of it are read, its beginning and its end"]


def test_no_alias_makes_a_configuration_endless(tmp_path: Path) -> None:
    """Nor does a merge of merges, one that contains itself, or a number; nothing is executed."""
    lists = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    merges = [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 20)]
    for text in (
        "\n".join(["a0: &a0 [x]", *lists]),
        "\n".join(["a0: &a0 {k: 1}", *merges]),
        "a: &a {b: *a}",
        f"a: 0x{'f' * 5000}",
        f"a: 1{':59' * 1_000_000}",
        "x: !!python/object:os.system {}",
        "[1, 2]",
    ):
        (tmp_path / "config.yaml").write_text(text)
        problems = Problems()
        assert read_config(tmp_path / "config.yaml", problems) == {}
        assert len(problems.lines) == 1, text[:80]


def test_a_run_id_of_a_record_is_no_path(store: RunStore) -> None:
    """Names of files are made of it."""
    contact = json.loads((store.folder / "contact.json").read_text())
    contact["run"]["run_id"] = "../../x"
    (store.folder / "contact.json").write_text(json.dumps(contact))

    assert read_run(store.folder).run_id == RUN_ID
