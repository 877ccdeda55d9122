"""What a run says about itself: before it starts, when it is only tried, and at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from runner.core import shell
from runner.core.plan import NodePlan, Plan
from runner.core.verdict import Failure, NodeResult, Verdict, describe_exit

TAIL_LINES = 20


def opening(plan: Plan) -> str:
    """Return what runs where, in a few lines."""
    ranks = _count(plan.world_size, "rank")
    nodes = _count(len(plan.nodes), "node")
    lines = [
        f"run {plan.run_id}: {plan.task} on {plan.cluster}, {nodes}, {ranks}, {plan.backend}, "
        f"meeting at {plan.master_addr}:{plan.master_port}"
    ]
    width = max(len(share.node) for share in plan.nodes)
    lines += [f"  {share.node:{width}}  {_share(share)}" for share in plan.nodes]
    lines += [f"  note: {note}" for note in plan.notes]
    return "\n".join(lines)


def rehearsal(plan: Plan, assumed: Iterable[str] = ()) -> str:
    """Return, per node, the exact command, environment and folder, ready to paste."""
    blocks = [opening(plan)]
    blocks += [f"assumed, since no host was asked: {text}" for text in assumed]
    for share in plan.nodes:
        env = shell.assignments(share.env, references=plan.secrets)
        command = shell.line(share.command)
        blocks.append(f"# {share.node}\ncd {shell.path(share.cwd)} && \\\n{env} \\\n{command}")
    return "\n\n".join(blocks)


def ending(
    plan: Plan,
    verdict: Verdict,
    folder: Path,
    tail: Callable[[str, str, int], list[str]],
    *,
    disconnect_s: float,
) -> str:
    """Return the verdict: how it ended, first failure, each node, and where the logs are."""
    lines: list[str] = []
    failure = verdict.first_failure
    if failure:
        lines += _first_failure(verdict, failure, tail)
    if verdict.exit_code != 0 or len(plan.nodes) <= MANY:
        width = max(len(name) for name in verdict.nodes)
        lines += [
            f"  {name:{width}}  {_node(plan.of(name), verdict, result)}"
            for name, result in verdict.nodes.items()
        ]
    lines += [_unproven(name, disconnect_s) for name in verdict.unproven]
    lines += [
        f"  {name}: cannot be killed: process {', '.join(map(str, result.survivors))}"
        for name, result in verdict.nodes.items()
        if result.survivors
    ]
    lines.append(f"run {plan.run_id} {verdict.state} after {_duration(verdict.seconds)}")
    lines.append(f"  logs: {folder}/logs")
    return "\n".join(lines)


MANY = 8
"""Up to so many nodes are listed one by one when all went well."""


def _first_failure(
    verdict: Verdict, failure: Failure, tail: Callable[[str, str, int], list[str]]
) -> list[str]:
    who = failure.node if failure.rank is None else f"rank {failure.rank} on {failure.node}"
    lines = [
        f"first failure: {who} {failure.what}"
        if failure.rank is not None
        else f"first failure: {who}: {failure.what}"
    ]
    source = "program" if failure.rank is None else f"rank_{failure.rank}"
    last = tail(failure.node, f"{source}.err", TAIL_LINES)
    last = last or tail(failure.node, f"{source}.out", TAIL_LINES)
    lines += [f"  | {line}" for line in last]
    if verdict.consequences > 0:
        lines.append(f"  {_count(verdict.consequences, 'rank')} ended badly after it")
    return lines


def _node(share: NodePlan, verdict: Verdict, result: NodeResult) -> str:
    ends = [verdict.ranks[str(rank)] for rank in share.ranks]
    good = sum(1 for end in ends if end.code == 0)
    if good == len(ends):
        text = f"{_ranks(share)} succeeded"
    else:
        exits = sorted({describe_exit(e.code, e.signal) for e in ends if e.code != 0})
        text = f"{_ranks(share)}: {good} of {len(ends)} succeeded, the rest {', '.join(exits)}"
    if result.ended and not result.survivors:
        text += f"; 0 processes left{f', {result.killed} killed' if result.killed else ''}"
    return text


def _unproven(name: str, disconnect_s: float) -> str:
    return (
        f"  {name}: could not be asked whether anything is left; if it is up, its supervisor "
        f"stops the run within {disconnect_s:g} s of losing us"
    )


def _share(share: NodePlan) -> str:
    devices = f"GPU {', '.join(map(str, share.gpus))}" if share.gpus else "CPU"
    via = f", via {share.interface}" if share.interface else ""
    return f"{_ranks(share)} on {devices}{via}"


def _ranks(share: NodePlan) -> str:
    first, last = share.ranks[0], share.ranks[-1]
    return f"rank {first}" if first == last else f"ranks {first}-{last}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} m {rest:02} s" if hours else f"{minutes} m {rest:02} s"
