"""Rendezvous of every kind, on real hosts with real torchrun, and every way a run ends."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator

import pytest

from tests.lab.lab import Lab
from tests.lab.launching import TORCHLESS, Launcher
from tests.lab.waiting import wait_until

UP = ("print=up", "sleep=600")
ENDINGS = {
    "every rank succeeds": (("print=up",), 0, "succeeded", "succeeded"),
    "one rank fails": (("print=up", "fail=1:3", *UP), 1, "failed", "first failure: rank 1 on"),
    "Ctrl-C": (UP, 130, "stopped", "s: interrupted by Ctrl-C"),
    "stop from elsewhere": (UP, 130, "stopped", "s: stop requested by "),
}
"""What the ranks do, the exit code, the state of `result.json`, and what the verdict says."""

ETCD = "rendezvous.endpoint={etcd}"
WAYS = {
    "static": ("rendezvous=static", f"cluster.env.PYTHONPATH={TORCHLESS}"),
    "standalone": ("rendezvous=standalone", "cluster.only=[node1]"),
    "c10d": ("rendezvous=c10d",),
    "etcd": ("rendezvous=etcd", ETCD),
    "etcd-v2": ("rendezvous=etcd-v2", ETCD),
}
"""What is typed; `{etcd}` is the endpoint of an etcd on node4."""

EVERYDAY = [("static", "one rank fails"), ("c10d", "every rank succeeds")]
OTHERS = [
    ("standalone", "every rank succeeds"),
    ("c10d", "one rank fails"),
    ("c10d", "Ctrl-C"),
    ("c10d", "stop from elsewhere"),
    ("etcd", "every rank succeeds"),
    ("etcd", "one rank fails"),
    ("etcd-v2", "every rank succeeds"),
]


@contextlib.contextmanager
def etcd_on(lab: Lab, name: str) -> Iterator[str]:
    """An etcd of somebody else's on a host, with the v2 API; its endpoint."""
    endpoint = f"{lab[name].address}:2379"
    url = f"http://{endpoint}"
    listening = ("--listen-client-urls", url, "--advertise-client-urls", url)
    program = lab[name].popen(
        ["etcd", "--data-dir", "etcd", *listening, "--enable-v2"],
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: f"{endpoint} " in lab[name].sh("ss -ltn"), "etcd to listen")
        yield endpoint
    finally:
        program.kill()
        program.wait()


@pytest.mark.parametrize(
    ("way", "ending"), [*EVERYDAY, *(pytest.param(*each, marks=pytest.mark.all) for each in OTHERS)]
)
def test_a_run_ends_as_it_should(lab: Lab, on_lab: Launcher, way: str, ending: str) -> None:
    """Whatever torch's agents say of each other at the end; nothing is left."""
    words, code, state, expected_output = ENDINGS[ending]
    on_lab.entry = "torchrun"
    with contextlib.ExitStack() as around:
        etcd = around.enter_context(etcd_on(lab, "node4")) if ETCD in WAYS[way] else ""
        chosen = [word.format(etcd=etcd) for word in WAYS[way]]
        ranks = on_lab.rank_overrides(*words)
        running = on_lab.start("cluster=lab", "cluster.nproc_per_node=2", *chosen, *ranks)
        if code == 130:
            running.until(lambda: "every rank started" in running.err, "the ranks")
        if ending == "Ctrl-C":
            running.send()
        if ending == "stop from elsewhere":
            stopped = on_lab("stop", "--run", running.run_id, "--cluster", "lab")
            assert stopped.code == 0, stopped
        done = running.wait()
    assert done.code == code, done
    assert done.result["state"] == state, done
    assert expected_output in done.err, done
    assert done.result["unverified"] == []
    assert lab.wait_idle() == {}


def test_why_a_program_never_began_is_shown_where_torch_assigns_the_ranks(
    on_lab: Launcher,
) -> None:
    """Nobody knew the rank before, and it never started: its log is followed by its end."""
    words = ("cluster.only=[node1]", "task.nnodes=1", "rendezvous=c10d")
    done = on_lab("cluster=lab", *words, "task.command=[/no/such/program]")
    assert done.code == 1, done
    assert "/no/such/program: No such file or directory" in done.err, done
    assert "/no/such/program: No such file or directory" in done.log("node1", 0, "err")
    again = on_lab("logs", "--run", "latest")
    assert "/no/such/program: No such file or directory" in again.out + again.err, again
