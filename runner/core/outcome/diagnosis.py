"""Diagnosis of a failed run: the last words of the rank that failed first, and what they mean."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from runner.core.outcome import stacks
from runner.core.outcome.known_failures import ProjectFiles, explain, explain_import
from runner.core.outcome.verdict import OWN_MASTER, Verdict
from runner.core.shell import cluster_flag
from runner.core.wire import tracebacks
from runner.core.wire.paths import PROGRAM_LOG, STACKS_LOG, local_log_name, rank_source
from runner.core.wire.plan import Plan
from runner.core.wire.states import LOST, Reason, ReasonKind
from runner.core.wire.text import format_ranges, signal_name

Tail = Callable[[str, str, int], list[str]]
"""Takes (node, log, number) and returns the last lines of a log."""

LOG_LINES = 400
"""The number of last lines of a log that are read."""

DUMP_LINES = 20_000
"""The number of last lines of a node's stacks that are read: every thread of every rank."""

CONTEXT_LINES = 2
"""The number of lines before a traceback that a report shows."""

OF_NO_RANK = (ReasonKind.UNATTENDED, ReasonKind.SCHEDULER, ReasonKind.TIME_LIMIT)
"""Reasons for which no rank failed by itself."""


@dataclass(frozen=True)
class Diagnosis:
    excerpt: tuple[str, ...] = ()  # the last traceback of its log, or the last lines
    context: tuple[str, ...] = ()  # the lines before that
    cause: str = ""  # the name of a known failure, "" for any other
    meaning: str = ""  # what happened, "" if unknown
    remedy: str = ""  # what to do about it, "" if unknown


@dataclass(frozen=True)
class RunResult(Verdict):
    """How a run ended, as `result.json` has it."""

    run_id: str = ""
    attempt: int = 0  # the last one
    began: float = 0.0  # in seconds since 1970
    ended: float = 0.0
    diagnosis: Diagnosis | None = None


def diagnose(
    plan: Plan,
    verdict: Verdict,
    tail: Tail,
    find_files: Callable[[], ProjectFiles | None] = lambda: None,
) -> Diagnosis | None:
    """Return the diagnosis of the first failure; None if nothing failed, or a host was lost."""
    failure = verdict.first_failure
    if failure is None or verdict.state == LOST:
        return None
    if failure.kind is ReasonKind.STALL:
        return diagnose_stall(plan, tail)
    if failure.kind in OF_NO_RANK:
        return Diagnosis((), (), *(explain((), exit_facts(failure)) or ()))
    lines = _last_log_lines(plan, failure, tail)
    result = verdict.ranks[str(failure.rank)] if failure.rank is not None else None
    if result and result.traceback and not tracebacks.traceback_starts(lines):
        lines += result.traceback.splitlines()
    context, excerpt = tracebacks.last_traceback(lines)
    texts = [*context[-CONTEXT_LINES:], *excerpt]
    is_ours = result and result.signal and result.exception  # the signal
    if not is_ours:
        texts.insert(0, failure.detail)
    facts = {
        **(result.facts if result else {}),
        **({} if is_ours else exit_facts(failure)),
        "cluster": cluster_flag(plan.cluster),
        "image" if plan.image else "bare": "",
    }
    cause, meaning, remedy = explain(texts, facts) or ("", "", "")
    if cause == "module_missing" and (files := find_files()):
        meaning, remedy = explain_import("\n".join(texts), plan, files) or (meaning, remedy)
    sought = cause in ("master_refused", "ranks_missing") and _own_master(plan, verdict, tail)
    if sought:
        cause = "master_elsewhere"
        remedy = OWN_MASTER
        planned = f"plan: {plan.master_addr}:{plan.master_port}"
        meaning = f"the program itself looks for the master at {sought} on each node ({planned})"
    finished_ranks = [int(rank) for rank, end in verdict.ranks.items() if end.code == 0]
    if cause in PEER_GONE_CAUSES and failure.rank is not None and finished_ranks:
        meaning, remedy = _explain_early_exit(verdict, finished_ranks)
    return Diagnosis(
        excerpt=tuple(excerpt),
        context=tuple(context[-CONTEXT_LINES:]),
        cause=cause,
        meaning=meaning,
        remedy=remedy,
    )


def exit_facts(reason: Reason) -> dict[str, str]:
    """Return what is known of an end besides what was written."""
    facts = {"kind": reason.kind.value}
    if reason.code is not None:
        facts["exit"] = str(reason.code) if reason.code >= 0 else signal_name(-reason.code)
    return facts


_SOUGHT_HERE = re.compile(
    r"client socket has [^()\[\]]*[(\[](?:::ffff:)?(localhost|127\.[\d.]+|::1)\W+(\d+)"
)


def _own_master(plan: Plan, verdict: Verdict, tail: Tail) -> str:
    """Return where a rank looked for the master on its own node, by its log; "" for none."""
    if len(plan.nodes) == 1 or plan.master_addr.startswith("127."):
        return ""
    ends = (Reason(ReasonKind.RANK, end.node, int(rank)) for rank, end in verdict.ranks.items())
    texts = ("\n".join(_last_log_lines(plan, end, tail)) for end in ends)
    sought = next(filter(None, map(_SOUGHT_HERE.search, texts)), None)
    return ":".join(sought.groups()) if sought else ""


PEER_GONE_CAUSES = ("peer_left", "nccl_watchdog")
"""Failures of ranks that waited for another one that was gone."""


def _explain_early_exit(verdict: Verdict, ranks: list[int]) -> tuple[str, str]:
    """Return the meaning and remedy if some ranks had succeeded while others went on."""
    who = stacks.with_nodes(sorted(ranks), {rank: verdict.ranks[str(rank)].node for rank in ranks})
    verb, whom = ("had", "it") if len(ranks) == 1 else ("had all", "them")
    remedy = (
        "every rank has to take part in every collective: give each the same number of batches, or "
        "use torch.distributed.algorithms.join for uneven inputs"
    )
    return f"{who} {verb} exited with 0 before, and the others still waited for {whom}", remedy


def diagnose_stall(plan: Plan, tail: Tail) -> Diagnosis:
    name = local_log_name(plan.attempt, STACKS_LOG, "out")
    stacks_by_node = {}
    for node in (node_plan.node for node_plan in plan.nodes):
        dumps = stacks.parse_dumps("\n".join(tail(node, name, DUMP_LINES)) + "\n")
        if dumps:
            stacks_by_node[node] = dumps[-1].stacks
    report = stacks.group_stacks(plan, stacks_by_node)
    excerpt = []
    for group in report.groups[:1]:  # the rarest
        frames = group.stack.frames[: tracebacks.EXCERPT_LINES]
        excerpt = [f"{format_ranges(group.ranks)}, innermost call first:"]
        excerpt += [f"  {frame}" for frame in frames]
    return Diagnosis(
        excerpt=tuple(excerpt),
        cause="standstill",
        meaning=stacks.summary(report),
        remedy="the stacks of all ranks are in logs/NODE/stacks.out; if they only needed more "
        "time, increase watch.stall_s",
    )


def _last_log_lines(plan: Plan, failure: Reason, tail: Tail) -> list[str]:
    source = PROGRAM_LOG if failure.rank is None else rank_source(failure.rank)
    for stream in ("err", "out"):
        lines = tail(failure.node, local_log_name(plan.attempt, source, stream), LOG_LINES)
        if lines:
            return tracebacks.strip_rank_prefix(lines)
    return []
