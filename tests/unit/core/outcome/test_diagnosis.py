"""Diagnosis: the last output of the first failed rank, and known causes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.outcome.attempt_events import RankResult
from runner.core.outcome.diagnosis import CONTEXT_LINES, Tail, diagnose
from runner.core.outcome.verdict import Verdict
from runner.core.wire.plan import Plan
from runner.core.wire.states import Reason, ReasonKind
from runner.core.wire.tracebacks import EXCERPT_LINES, TRACEBACK, last_traceback
from tests.golden.builders import failed, plan

WROTE = Path(__file__).parents[3] / "fixtures" / "failures"


def verdict_of(rank: int | None = 2, state: str = "failed", signum: int | None = None) -> Verdict:
    ranks = {
        str(each): RankResult("ab"[each // 2], None if each == rank and signum else 1, signum)
        for each in range(4)
    }
    failure = Reason(ReasonKind.PROGRAM, "b", code=1, detail="exited with 1")
    if rank is not None:
        failure = failed("b", rank, -signum if signum else 1)
    return Verdict(state, 1, 3.0, first_failure=failure, ranks=ranks)


def logs(**texts: str) -> Tail:
    """Logs by node, rank and stream: `b_2_err`; `b_err` is torchrun's."""

    def tail(node: str, name: str, lines: int) -> list[str]:
        source, _, stream = name.partition(".")
        who = source.removeprefix("rank_") if source.startswith("rank") else ""
        key = "_".join(filter(None, (node, who, stream)))
        return texts.get(key, "").splitlines()[-lines:]

    return tail


MADE: Plan = plan(2, 2)
CHAIN = f"""\
loading data
epoch 1
{TRACEBACK}
  File "train.py", line 3, in <module>
KeyError: 'lr'

The above exception was the direct cause of the following exception:

{TRACEBACK}
  File "train.py", line 5, in <module>
    raise RuntimeError("no lr") from error
RuntimeError: no lr
see the handbook

shutting down
"""


def test_the_last_traceback_is_told_and_what_stood_before_it() -> None:
    """Of several, the one that ended the rank, with all lines of its message; nothing after it."""
    before, said = last_traceback(CHAIN.splitlines())
    assert said[0] == TRACEBACK
    assert said[-2:] == ["RuntimeError: no lr", "see the handbook"]
    told = diagnose(MADE, verdict_of(), logs(b_2_err=CHAIN))
    assert told is not None
    assert told.excerpt == tuple(said)
    assert told.context == tuple(before[-CONTEXT_LINES:])
    assert "direct cause" in told.context[-1]


def test_without_a_traceback_the_last_lines_are_told() -> None:
    """Of the errors, or else of the output."""
    text = "".join(f"line {number}\n" for number in range(50))
    told = diagnose(MADE, verdict_of(), logs(b_2_out=text))
    assert told is not None
    assert told.excerpt == tuple(f"line {number}" for number in range(50 - EXCERPT_LINES, 50))
    assert told.cause == ""


def test_torchruns_own_failure_is_read_in_its_own_words() -> None:
    """Where no rank failed."""
    text = (WROTE / "master_refused.txt").read_text()
    told = diagnose(MADE, verdict_of(rank=None), logs(b_err=text))
    assert told is not None
    assert told.cause == "master_refused"


SOUGHT = "torch.distributed.DistNetworkError: The client socket has "
WAITED = (
    "torch.distributed.DistStoreError: Timed out after 7 seconds waiting for clients. "
    "1/2 clients joined."
)


@pytest.mark.parametrize(
    ("texts", "is_own"),
    [
        ({"b_2_err": f"{SOUGHT}timed out after 6 while trying to connect to (localhost, 5)."}, 1),
        ({"b_2_err": f"{SOUGHT}failed to connect to [::ffff:127.0.0.1]:5 (errno: 111)."}, 1),
        ({"b_2_err": f"{SOUGHT}failed to connect to any network address of (127.0.0.1, 5)."}, 1),
        ({"b_2_err": WAITED, "a_1_err": f"{SOUGHT}failed to connect to [::1]:5"}, 1),
        ({"b_2_err": WAITED, "a_1_err": "ready"}, 0),
        ({"b_2_err": f"{SOUGHT}failed to connect to [10.0.0.1]:29500 (errno: 111)."}, 0),
    ],
)
def test_a_program_that_looks_for_the_master_on_its_own_node(
    texts: dict[str, str], is_own: int
) -> None:
    """No firewall is in the way: it has set MASTER_ADDR itself. Another rank's log may tell."""
    told = diagnose(MADE, verdict_of(), logs(**texts))
    assert told is not None
    assert (told.cause == "master_elsewhere") is bool(is_own)
    assert ("(plan: 10.0.0.1:29512)" in told.meaning) is bool(is_own)


def test_on_one_node_localhost_is_the_master() -> None:
    """There the plan says so, too."""
    text = f"{SOUGHT}timed out after 6 while trying to connect to (localhost, 5)."
    verdict = replace(verdict_of(1), first_failure=failed("a", 1, 1))
    told = diagnose(plan(4), verdict, logs(a_1_err=text))
    assert told is not None
    assert told.cause == "master_refused"


def test_a_stop_for_want_of_a_controller_quotes_no_log() -> None:
    """What torchrun wrote of our TERM is no reason."""
    failure = Reason(ReasonKind.UNATTENDED, "b", detail="25 s")
    told = diagnose(MADE, replace(verdict_of(), first_failure=failure), logs(b_err=CHAIN))
    assert told is not None
    assert (told.excerpt, told.cause) == ((), "unattended")
    assert "disconnect_s=never" in told.remedy


@pytest.mark.parametrize("verdict", [verdict_of(state="lost"), Verdict("succeeded", 0, 1.0)])
def test_where_no_rank_is_to_blame_nothing_is_told(verdict: Verdict) -> None:
    """What ranks say when their host's loss ends them, is no reason."""
    assert diagnose(MADE, verdict, logs(b_2_err=CHAIN)) is None


FULL_SHM = "RuntimeError: unable to write to file </torch_1_2_0>: No space left on device (28)"
NO_SPACE = "OSError: [Errno 28] No space left on device"
FACTS = {"path": "/bin", "uid": "7", "nofile": "1024", "shm": "64 MiB", "left": "/ 5 of 9 MiB"}


@pytest.mark.parametrize(
    ("text", "facts", "image", "meaning", "remedy"),
    [
        (FULL_SHM, FACTS, "", "(/dev/shm: 64 MiB)", "mount -o remount"),
        (FULL_SHM, FACTS, "train:1", "(/dev/shm: 64 MiB)", "set container.shm_size=16g"),
        (NO_SPACE, {**FACTS, "full": "/data"}, "", "/data is full there", "free some space"),
        (f"{NO_SPACE}: '/data/x'", FACTS, "", "system is full there: no space for", "/ 5 of"),
        ("OSError: [Errno 24] Too many open files", FACTS, "", "than it may (1024)", "limits.conf"),
        ("sh: 1: ffmpeg: not found", FACTS, "", "ffmpeg on the PATH of the rank (/bin)", ""),
        ("PermissionError: [Errno 13] Permission denied: '/x'", FACTS, "", "uid 7, may", "/x"),
        (NO_SPACE, {}, "", "a file system is full there", "free some space there: "),
    ],
)
def test_a_known_failure_names_the_facts_of_its_rank(
    text: str, facts: dict[str, str], image: str, meaning: str, remedy: str
) -> None:
    """Its limits, its PATH, the file system that is full; and the cure is that of its place."""
    verdict = verdict_of()
    ranks = {**verdict.ranks, "2": replace(verdict.ranks["2"], facts=facts)}
    made = replace(MADE, image=image)
    told = diagnose(made, replace(verdict, ranks=ranks), logs(b_2_err=text))
    assert told is not None
    assert meaning in told.meaning
    assert remedy in told.remedy
    assert ("mount -o" in told.remedy) <= (not image)
    assert ("container." in told.remedy) <= bool(image)
