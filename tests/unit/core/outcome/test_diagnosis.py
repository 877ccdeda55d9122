"""Diagnosis: the last output of the first failed rank, and known causes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.model.plan import Plan
from runner.core.model.results import Failure, RankResult
from runner.core.outcome.diagnosis import CONTEXT_LINES, Tail, diagnose
from runner.core.outcome.tracebacks import EXCERPT_LINES, TRACEBACK, last_traceback
from runner.core.outcome.verdict import Verdict
from runner.core.protocol.events import DiskSpace, RankFacts, unattended_reason
from tests.golden.builders import plan

WROTE = Path(__file__).parents[3] / "fixtures" / "failures"


def failed(rank: int | None = 2, state: str = "failed", signum: int | None = None) -> Verdict:
    ranks = {
        str(each): RankResult("ab"[each // 2], None if each == rank and signum else 1, signum)
        for each in range(4)
    }
    failure = Failure("b", rank, "exited with 1")
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
    told = diagnose(MADE, failed(), logs(b_2_err=CHAIN))
    assert told is not None
    assert told.excerpt == tuple(said)
    assert told.context == tuple(before[-CONTEXT_LINES:])
    assert "direct cause" in told.context[-1]


def test_without_a_traceback_the_last_lines_are_told() -> None:
    """Of the errors, or else of the output."""
    text = "".join(f"line {number}\n" for number in range(50))
    told = diagnose(MADE, failed(), logs(b_2_out=text))
    assert told is not None
    assert told.excerpt == tuple(f"line {number}" for number in range(50 - EXCERPT_LINES, 50))
    assert told.cause == ""


def test_torchruns_own_failure_is_read_in_its_own_words() -> None:
    """Where no rank failed."""
    text = (WROTE / "master_refused.txt").read_text()
    told = diagnose(MADE, failed(rank=None), logs(b_err=text))
    assert told is not None
    assert told.cause == "master_refused"


def test_a_stop_for_want_of_a_controller_quotes_no_log() -> None:
    """What torchrun wrote of our TERM is no reason."""
    failure = Failure("b", None, unattended_reason(25.0))
    told = diagnose(MADE, replace(failed(), first_failure=failure), logs(b_err=CHAIN))
    assert told is not None
    assert (told.excerpt, told.cause) == ((), "unattended")
    assert "disconnect_s=never" in told.remedy


@pytest.mark.parametrize("verdict", [failed(state="lost"), Verdict("succeeded", 0, 1.0)])
def test_where_no_rank_is_to_blame_nothing_is_told(verdict: Verdict) -> None:
    """What ranks say when their host's loss ends them, is no reason."""
    assert diagnose(MADE, verdict, logs(b_2_err=CHAIN)) is None


FULL_SHM = "RuntimeError: unable to write to file </torch_1_2_0>: No space left on device (28)"
DISKS = {"/dev/shm": DiskSpace(64 << 20, 1 << 20), "/data": DiskSpace(1 << 40, 1 << 30)}
NO_DISK = "'/data/x'"


@pytest.mark.parametrize(
    ("text", "disks", "image", "meaning", "remedy"),
    [
        (FULL_SHM, DISKS, "", "(/dev/shm: 67.1 MB)", "mount -o remount"),
        (FULL_SHM, DISKS, "train:1", "(/dev/shm: 67.1 MB)", "set container.shm_size=16g"),
        ("OSError: [Errno 28] No space", DISKS, "", "/dev/shm is full there", "free some space"),
        (
            f"OSError: [Errno 28] No space left on device: {NO_DISK}",
            {"/data": DiskSpace(1 << 40, 1 << 30, no_inodes=True)},
            "",
            "/data is full there: no space for /data/x",
            "free some space there: ",
        ),
        (
            "OSError: [Errno 28] No space left on device",
            {"/data": DISKS["/data"], "/home": DISKS["/data"]},
            "",
            "a file system is full there",
            "(left: /data 1.1 GB of 1099.5 GB)",
        ),
        ("OSError: [Errno 24] Too many open files", {}, "", "than it may (1024)", "limits.conf"),
        (
            "sh: 1: ffmpeg: not found",
            {},
            "",
            "no program ffmpeg on the PATH of the rank (/bin)",
            "",
        ),
        ("PermissionError: [Errno 13] Permission denied: '/x'", {}, "", "with uid 0, may", "/x"),
    ],
)
def test_a_known_failure_names_the_facts_of_its_rank(
    text: str, disks: dict[str, DiskSpace], image: str, meaning: str, remedy: str
) -> None:
    """Its limits, its PATH, the file system that is full; and the cure is that of its place."""
    verdict = failed()
    facts = RankFacts("/bin", 0, {"nofile": 1024}, disks)
    ranks = {**verdict.ranks, "2": replace(verdict.ranks["2"], facts=facts)}
    made = replace(MADE, image=image)
    told = diagnose(made, replace(verdict, ranks=ranks), logs(b_2_err=text))
    assert told is not None
    assert meaning in told.meaning
    assert remedy in told.remedy
    assert ("mount -o" in told.remedy) <= (not image)
    assert ("container." in told.remedy) <= bool(image)
