"""Why a run failed: what the rank that failed first said last, and what is known of that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, List, Mapping, Optional, Sequence, Tuple

from runner.core.outcome.known_failures import explain
from runner.core.outcome.stacks import STALLED, Picture, Stack, on, parse, picture, sentence
from runner.core.outcome.tracebacks import SHOWN, TRACEBACK, split, tracebacks, unmarked
from runner.core.outcome.verdict import LOST, Failure, Verdict
from runner.core.planning.build_plan import Plan
from runner.core.protocol.paths import PROGRAM, STACKS, log_name, rank_source
from runner.core.text import spans

Tail = Callable[[str, str, int], List[str]]
"""Takes (node, log, how many) and returns the last lines of a log."""

LINES = 400
"""Of a log are looked at."""

DUMP_LINES = 20_000
"""Of the stacks of a node: every thread of every rank."""

BEFORE = 2
"""Lines of what was said before a traceback that a report shows."""


@dataclass(frozen=True)
class Diagnosis:
    """What is known of the first failure.

    Attributes:
        said: Its last traceback, or its last lines where it has none.
        before: What stood before that.
        cause: The name of a known cause, "" for one that is not known.
        means: What happened, in words; "" likewise.
        cure: What to do about it; "" likewise.
    """

    said: Tuple[str, ...] = ()
    before: Tuple[str, ...] = ()
    cause: str = ""
    means: str = ""
    cure: str = ""


def diagnose(plan: Plan, verdict: Verdict, tail: Tail) -> Optional[Diagnosis]:
    """Return what is known of the first failure; None where nothing failed.

    Of a host that was lost, nothing that its ranks said when they were told to end is a reason.
    """
    failure = verdict.first_failure
    if failure is None or verdict.state == LOST:
        return None
    if failure.what.startswith(STALLED):
        return _standstill(plan, tail)
    lines = _last_words(plan, failure, tail)
    result = verdict.ranks[str(failure.rank)] if failure.rank is not None else None
    if result and result.traceback and not tracebacks(lines):
        lines += result.traceback.splitlines()
    before, said = split(lines)
    signum = result.signal if result and not result.raised else None  # else it was ours
    known = explain((failure.what, *before[-BEFORE:], *said), signum)
    means, cure = (known.means, known.cure) if known else ("", "")
    if known and failure.rank is not None:
        means += _also(plan, verdict, failure, said, tail)
        left = [int(rank) for rank, end in verdict.ranks.items() if end.code == 0]
        if known.name in LEFT and left:
            means, cure = _left_early(verdict, left)
    return Diagnosis(
        said=shortened(said),
        before=tuple(before[-BEFORE:]),
        cause=known.name if known else "",
        means=means,
        cure=cure,
    )


LEFT = ("peer_left", "nccl_watchdog")
"""What becomes of ranks that wait for one that is gone."""


def _left_early(verdict: Verdict, ranks: List[int]) -> Tuple[str, str]:
    """Return what it means, and the cure, that some ranks were done while others went on."""
    where = on(sorted(ranks), {rank: verdict.ranks[str(rank)].node for rank in ranks})
    verb = "had ended with 0 before" if len(ranks) == 1 else "had all ended with 0 before"
    whom = "it" if len(ranks) == 1 else "them"
    cure = (
        "every rank has to take part in every collective: as many batches for each, or "
        "torch.distributed.algorithms.join for what is uneven"
    )
    return f"{where} {verb}, and the others still waited for {whom}", cure


def _standstill(plan: Plan, tail: Tail) -> Diagnosis:
    """Return who waited for whom when nothing moved, by the last stacks of every node."""
    name = log_name(plan.attempt, STACKS, "out")
    dumps = {
        share.node: parse("\n".join(tail(share.node, name, DUMP_LINES)) + "\n")
        for share in plan.nodes
    }
    told = {node: found[-1].stacks for node, found in dumps.items() if found and found[-1].whole}
    shown = pictured(plan, told)
    odd = shown.groups[:1]
    head = [f"{spans(group.ranks)}, innermost call first:" for group in odd]
    calls = [f"  {frame}" for group in odd for frame in group.stack.frames[:SHOWN]]
    return Diagnosis(
        said=(*head, *calls),
        cause="standstill",
        means=sentence(shown),
        cure="the stacks of all ranks are in logs/NODE/stacks.out; if they only needed longer, "
        "watch.stall_s gives them more time",
    )


def pictured(plan: Plan, told: Mapping[str, Sequence[Stack]]) -> Picture:
    """Put together the stacks that the hosts of a run told."""
    nodes = plan.node_of_rank or {s.rank: name for name, found in told.items() for s in found}
    return picture(told, nodes, [share.cwd for share in plan.nodes])


def _last_words(plan: Plan, failure: Failure, tail: Tail) -> List[str]:
    source = PROGRAM if failure.rank is None else rank_source(failure.rank)
    for stream in ("err", "out"):
        lines = tail(failure.node, log_name(plan.attempt, source, stream), LINES)
        if lines:
            return unmarked(lines)
    return []


def shortened(lines: Sequence[str]) -> Tuple[str, ...]:
    """Return the first and the last lines: the frames between are torch's mostly."""
    if len(lines) <= SHOWN:
        return tuple(lines)
    head = 3 if lines[0].strip() == TRACEBACK else 0
    left_out = len(lines) - SHOWN + 1
    return (*lines[:head], f"  … {left_out} lines …", *lines[-(SHOWN - head - 1) :])


def _also(plan: Plan, verdict: Verdict, failure: Failure, said: Sequence[str], tail: Tail) -> str:
    """Say on how many other nodes a rank ended with the same words, if any came so far."""
    others = [share for share in plan.nodes if share.node != failure.node]
    same = [
        share
        for share in others
        if said
        and any(
            said[-1] in _last_words(plan, Failure(share.node, rank, ""), tail)
            for rank in verdict.ranks_on(share.node)
        )
    ]
    if not same:
        return ""
    if len(same) == len(others):
        return ", on every node"
    return f", also on {same[0].node}" if len(same) == 1 else f", also on {len(same)} other nodes"
