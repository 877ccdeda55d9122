"""Rendezvous of every kind, on real hosts with real torchrun, and every way a run ends."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from itertools import product

import pytest
from _pytest.mark.structures import ParameterSet

from tests.lab.causing import etcd_on
from tests.lab.lab import Lab
from tests.lab.launching import PROGRAMS, Launcher
from tests.lab.ways import ENDINGS, RENDEZVOUS_CASES, EndingCase, RendezvousCase


def combinations() -> Iterator[ParameterSet]:
    """Every way with every ending; `make test` takes each way to success, and the others once.

    Those by etcd's v2 API succeed in tests of their own.
    """
    others = {("static", "one rank fails"), ("c10d", "Ctrl-C"), ("static", "`stop` from elsewhere")}
    for way, ending in product(RENDEZVOUS_CASES, ENDINGS):
        succeeds = not ending.code and "etcd-v2" not in way.name
        once = succeeds or (way.name, ending.name) in others
        marks = [] if once else [pytest.mark.all]
        yield pytest.param(way, ending, id=f"{way.name}-{ending.name}", marks=marks)


@pytest.mark.parametrize(("way", "ending"), list(combinations()))
def test_a_run_ends_as_it_should(
    lab: Lab, on_lab: Launcher, way: RendezvousCase, ending: EndingCase
) -> None:
    """Whatever torch's agents say of each other at the end; nothing is left, no etcd either."""
    with contextlib.ExitStack() as around:
        etcd = around.enter_context(etcd_on(lab, "node4")) if way.needs_external_etcd else ""
        words = [word.format(etcd=etcd) for word in way.overrides]
        ranks = on_lab.rank_overrides(*ending.ranks)
        only = f"cluster.only=[{','.join(way.nodes)}]"
        running = on_lab.start(
            *("cluster=lab", "grace_s=5", only, "cluster.nproc_per_node=2", *words, *ranks)
        )
        if ending.during:
            running.until(lambda: "every rank started" in running.err, "the ranks")
            ending.during(on_lab, running)
        done = running.wait(60)
    assert done.code == ending.code, done
    assert done.result["state"] == ending.state, done
    assert ending.expected_output in done.err, done
    assert done.result["unverified"] == []
    assert lab.wait_idle() == {}


def test_why_a_program_never_began_is_shown_where_torch_assigns_the_ranks(
    on_lab: Launcher,
) -> None:
    """Nobody knew the rank before, and it never started: its log is followed by its end."""
    words = ("cluster.only=[node1]", "task.nnodes=1", "cluster.nproc_per_node=1")
    done = on_lab("cluster=lab", *words, "rendezvous=c10d", "task.command=[/no/such/program]")
    assert done.code == 1, done
    assert "/no/such/program: No such file or directory" in done.err, done
    assert "/no/such/program: No such file or directory" in done.log("node1", 0, "err")
    again = on_lab("logs", "--run", "latest")
    assert "/no/such/program: No such file or directory" in again.out + again.err, again


def test_options_of_torchruns_reach_torchrun(lab: Lab, on_lab: Launcher) -> None:
    """All that work without GPUs; a signal that torchrun hands on is heard by every rank."""
    running = on_lab.start(
        *("cluster=lab", "rendezvous=c10d", "cluster.only=[node1,node2]", "grace_s=5"),
        *("cluster.nproc_per_node=2", f"task.script={PROGRAMS / 'usr1.py'}"),
        *("torchrun.start_method=fork", "torchrun.monitor_interval=0.2", "torchrun.role=trainer"),
        *("torchrun.signals_to_handle=[SIGTERM,SIGUSR1]", "torchrun.shutdown_timeout=7"),
        "torchrun.rdzv_conf={join_timeout: 300}",
    )
    running.until_printed("] up", 4)
    for name in ("node1", "node2"):
        (torchrun,) = (
            each
            for each in lab[name].processes("torch.distributed.run")
            if "-m torch.distributed.run" in each.cmdline
        )
        assert "--rdzv_conf=join_timeout=300,is_host=" in torchrun.cmdline
        quieted = {each.pid for each in lab[name].processes("TORCH_CPP_LOG_LEVEL=ERROR")}
        ranks = {each.pid for each in lab[name].processes("usr1.py") if each.ppid in quieted}
        assert torchrun.pid in quieted, "it prints no stack trace when its store is gone"
        assert ranks - quieted, "and its ranks are told nothing of that"
        lab[name].kill(torchrun.pid, signal.SIGUSR1)
    done = running.wait(60)
    for rank, name in enumerate(("node1", "node1", "node2", "node2")):
        said = done.log(name, rank)
        assert "role trainer\n" in said, done
        assert f"rank {rank} heard SIGUSR1\n" in said, done
    assert done.code == 0, done


def test_an_etcd_of_the_run_lives_as_long_as_the_run(lab: Lab, on_lab: Launcher) -> None:
    """On the training address of its node alone; what it kept is removed, what it said is not."""
    ranks = on_lab.rank_overrides("print=up", "sleep=600")
    running = on_lab.start(
        *("cluster=lab", "rendezvous=etcd-v2", "rendezvous.serve=node3", "grace_s=2"), *ranks
    )
    running.until(lambda: "every rank started" in running.err, "the ranks")
    place = f"~/.runner/runs/{running.run_id}/node3"
    (etcd,) = lab["node3"].processes("--listen-client-urls")
    listens = [
        line.split()[3] for line in lab["node3"].sh("ss -Hltnp").splitlines() if '"etcd"' in line
    ]
    assert [each.rpartition(":")[0] for each in listens] == [lab["node3"].address]
    assert lab["node3"].sh(f"ls {place}/etcd/data").split() == ["member"]
    lab["node3"].kill(etcd.pid)
    done = running.wait(30)
    assert done.code == 1, done
    assert "first failure: node3: the etcd of the run was killed by SIGKILL" in done.err, done
    left = lab["node3"].sh(f"ls {place} {place}/attempt_0").split()
    assert "etcd" not in left
    assert "etcd.err" in left
    assert lab.wait_idle() == {}
