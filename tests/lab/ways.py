"""The ways nodes meet, and how a run ends on each: what is tried, and what comes of it.

`docs/rendezvous.md` has its table from this list: `pytest tests/golden/test_rendezvous_page.py
--update-golden`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.lab.launching import Controller, Launcher


@dataclass(frozen=True)
class Way:
    """One way.

    Attributes:
        name: What the table calls it.
        words: What is typed; `{etcd}` is the endpoint of an etcd on node4.
        nodes: On which hosts.
    """

    name: str
    words: tuple[str, ...]
    nodes: tuple[str, ...] = ("node1", "node2")

    @property
    def own_etcd(self) -> bool:
        """Whether somebody else's etcd has to be there."""
        return any("{etcd}" in word for word in self.words)


WAYS = (
    Way("static", ("rendezvous=static",)),
    Way("standalone", ("rendezvous=standalone",), nodes=("node1",)),
    Way("c10d", ("rendezvous=c10d",)),
    Way("etcd", ("rendezvous=etcd", "rendezvous.endpoint={etcd}")),
    Way("etcd-v2", ("rendezvous=etcd-v2", "rendezvous.endpoint={etcd}")),
    Way("etcd, served", ("rendezvous=etcd", "rendezvous.serve=node2")),
    Way("etcd-v2, served", ("rendezvous=etcd-v2", "rendezvous.serve=node1")),
)


@dataclass(frozen=True)
class Ending:
    """One way a run ends.

    Attributes:
        name: What the table calls it.
        code: The exit code.
        state: That of `result.json`.
        says: What the verdict says of it.
        ranks: What each rank does.
        during: What befalls it once all ranks run.
    """

    name: str
    code: int
    state: str
    says: str
    ranks: tuple[str, ...] = ("print=up", "sleep=600")
    during: Callable[[Launcher, Controller], None] | None = None


def _interrupt(_user: Launcher, running: Controller) -> None:
    running.send()


def _stop(user: Launcher, running: Controller) -> None:
    done = user("stop", "--run", running.run_id, "--cluster", "lab")
    assert done.code == 0, done


ENDINGS = (
    Ending("every rank succeeds", 0, "succeeded", "succeeded", ranks=("print=up", "sleep=1")),
    Ending(
        "one rank fails",
        *(1, "failed", "first failure: rank 1 on"),
        ranks=("print=up", "sleep=1", "fail=1:3", "sleep=600"),
    ),
    Ending("Ctrl-C", 130, "stopped", "0 processes left", during=_interrupt),
    Ending("`stop` from elsewhere", 130, "stopped", "0 processes left", during=_stop),
)
