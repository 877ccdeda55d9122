"""`task.preload`: ranks that are forks of one process are what exec would have made of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lab.inspecting import proven_nodes
from tests.lab.lab import Lab
from tests.lab.launching import PROGRAMS, RANK_SCRIPT, TORCHLESS, Controller, Launcher, Result
from tests.lab.waiting import wait_until

pytestmark = pytest.mark.tasks

STATE = PROGRAMS / "process_state.py"
ONE_NODE = ("cluster=lab", "cluster.only=[node1]", "cluster.nproc_per_node=2")
PRELOAD = "task.preload=true"
OTHER = {"SSH_CLIENT", "SSH_CONNECTION", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE"}
"""Variables that differ from run to run."""


@pytest.fixture
def torchless(on_lab: Launcher) -> Callable[..., Controller]:
    """Starts two ranks without torch on one node, forked from a process of torchrun's stand-in."""
    on_lab.entry = "torchrun"

    def start(*words: str, preload: str = "true", **env: str) -> Controller:
        environ = {"PYTHONPATH": TORCHLESS, **env}
        settings = [f"cluster.env.{name}={value}" for name, value in environ.items()]
        ranks = on_lab.rank_overrides(*words)
        return on_lab.start(*ONE_NODE, *settings, *ranks, f"task.preload={preload}", "grace_s=1")

    return start


def rank_records(lab: Lab, run: str) -> dict[int, dict[str, int]]:
    folder = f".runner/runs/{run}/node1/attempt_0"
    text = lab["node1"].sh(f"cat {folder}/rank_0.start {folder}/rank_1.start", check=False)
    found = [json.loads(line + "}") for line in text.split("}") if line.strip()]
    return dict(enumerate(found))


def is_forked(lab: Lab, run: str) -> bool:
    """Whether no rank is a child of its shim."""
    records = rank_records(lab, run)
    assert len(records) == 2, records
    return all(data["parent"] != data["shim"] for data in records.values())


def found(done: Result, rank: int) -> dict[str, Any]:
    text = done.log("node1", rank).splitlines()[-1].replace(done.folder.name, "RUN")
    data: dict[str, Any] = json.loads(text)
    environ = data["state"]["environ"]
    data["state"]["environ"] = {k: v for k, v in environ.items() if k not in OTHER}
    return data


def test_a_forked_rank_is_like_an_executed_one(lab: Lab, on_lab: Launcher) -> None:
    """It finds the same in its process, draws its own random numbers, and computes the same."""
    words = (*ONE_NODE, f"task.script={STATE}")
    forked = on_lab(*words, PRELOAD)
    executed = on_lab(*words)
    assert (forked.code, executed.code) == (0, 0), forked
    assert "task.preload" not in forked.err + forked.out, forked
    said = [" s, torch imported\n" in done.err for done in (forked, executed)]
    assert said == [True, False], (forked.err, executed.err)
    assert is_forked(lab, forked.folder.name)
    assert not is_forked(lab, executed.folder.name)
    for rank in (0, 1):
        ours, plain = found(forked, rank), found(executed, rank)
        assert ours["state"] == plain["state"]
        assert (ours["seeded"], ours["step"]) == (plain["seeded"], plain["step"])
        assert ours["loaded"] == plain["loaded"] == [[0, 1, 4, 9], [16, 25, 36, 49]]
    drawn = [found(done, rank)["drawn"] for done in (forked, executed) for rank in (0, 1)]
    for numbers in zip(*drawn, strict=True):
        assert len({str(number) for number in numbers}) == len(numbers), numbers


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("threaded", "an imported module has started a thread of Python"),
        ("connected", "an imported module has opened a connection"),
        ("raising", "raising cannot be imported (RuntimeError: no such card)"),
        ("ending", "the fork server has ended"),
    ],
)
def test_ranks_are_executed_where_they_cannot_be_forked(
    name: str, reason: str, lab: Lab, torchless: Callable[..., Controller], tmp_path: Path
) -> None:
    """One line says why, and the run goes on."""
    (tmp_path / f"{name}.py").symlink_to(PROGRAMS / "preloads.py")
    path = f"{tmp_path}:{TORCHLESS}"
    done = torchless("print=fine", preload=f"[torch,{name}]", PYTHONPATH=path).wait()
    assert done.code == 0, done
    assert done.err.count("runner: task.preload: ") == 1, done
    line = f"runner: task.preload: each rank imports torch itself: {reason}"
    assert line in done.log("node1", 0, "err"), done
    assert not is_forked(lab, done.folder.name)


LAST = """\
import os, sys, torch
class Last:
    def __del__(self):
        print("destroyed", flush=True)
last = Last()
file = open(f"{os.path.dirname(os.environ['RUNNER_METRICS'])}/last.{os.environ['RANK']}", "w")
file.write("last line")
if sys.argv[1] == "fails":
    raise ValueError("at the end")
"""


@pytest.mark.parametrize(("form", "end"), [("script", "fails"), ("module", "succeeds")])
def test_a_program_ends_as_an_executed_one(
    form: str, end: str, lab: Lab, on_lab: Launcher, tmp_path: Path
) -> None:
    """Its objects are destroyed and its files written; its traceback has its own frames alone."""
    (tmp_path / "last.py").write_text(LAST)
    program = f"task.script={tmp_path / 'last.py'}" if form == "script" else "task.module=last"
    path = f"cluster.env.PYTHONPATH={tmp_path}:{TORCHLESS}"
    one_rank = (*ONE_NODE[:2], "cluster.nproc_per_node=1")
    done = on_lab(*one_rank, program, path, PRELOAD, "--", end)
    assert done.code == (end == "fails"), done
    record = rank_records(lab, done.folder.name)[0]
    assert record["parent"] != record["shim"], done
    assert done.log("node1", 0) == "destroyed\n", done
    folder = f".runner/runs/{done.folder.name}/node1/attempt_0"
    assert lab["node1"].sh(f"cat {folder}/last.0") == "last line"
    errors = done.log("node1", 0, "err")
    assert ("ValueError: at the end" in errors) == (end == "fails"), errors
    assert "preload" not in errors, errors


@pytest.mark.promise(2)
@pytest.mark.parametrize("victim", ["parent", "shim", "pid"])
def test_a_killed_process_ends_its_ranks_and_the_run(
    victim: str, lab: Lab, torchless: Callable[..., Controller]
) -> None:
    """A rank's keeper, its shim, or the rank itself; nothing is left."""
    controller = torchless("print=here", "deaf", "sleep=600")
    controller.until_printed("here", times=2)
    wait_until(lambda: len(rank_records(lab, controller.run_id)) == 2, "records of ranks")
    assert is_forked(lab, controller.run_id)
    lab["node1"].kill(rank_records(lab, controller.run_id)[1][victim])
    done = controller.wait()
    assert done.code == 1, done
    assert "first failure: rank" in done.err, done
    assert proven_nodes(done.err) == 1, done


@pytest.mark.smoke
@pytest.mark.promise(2)
def test_ctrl_c_gives_ranks_their_time(
    lab: Lab, on_lab: Launcher, torchless: Callable[..., Controller]
) -> None:
    """They get TERM, whatever signal the fork server has got; stacks are those of a program."""
    controller = torchless("print=here", "sleep=600")
    controller.until_printed("here", times=2)
    wait_until(lambda: len(rank_records(lab, controller.run_id)) == 2, "records of ranks")
    assert is_forked(lab, controller.run_id)
    shown = on_lab("stacks", controller.run_id)
    assert shown.code == 0, shown
    assert shown.out.count(RANK_SCRIPT) >= 2, shown
    assert "preload" not in shown.out, shown
    server = rank_records(lab, controller.run_id)[0]["parent"]
    lab["node1"].sh(f"kill -USR1 {server} && kill -QUIT {server} && kill -XCPU {server}")
    controller.send()
    done = controller.wait()
    assert done.code == 130, done
    assert {each["signal"] for each in done.result["ranks"].values()} == {15}, done
    assert proven_nodes(done.err) == 1, done
