"""Reading of records: whole ones, damaged ones, and what a hostile host may have left in them."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.control.history.bounded_reader import BLOCK, MAX_LINE, Problems, blocks_of_lines
from runner.control.history.config_reader import read_config
from runner.control.history.events_reader import read_events
from runner.control.history.note_reader import MAX_NOTE, read_note
from runner.control.history.run_reader import read_run
from runner.control.record.file_names import NOTE_FILE
from runner.control.record.note_record import write_note
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
    """A line as it is on record."""
    origin = {"v": 1, "node": "a", "attempt": 0, "rank": 0, "stream": "out", "offset": step * 100}
    figures: dict[str, Any] = {"steps": None, "loss": None, "rate": None, "unit": "", "more": {}}
    return json.dumps({**origin, "time": BEGAN + step, "step": step, **figures, **fields}) + "\n"


def metrics(store: RunStore, *lines: str, **options: Any) -> dict[str, Metric]:
    """The metrics that are read of these lines, by name."""
    (store.folder / "metrics.jsonl").write_text("".join(lines))
    return {metric.name: metric for metric in read_run(store.folder, **options).metrics}


def sample_lines(*samples: Sample) -> str:
    """Lines of `samples.jsonl`."""
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
    write_note(store.folder, "the first one")
    data = read_run(store.folder)
    assert data.problems == ()
    assert (data.run_id, data.cluster, data.task) == (RUN_ID, "lab", "train")
    assert (data.note, data.sweep_id) == ("the first one", "0101-1200-sweep")
    assert (data.launched_at, data.seconds) == (BEGAN, 20.0)
    assert [each.attempt for each in data.plans] == [0, 1]
    assert data.config["task"] == {"args": {"lr": 0.1, "steps": [1, 2]}}
    assert data.overrides == ("task.args.lr=0.1",)
    assert data.origins == {"task.args.lr": "command line: task.args.lr=0.1"}
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


def test_an_end_of_an_earlier_attempt_is_no_end(store: RunStore) -> None:
    """The run was relaunched since."""
    store.write_plan(replace(plan(1, 1), run_id=RUN_ID, attempt=2))
    data = read_run(store.folder)
    assert (data.verdict, data.ended_at, data.problems) == (None, None, ())


@pytest.mark.parametrize(
    "name",
    sorted(
        (
            "contact.json",
            "plan.json",
            "plan.0.json",
            "result.json",
            "config.yaml",
            "origins.json",
            "overrides.yaml",
            "events.jsonl",
            "metrics.jsonl",
            "samples.jsonl",
            "sweep.json",
            NOTE_FILE,
        )
    ),
)
def test_a_damaged_file_is_a_problem_and_the_rest_is_read(store: RunStore, name: str) -> None:
    """Whatever it has become: cut off, of other types, binary, nested without end, or a pipe."""
    path = store.folder / name
    path.touch()
    deep = b"[" * 200_000
    contents = [
        b"{",
        b"[]\n",
        b"\0\xff" * 100,
        b'{"v": 1, "node": 3, "runs": 1, "text": 1}\n',
        deep,
    ]
    for content in contents:
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


def test_nothing_at_all_is_read_as_such(tmp_path: Path) -> None:
    """A folder without files, and none."""
    for folder in (tmp_path, tmp_path / "none"):
        data = read_run(folder)
        assert (data.run_id, data.launched_at, data.metrics) == (folder.name, None, ())
        assert data.problems


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


def test_a_later_lower_rank_replaces_the_series(store: RunStore) -> None:
    """Streams are mixed: rank 0 may come last, even in another block."""
    lines = [metrics_line(n, rank=1, loss=5.0) for n in range(BLOCK // 200)]
    found = metrics(store, *lines, metrics_line(7, rank=0, loss=1.0))["loss"]
    assert (found.rank, found.by_attempt[0].steps, found.last) == (0, (7,), 1)
    assert found.spread[0].steps[-1] == len(lines) - 1


def test_metrics_that_are_no_numbers(store: RunStore) -> None:
    """NaN and infinity are texts on record; other texts are no metrics."""
    more = {"lr": 1e-3, "note": "x", "peak": "Infinity"}
    found = metrics(
        store,
        metrics_line(1, loss=2.0, more=more),
        metrics_line(2, loss="NaN", time=None),
        metrics_line(2, loss="-Infinity", time=1.0),
    )
    assert sorted(found) == ["loss", "lr", "peak"]
    loss = found["loss"]
    assert (loss.last, loss.least, loss.by_attempt[0].values) == (None, 2.0, (2.0, None, None))
    assert loss.by_attempt[0].times == (BEGAN + 1, None, None), "before the launch by a day"
    assert found["peak"].last is None


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
    assert f"{len(bad) + 2:,} lines are no metrics" in problems
    assert "a line is too long" in problems


def test_many_names_and_attempts_are_bounded(store: RunStore) -> None:
    """A host may make up as many as it likes."""
    lines = [metrics_line(n, more={f"m{n}-{i}": 1.0 for i in range(30)}) for n in range(50)]
    assert len(metrics(store, *lines)) == 100
    lines = [metrics_line(1, attempt=n, loss=1.0) for n in range(2000)]
    assert len(metrics(store, *lines)["loss"].by_attempt) == 256


def test_many_lines_of_many_ranks_are_read_in_little_memory(store: RunStore) -> None:
    """A hundred thousand lines, in blocks: no list of lines is ever made."""
    with (store.folder / "metrics.jsonl").open("w") as file:
        for step in range(100):
            file.writelines(
                metrics_line(step, rank=rank, loss=math.sin(rank)) for rank in range(1000)
            )
    (loss,) = read_run(store.folder).metrics
    assert (loss.rank_count, len(loss.spread[0].steps)) == (1000, 100)
    problems = Problems()
    sizes = map(len, blocks_of_lines(store.folder / "metrics.jsonl", 1 << 30, problems))
    assert max(sizes) < 2 * BLOCK


def test_many_events_leave_the_important_ones(store: RunStore) -> None:
    """A start is left out before a loss is."""
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


def test_samples_are_read_of_each_node_until_merged(store: RunStore) -> None:
    """Without a file of all nodes, `pull` has brought one of each attempt."""
    hot = GpuSample(1, throttled=("thermal",))
    for attempt in (0, 1):
        for node, count in (("a", 3), ("b", 1)):
            folder = store.folder / f"hosts/{node}/attempt_{attempt}"
            folder.mkdir(parents=True)
            at = BEGAN + 100 * attempt
            samples = [Sample(node, attempt, at + n, cpu=1.0, gpus=(hot,)) for n in range(count)]
            old = Sample(node, attempt, 5.0, cpu=99.0)
            (folder / "samples.jsonl").write_text(sample_lines(old, *samples) + "{}\n")
    loads = read_run(store.folder).loads
    assert [(load.node, len(load.series["cpu"].values)) for load in loads] == [("a", 6), ("b", 2)]
    assert loads[0].gpus[0].throttled == ((BEGAN, BEGAN + 102, "thermal"),)
    assert loads[0].gpus[0].index == 1


def test_no_alias_makes_a_configuration_endless(tmp_path: Path) -> None:
    """Nor one that contains itself."""
    lines = ["a0: &a0 [x]"] + [
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)
    ]
    for text in ("\n".join(lines), "a: &a {b: *a}", "x: !!python/object:os.system {}", "[1, 2]"):
        (tmp_path / "config.yaml").write_text(text)
        problems = Problems()
        assert read_config(tmp_path / "config.yaml", problems) == {}
        assert problems.lines, text


@pytest.mark.parametrize(
    "text",
    [
        "a0: &a0 {k: 1}\n"
        + "".join(
            f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 20)
        ),
        f"a: 0x{'f' * 5000}\n",
        f"a: 1{':59' * 1_000_000}\n",
    ],
    ids=["merges of merges", "a number", "a number in base 60"],
)
def test_no_value_of_a_configuration_takes_for_ever(tmp_path: Path, text: str) -> None:
    """Nor is there one that cannot be shown."""
    problems = Problems()
    (tmp_path / "config.yaml").write_text(text)

    assert read_config(tmp_path / "config.yaml", problems) == {}
    assert len(problems.lines) == 1


@pytest.mark.parametrize(
    "line",
    [metrics_line(1, more={"norm": 10**400}), metrics_line(1, loss=10**400)],
    ids=["of others", "of ours"],
)
def test_a_number_that_no_float_holds_is_left_out(store: RunStore, line: str) -> None:
    """The lines beside it count."""
    found = metrics(store, metrics_line(0, loss=1.0), line, metrics_line(2, loss=2.0))

    assert found["loss"].last == 2.0


def test_the_line_after_one_that_is_too_long_is_read(tmp_path: Path) -> None:
    """Also where a block ends with the long one."""
    path, problems = tmp_path / "events.jsonl", Problems()
    path.write_bytes(b"x" * (3 * BLOCK - 1) + b"\n" + b"next\n")

    assert b"".join(blocks_of_lines(path, 1 << 30, problems)) == b"next\n"


def test_a_run_id_of_a_record_is_no_path(store: RunStore) -> None:
    """Names of files are made of it."""
    contact = json.loads((store.folder / "contact.json").read_text())
    contact["run"]["run_id"] = "../../x"
    (store.folder / "contact.json").write_text(json.dumps(contact))

    assert read_run(store.folder).run_id == RUN_ID


def test_logs_are_bounded(store: RunStore) -> None:
    """The ends of each, in whole lines; links are not followed."""
    store.write_log("a", "rank_0.out", 0, b"".join(b"%05d\n" % n for n in range(10_000)))
    (store.logs / "a" / "rank_1.out").symlink_to("/etc/passwd")
    (store.logs / "a" / "rank_2.out").touch()
    data = read_run(store.folder, log_bytes=100)
    (log,) = data.logs
    assert (log.size, log.text[:6], log.text[-6:]) == (60_000, "09984\n", "09999\n")
    assert any("rank_1.out" in line for line in data.problems)


def test_a_note_is_replaced_and_removed(store: RunStore) -> None:
    """Beside a launch that writes the record: nothing of it changes but the note."""
    before = {path.name for path in store.folder.iterdir()}
    write_note(store.folder, "x\n" * MAX_NOTE)
    assert read_note(store.folder) == ("x\n" * MAX_NOTE)[:MAX_NOTE]
    write_note(store.folder, "short")
    assert read_note(store.folder) == "short"
    for _ in range(2):
        write_note(store.folder, "")
    assert {path.name for path in store.folder.iterdir()} == before
