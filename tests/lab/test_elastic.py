"""Runs in which torch decides who has which ranks, and nodes come and go."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.lab.lab import Lab
from tests.lab.launching import TORCHLESS, Launcher
from tests.lab.waiting import wait_until

THREE = ["cluster=lab4", "cluster.only=[node1,node2,node3]", "rendezvous=c10d"]
ELASTIC = [
    *THREE,
    "task.nnodes='2:3'",
    "torchrun.max_restarts=5",
    "torchrun.rdzv_conf={last_call_timeout: 2, keep_alive_interval: 1, keep_alive_max_attempt: 3}",
]


def test_a_node_that_comes_back_takes_part_again(lab: Lab, on_lab: Launcher, steps: Path) -> None:
    """It gets its order once more; one that was off at launch is left out, which is said.

    In the place of torchrun nodes take part as a folder says that all hosts see (`torchless`).
    """
    agents = steps / "agents"
    agents.mkdir()
    agents.chmod(0o1777)

    def set_size(size: int) -> None:
        (steps / "new_size").write_text(str(size))
        (steps / "new_size").replace(steps / "size")  # it is read at any moment

    set_size(2)
    lab["node3"].power_off()
    on_lab.entry = "torchrun"
    ranks = on_lab.rank_overrides("env=RANK", f"wait={steps}/go")
    env = (f"cluster.env.PYTHONPATH={TORCHLESS}", f"cluster.env.ELASTIC_FOLDER={steps}")
    elastic = ("task.nnodes='1:3'", "cluster.master=node2", "torchrun.max_restarts=5")
    running = on_lab.start(*THREE, *elastic, *ranks, *env)
    running.until_printed("RANK=", 2)
    running.until_joined()
    assert "node3 is left out: " in running.err
    lab["node1"].power_off()
    running.until(lambda: "node1 was lost" in running.err, "the loss")
    set_size(1)
    (agents / "node1").unlink()  # which the other notices
    running.until(lambda: "membership 2: 1 node, 1 rank" in running.err, "one")
    lab["node1"].power_on()
    set_size(2)
    running.until(lambda: "membership 3: 2 nodes, 2 ranks" in running.err, "its return", 60)
    (steps / "go").touch()
    done = running.wait()
    assert done.code == 0, done
    assert done.out.count("[node1:0] RANK=0") == 2


@pytest.mark.all
def test_ranks_are_where_torch_puts_them(lab: Lab, on_lab: Launcher) -> None:
    """The master is the last by its address: its ranks are the last ones, and so they are told."""
    on_lab.entry = "torchrun"
    words = on_lab.rank_overrides("print=up", "env=GROUP_RANK")
    done = on_lab.succeed(
        *THREE, "cluster.master=node3", *words, "cluster.nodes.node2.nproc_per_node=2"
    )
    ranks = {0: "node1", 1: "node2", 2: "node2", 3: "node3"}
    for rank, node in ranks.items():
        assert f"[{node}:{rank}] up" in done.out, done
        assert done.log(node, rank).startswith("up\n")
    assert {int(r): end["node"] for r, end in done.result["ranks"].items()} == ranks
    assert "4 ranks on 3 nodes, numbered by torch" in done.err
    assert re.search(r"node\[1-3\] +ranks 0-3 succeeded; 0 processes left", done.err), done
    again = on_lab("logs", "--run", done.folder.name, "--cluster", "lab4", "--rank", "0,3")
    assert "[node1:0] up" in again.out, again
    assert "[node3:3] up" in again.out, again
    assert ":1]" not in again.out
    assert lab.wait_idle() == {}


@pytest.mark.all
def test_torch_starts_failed_ranks_again(on_lab: Launcher) -> None:
    """A rank fails once; nobody stops the run, both starts are on record, and no byte is lost."""
    on_lab.entry = "torchrun"
    words = on_lab.rank_overrides("print=up", "once=0:no_learning_rate", "print=again")
    done = on_lab.succeed(*THREE, "torchrun.max_restarts=1", *words)
    starts = [e for e in done.events if e["kind"] == "rank_started"]
    assert sorted((e["rank"], e["start"]) for e in starts) == [
        (r, n) for r in range(3) for n in (1, 2)
    ]
    exits = [e for e in done.events if e["kind"] == "rank_exited" and e["rank"] == 0]
    assert [e["code"] for e in exits] == [1, 0]
    assert done.log("node1", 0) == "up\nup\nagain\n"
    assert "membership 2: 3 nodes, 3 ranks; restart 1 of 1\n" in done.err


@pytest.mark.all
def test_nobody_is_needed_for_a_loss(lab: Lab, on_lab: Launcher) -> None:
    """A detached run goes on with two; ps, attach and logs tell it as it is, and stop proves it."""
    on_lab.entry = "torchrun"
    words = on_lab.rank_overrides("print=up", "sleep=600")
    run = on_lab(*ELASTIC, *words, "cluster.master=node2", "detach=true").folder.name
    here = ["--run", run, "--cluster", "lab4"]
    lab["node3"].power_off()
    log = f"~/.runner/runs/{run}/node1/attempt_0/rank_0.out"
    wait_until(lambda: lab["node1"].sh(f"cat {log}") == "up\nup\n", "ranks anew", timeout=60)
    assert " running " in on_lab("ps", "--cluster", "lab4").out
    lab["node3"].power_on()
    attached = on_lab.start("attach", *here)
    attached.until(lambda: "membership 2: 2 nodes, 2 ranks" in attached.err, "it")
    attached.until_printed("[node1:0] up", 2)
    logs = on_lab("logs", *here, "--node", "node2")
    assert logs.out.count("[node2:1] up") == 2, logs
    on_lab.succeed("stop", *here)
    ended = attached.wait()
    assert ended.code == 130, ended.err
