"""Every way nodes meet, on real hosts with real torchrun: each ends as runs end."""

from __future__ import annotations

import contextlib

import pytest

from tests.lab.lab import Lab
from tests.lab.launching import Launcher
from tests.lab.ways import ENDINGS, WAYS, Ending, Way, etcd_on


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.name)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_a_run_ends_as_it_should(lab: Lab, on_lab: Launcher, way: Way, ending: Ending) -> None:
    """Whatever torch's agents say of each other at the end; nothing is left, no etcd either."""
    with contextlib.ExitStack() as around:
        etcd = around.enter_context(etcd_on(lab, "node4")) if way.own_etcd else ""
        words = [word.format(etcd=etcd) for word in way.words]
        ranks = on_lab.rank_words(*ending.ranks)
        only = f"cluster.only=[{','.join(way.nodes)}]"
        running = on_lab.start(
            *("cluster=lab", "stop.grace_s=5", only, "cluster.nproc_per_node=2", *words, *ranks)
        )
        if ending.during:
            running.until(lambda: "every rank started" in running.err, "the ranks")
            ending.during(on_lab, running)
        done = running.wait(60)
    assert done.code == ending.code, done
    assert done.result["state"] == ending.state, done
    assert ending.says in done.err, done
    assert done.result["unproven"] == []
    assert lab.leftovers() == {}
