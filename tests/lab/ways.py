"""Rendezvous and endings under test: the cases of `test_rendezvous.py`.

`docs/rendezvous.md` has its table from this list: `pytest tests/golden/test_rendezvous_page.py
--update-golden`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.lab.launching import Controller, Launcher


@dataclass(frozen=True)
class RendezvousCase:
    """One way.

    Attributes:
        name: What the table calls it.
        overrides: What is typed; `{etcd}` is the endpoint of an etcd on node4.
        nodes: On which hosts.
    """

    name: str
    overrides: tuple[str, ...]
    nodes: tuple[str, ...] = ("node1", "node2")

    @property
    def needs_external_etcd(self) -> bool:
        """Whether somebody else's etcd has to be there."""
        return any("{etcd}" in word for word in self.overrides)


RENDEZVOUS_CASES = (
    RendezvousCase("static", ("rendezvous=static",)),
    RendezvousCase("standalone", ("rendezvous=standalone",), nodes=("node1",)),
    RendezvousCase("c10d", ("rendezvous=c10d",)),
    RendezvousCase("etcd", ("rendezvous=etcd", "rendezvous.endpoint={etcd}")),
    RendezvousCase("etcd-v2", ("rendezvous=etcd-v2", "rendezvous.endpoint={etcd}")),
    RendezvousCase("etcd, served", ("rendezvous=etcd", "rendezvous.serve=node2")),
    RendezvousCase("etcd-v2, served", ("rendezvous=etcd-v2", "rendezvous.serve=node1")),
)


@dataclass(frozen=True)
class EndingCase:
    """One way a run ends.

    Attributes:
        name: What the table calls it.
        code: The exit code.
        state: That of `result.json`.
        expected_output: What the verdict says of it.
        ranks: What each rank does.
        during: What befalls it once all ranks run.
    """

    name: str
    code: int
    state: str
    expected_output: str
    ranks: tuple[str, ...] = ("print=up", "sleep=600")
    during: Callable[[Launcher, Controller], None] | None = None


def _interrupt(_user: Launcher, running: Controller) -> None:
    running.send()


def _stop(user: Launcher, running: Controller) -> None:
    result = user("stop", "--run", running.run_id, "--cluster", "lab")
    assert result.code == 0, result


ENDINGS = (
    EndingCase("every rank succeeds", 0, "succeeded", "succeeded", ranks=("print=up", "sleep=1")),
    EndingCase(
        "one rank fails",
        *(1, "failed", "first failure: rank 1 on"),
        ranks=("print=up", "sleep=1", "fail=1:3", "sleep=600"),
    ),
    EndingCase("Ctrl-C", 130, "stopped", "s: interrupted by SIGINT of root@", during=_interrupt),
    EndingCase("`stop` from elsewhere", 130, "stopped", "s: stop requested by ", during=_stop),
)
