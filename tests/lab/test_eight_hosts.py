"""Eight hosts, one rank raises: its traceback comes first, and everything ends in seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.fault_forms import program_args
from tests.lab.lab import Lab, LabFactory
from tests.lab.launching import PLAIN_ENTRY, Launcher
from tests.lab.test_faults import last_lines

pytestmark = [pytest.mark.promise(4, 8)]

LATER_S = 8.0
"""From the failure to the last host's word that nothing is left, with a grace of one second."""


@pytest.fixture(scope="module")
def eight(lab_factory_for_session: LabFactory) -> Iterator[Lab]:
    """Eight plain hosts."""
    with lab_factory_for_session(n=8) as lab:
        yield lab


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(
            program_args("hanging.py", "raise", "5"),
            id="in a collective",
            marks=[pytest.mark.all],
        ),
        pytest.param(program_args("faulty.py", "5", "raise"), id="asleep, and would never notice"),
    ],
)
def test_one_rank_raises_while_the_others_wait(
    eight: Lab, launcher: Launcher, words: tuple[str, ...]
) -> None:
    """Whether they wait for it or not."""
    eight.write_cluster(launcher.conf)
    done = launcher(*words, PLAIN_ENTRY, seconds=120)
    assert done.code == 1, done
    said = last_lines(done.err)
    assert "first failure: rank 5 on node6 " in said, done  # torch may abort after its exception
    verdict = said[said.index("first failure") :]
    assert verdict.index("ValueError: lr must be positive") < verdict.index("processes left")
    assert "why: another rank left" not in verdict, "no consequence is taken for the cause"
    (raised,) = (e for e in done.events if e["kind"] == "rank_exited" and e["rank"] == 5)
    ended = [e["wall"] for e in done.events if e["kind"] == "ended"]
    assert len(ended) == 8
    assert max(ended) - raised["wall"] < LATER_S
    assert eight.wait_idle() == {}
