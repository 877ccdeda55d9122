"""A slice of `make chaos`: one event of every family, on two runs at once, in any order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.chaos import judge
from tests.lab.chaos.kinds import KINDS
from tests.lab.chaos.runs import LINE_PADDING, USER
from tests.lab.chaos.session import Session
from tests.lab.lab import FreezableDisk, Lab, LabFactory
from tests.lab.launching import Launcher
from tests.lab.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.promise(2, 6)]

SMOKE = (
    "agent killed",
    "supervisor and guardian killed",
    "cable out for a moment",
    "disk full",
)
"""What `make test` tries; the other tests have the same events on runs of their own."""

SLICE = (
    "controller and guardian and supervisor killed, stop",
    "disk stalls",
    "controller killed, attach",
    "controller killed, rank killed",
    "controller cut off for long",
    "Ctrl-C twice",
    "supervisor killed",
    "guardian killed",
    "torchrun stopped, Ctrl-C",
    "grandchild killed or stopped",
    "the end, agent killed",
    "power cut",
)


@pytest.fixture(scope="module")
def session(lab_factory: LabFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A victim, a bystander, three hosts; what is on at the end has to end in order."""
    folder = tmp_path_factory.mktemp("chaos")
    (folder / "project").mkdir()
    launcher = Launcher(folder / "project")
    with lab_factory(n=3, disk=FreezableDisk) as lab:
        lab.write_cluster(launcher.conf, ssh={"user": USER})
        session = Session(lab, launcher, seed=4, evidence=folder)
        yield session
        last = session.close()
        launcher.close()
    assert last is None, "\n".join(last.problems)


@pytest.mark.parametrize(
    "name", [*(pytest.param(name, marks=pytest.mark.smoke) for name in SMOKE), *SLICE]
)
def test_nothing_is_left_and_nothing_is_lost(session: Session, name: str) -> None:
    """After each event: no orphan, every byte, every record, and the other run unharmed."""
    (kind,) = (each for each in KINDS if each.name == name)
    outcome = session.event((*SMOKE, *SLICE).index(name), kind)
    assert not outcome.problems, "\n".join([outcome.line(), *outcome.problems])
    assert outcome.orphans == 0


def test_the_judge_sees_an_orphan(lab: Lab) -> None:
    """Whatever it is called, and whatever its environment."""
    stray = lab["node2"].popen(["env", "-i", "sleep", "77"])
    try:
        wait_until(lab["node2"].leftovers, "the stray")
        (orphan,) = judge.await_clean(lab, [], seconds=0.5)
    finally:
        stray.kill()
        stray.wait()
    assert "sleep 77" in orphan


@pytest.mark.parametrize(
    ("numbers", "end", "wrong"),
    [
        ([0, 1, 2], "one 0 3 xx", 0),
        ([0, 1, 1], "", 1),
        ([0, 2], "", 1),
        ([0], "x", 1),
    ],
)
def test_the_judge_sees_lost_and_doubled_lines(numbers: list[int], end: str, wrong: int) -> None:
    """Only the last line may be torn."""
    text = "".join(f"one 0 {number} {LINE_PADDING}\n" for number in numbers) + end
    assert len(list(judge.check_numbering(text.encode(), "one", 0))) == wrong
