"""Reading of records: whole ones, damaged ones, and what a hostile host may have left in them."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.control.history import run_reader
from runner.control.history.files import RecordFiles
from runner.control.history.run_reader import read_run
from runner.control.record.run_store import RunStore
from runner.core.history import Metric
from runner.core.outcome.verdict import Verdict
from runner.core.wire.events import Ended, Event, HostLost, RankExited, RankStarted
from runner.core.wire.run_info import GpuSample, PastAttempt, Sample
from runner.core.wire.states import State
from runner.ui.page.page import render_page
from tests.golden.builders import failed, plan, request, told

BEGAN = 1.7e9
RUN_ID = "0101-1200-train-abcd"
SAMPLES = "hosts/a/attempt_1/samples.jsonl"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    """The record of a run of two attempts that failed."""
    monkeypatch.chdir(tmp_path)
    store = RunStore(tmp_path / RUN_ID)
    yaml = "task:\n  args: {lr: 0.1, steps: [1, 2]}\nrun_id: x\n"
    asked = replace(request(store.folder, yaml), launched_at=BEGAN)
    first = replace(plan(1, 1), run_id=RUN_ID)
    store.create(asked, first)
    store.write_plan(replace(first, attempt=1), asked)
    verdict = Verdict("failed", 1, 20.0, failed("b", 1, 3))
    past = PastAttempt(0, ("a", "b"), told("lost b"), 10.0)
    store.write_result(plan(1, 1), replace(verdict, past_attempts=(past,)), BEGAN, None)
    result = json.loads((store.folder / "result.json").read_text())
    store.write_json("result.json", {**result, "attempt": 1})
    bodies = [RankStarted(0, 7), RankExited(1, 3), Ended(State.FAILED)]
    for seq, body in enumerate(bodies, start=1):
        store.append(Event(RUN_ID, "a", 1, seq, BEGAN + 10 - seq, float(seq), body))
    return store


def metrics_line(step: int, /, **fields: Any) -> str:
    origin = {"v": 1, "node": "a", "attempt": 0, "rank": 0, "stream": "out"}
    figures: dict[str, Any] = {"steps": None, "loss": None, "rate": None, "unit": "", "more": {}}
    return json.dumps({**origin, "step": step, **figures, **fields}) + "\n"


def metrics(store: RunStore, *lines: str) -> dict[str, Metric]:
    (store.folder / "metrics.jsonl").write_text("".join(lines))
    return {metric.name: metric for metric in read_run(store.folder).metrics}


def test_a_whole_record_is_read_without_problems(store: RunStore) -> None:
    """What was launched, what came of it, and every file of it."""
    for node, name, text in (("a", "rank_0.out", "x\n"), ("b", "rank_1.err", "y\nz\n")):
        store.write_log(node, name, 0, text.encode())
        store.write_log(node, f"attempt_1/{name}", 0, text.encode())
    (store.folder / "metrics.jsonl").write_text(metrics_line(1, loss=0.5, steps=9))
    gpu = GpuSample(0, "A100", utilization=90)
    samples = [Sample("a", 1, BEGAN + n, cpu=10.0 * n, gpus=(gpu,)) for n in range(3)]
    path = store.folder / SAMPLES
    path.parent.mkdir(parents=True)
    beyond = '{"wall": Infinity, "cpu": 7}\n'  # of a host that lies: no page could show it
    path.write_text("".join(sample.to_line() for sample in samples) + beyond)
    data = read_run(store.folder)
    assert data.problems == ()
    assert (data.run_id, data.cluster, data.task) == (RUN_ID, "lab", "train")
    assert (data.launched_at, data.seconds) == (BEGAN, 20.0)
    assert [each.attempt for each in data.plans] == [0, 1]
    assert data.config["task"] == {"args": {"lr": 0.1, "steps": [1, 2]}}
    assert [event.seq for event in data.events] == [3, 2, 1], "by time"
    assert (data.step, data.steps) == (1, 9)
    assert data.verdict is not None
    assert data.verdict.past_attempts[0].seconds == 10
    assert data.loads["CPU"]["a"].values == (0.0, 10.0, 20.0)
    assert data.loads["GPU utilization"]["a GPU 0"].values == (90.0, 90.0, 90.0)
    ends = [(log.attempt, log.node, log.source, log.text) for log in data.logs]
    assert ends[0] == (1, "b", "rank_1", "y\nz\n"), "that of the failed rank comes first"
    assert len(ends) == 4


@pytest.mark.parametrize(
    "name", ["plan.json", "result.json", "config.yaml", "events.jsonl", "metrics.jsonl", SAMPLES]
)
def test_a_damaged_file_is_a_problem_and_the_rest_is_read(store: RunStore, name: str) -> None:
    """Whatever it has become: cut off, of other types, binary, nested without end, or a pipe."""
    whole = read_run(store.folder)
    path = store.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    typed = b'{"v": 1, "node": 3, "runs": 1}\n'
    for content in (b"{", b"[]\n", b"\0\xff" * 100, typed, b"[" * 200_000):
        path.write_bytes(content)
        assert render_page([read_run(store.folder)]).endswith("</html>")
    for make in (os.mkfifo, lambda place: place.symlink_to("/etc/passwd"), Path.mkdir):
        path.unlink()
        make(path)
        data = read_run(store.folder)
        render_page([data, whole])
        assert path.name.partition(".")[0] in "\n".join(data.problems)


def test_metrics_keep_their_peaks(store: RunStore) -> None:
    """A long series is reduced; its least and its most are among its points, and its last."""
    peaks = {777: 9.0, 3: -9.0}
    lines = [metrics_line(n, loss=peaks.get(n, 1.0)) for n in range(5000)]
    loss = metrics(store, *lines)["loss"]
    series = loss.by_attempt[0]
    assert 500 <= len(series.values) <= 2000
    assert {9.0, -9.0} < set(series.values)
    assert (loss.least, loss.most, loss.last) == (-9, 9, 1)
    assert series.at[-1] == 4999


def test_metrics_are_those_of_the_lowest_rank(store: RunStore) -> None:
    """Whenever its lines come; how far the run is comes from a rank that says how far it goes."""
    lines = [
        metrics_line(step, rank=rank, loss=float(rank + step), steps=10 if rank == 1 else None)
        for step in range(4)
        for rank in (3, 1, 2)
    ]
    found = metrics(store, *lines)["loss"]
    assert found.rank == 1
    assert found.by_attempt[0].values == (1.0, 2.0, 3.0, 4.0)
    data = read_run(store.folder)
    assert (data.step, data.steps) == (3, 10)


def test_lines_that_are_no_metrics_are_counted(store: RunStore) -> None:
    """Types and sizes that no line of ours has; the rest is read."""
    lines = [
        metrics_line(1, rank=None),
        metrics_line(1, more=[1]),
        metrics_line(1, loss=1.0),
        metrics_line(5, more={"fine": 10**400}),
        "[" * 5000 + "\n",
        metrics_line(6, loss=4.0, more={"fine": "NaN", "text": "x"}),
        '{"torn',
    ]
    found = metrics(store, *lines)
    assert sorted(found) == ["fine", "loss"]
    assert found["loss"].by_attempt[0].values == (1.0, 4.0)
    assert "metrics.jsonl: 4 lines are no metrics" in read_run(store.folder).problems


def test_many_names_are_bounded(store: RunStore) -> None:
    """A program may make up as many as it likes."""
    lines = [metrics_line(n, more={f"m{n}-{i}": 1.0 for i in range(30)}) for n in range(50)]
    assert len(metrics(store, *lines)) == 100
    assert "metrics.jsonl: 100 of 1,500 metrics are read" in read_run(store.folder).problems


def test_of_many_events_the_first_and_the_last_are_read(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the final failure is among them."""
    monkeypatch.setattr(run_reader, "EVENT_BYTES", 10_000)
    with (store.folder / "events.jsonl").open("a") as file:
        for seq in range(4, 500):
            body = HostLost("x") if seq == 499 else RankStarted(seq, 1)
            file.write(Event(RUN_ID, "a", 0, seq, BEGAN + seq, 0.0, body).to_line())
    data = read_run(store.folder)
    assert len(data.events) < 100
    assert {1, 2, 3} < {event.seq for event in data.events}
    assert isinstance(data.events[-1].body, HostLost)
    (problem,) = data.problems
    assert problem.endswith("kB in the middle are left out")


def test_no_alias_makes_a_configuration_endless(tmp_path: Path) -> None:
    """A host may have sent it; nothing is executed."""
    lists = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    many = "\n".join(["a0: &a0 [x]", *lists])
    for text in (many, "a: &a {b: *a}", "[" * 200_000, "x: !!python/object:os.system {}"):
        (tmp_path / "config.yaml").write_text(text)
        files = RecordFiles(tmp_path)
        assert files.config("config.yaml") == {}
        assert len(files.problems) == 1, text[:80]


def test_metrics_are_made_where_the_logs_are_newer(store: RunStore) -> None:
    """As after a `kill -9` of the launch; a record that cannot be written has those it had."""
    log = store.logs / "a" / "rank_0.out"
    log.parent.mkdir()
    log.write_text('{"step": 1, "loss": 0.5}\n')
    assert read_run(store.folder).metrics[0].last == 0.5
    record = store.folder / "metrics.jsonl"
    made = record.read_bytes()
    log.write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.25}\n')
    os.utime(log, ns=(0, record.stat().st_mtime_ns + 1))
    assert read_run(store.folder).metrics[0].last == 0.25
    assert record.read_bytes().startswith(made)
    record.unlink()
    record.mkdir()
    os.utime(log, ns=(0, record.stat().st_mtime_ns + 1))
    (problem, *_) = read_run(store.folder).problems
    assert problem.startswith("metrics.jsonl: cannot write the metrics in ")


def test_a_run_id_of_a_record_is_no_path(store: RunStore) -> None:
    """Names of files are made of it."""
    recorded = json.loads((store.folder / "plan.json").read_text())
    recorded["run_id"] = recorded["launch"]["spec"]["run_id"] = "../../x"
    (store.folder / "plan.json").write_text(json.dumps(recorded))
    (store.folder / "result.json").unlink()

    assert read_run(store.folder).run_id == RUN_ID
