"""Reports of a run: its header, its notices, and its end."""

from __future__ import annotations

import itertools
import re
import signal
from collections.abc import Collection, Sequence
from operator import attrgetter
from pathlib import Path

from runner.core.launch_request import LaunchRequest
from runner.core.model.plan import NodePlan, Plan
from runner.core.model.results import Failure, NodeResult
from runner.core.outcome.diagnosis import Diagnosis
from runner.core.outcome.first_failure import failure_text
from runner.core.outcome.verdict import OWN_MASTER, STUCK, SUCCEEDED, Verdict
from runner.core.protocol.events import is_unattended
from runner.core.protocol.paths import RunPaths
from runner.core.shell import this_program
from runner.core.spec import Node, Spec
from runner.core.text import (
    counted,
    describe_exit,
    format_duration,
    format_ranges,
    join_some,
    printable,
)
from runner.ui.layout import aligned, fold_names

CARET_LINE = re.compile(r" *[~^]+")  # of a traceback; it only marks a part of the line above


def run_header(plan: Plan) -> str:
    """Return what runs where, and which code: two lines, and more where nodes differ."""
    shape, *rows = _shape(plan)
    attempt = f", attempt {plan.attempt + 1}" if plan.attempt else ""
    code = [f"code: {code_name(plan.release, plan.commit)}"] if plan.release else []
    code += [f"image: {plan.image}"] if plan.image else []
    lines = [f"run {plan.run_id}: {plan.task} on {shape}{attempt}"]
    lines += [f"  {', '.join(code)}"] if code else []
    return "\n".join([*lines, *rows])


def attempt_header(plan: Plan) -> str:
    """Return the parts of the header that may differ in a later attempt."""
    return f"attempt {plan.attempt + 1}: " + "\n".join(_shape(plan))


def _shape(plan: Plan) -> list[str]:
    """Return nodes, ranks and backend in a line; if nodes differ, those of each kind in others."""
    names = fold_names(each.node for each in plan.nodes)
    where = names if plan.cluster == names else f"{names} ({plan.cluster})"
    is_uniform = len({(each.nproc, each.gpus) for each in plan.nodes}) == 1
    if is_uniform and not plan.torch_assigns_ranks:
        return [f"{where}, {_node_text(plan.nodes)}, {plan.backend}"]
    return [f"{where}, {_size_text(plan)}, {plan.backend}", *_node_lines(plan)]


def absent_ranks(plan: Plan, shown: Collection[int] | None) -> str:
    """Return a line about the ranks to show that the run does not have, "" if it has them all."""
    absent = sorted(rank for rank in shown or () if rank >= plan.world_size)
    if not absent or plan.torch_assigns_ranks:
        return ""
    return f"\n  note: console_ranks: the run has no {format_ranges(absent)}"


def outliving_line(plan: Plan, run_flags: str) -> str:
    """Return how to end the run, and how to find it when its terminal is gone."""
    limit_s = plan.nodes[0].order.disconnect_s
    limit = f"does after {format_duration(limit_s)}" if limit_s else "does not"
    command = f"{this_program()} attach {run_flags.removeprefix('--run ')}"
    return f"  Ctrl-C stops it, closing the terminal {limit}: {command}"


def _node_lines(plan: Plan) -> list[str]:
    alike = itertools.groupby(plan.nodes, attrgetter("nproc", "gpus"))  # neighbours
    groups = [list(group) for _, group in alike]
    return aligned((fold_names(each.node for each in group), _node_text(group)) for group in groups)


def relaunch_notice(
    number: int, max_attempts: int, reason: str, before: Spec, after: Spec, pause_s: float
) -> str:
    """Return which attempt follows, why, and on which nodes."""
    removed, added = (
        [node.name for node in spec.nodes if node not in other.nodes]
        for spec, other in ((before, after), (after, before))
    )
    nodes_text = "on the same nodes"
    if added:
        verb = "takes" if len(added) == 1 else "take"
        nodes_text = f"{fold_names(added)} {verb} the place of {fold_names(removed)}"
    elif removed:
        nodes_text = f"without {fold_names(removed)}"
    return f"attempt {number} of {max_attempts}: {reason}; {nodes_text}; starting in {pause_s:g} s"


def too_few_nodes(available: Sequence[str], needed: int) -> str:
    """Return that no attempt follows because nodes are missing."""
    names = f" ({fold_names(available)})" if available else ""
    return f"not relaunching: {counted(needed, 'node')} needed, {len(available)} available{names}"


def _size_text(plan: Plan) -> str:
    ranks, nodes = counted(plan.world_size, "rank"), counted(len(plan.nodes), "node")
    if not plan.torch_assigns_ranks:
        return f"{nodes}, {ranks}"
    limits = f" ({plan.min_nodes} to {plan.max_nodes} may take part)"
    limits = limits if plan.min_nodes < plan.max_nodes else ""
    return f"{ranks} on {nodes}{limits}, numbered by torch"


def code_name(release: str, commit: str) -> str:
    """Return the name of the code: its release, and its commit if there is one."""
    if not commit:
        return f"release {release}"
    changes = " and later changes" if commit.endswith("+") else ""
    return f"release {release}, commit {commit[:12]}{changes}"


def render_access(request: LaunchRequest) -> str:
    """Return where a launch logs in, what it starts there first, and what it takes from here."""
    spec = request.spec
    rows = [
        (node.name, "this machine" if node.transport == "local" else _login(spec, node))
        for node in (*spec.nodes, *spec.spares)
    ]
    rows.append(
        ("there", f"{spec.cluster.host_python} runs the agent; setup lines run before any check")
    )
    pushes = spec.pushes_code and not request.recorded_code
    taken = [f"the code in {spec.cluster.project}"] if pushes else []
    taken += [f"secret {name}" for name in sorted(spec.secrets)]
    rows.append(("from here", ", ".join(taken) or "nothing"))
    return "\n".join(["", "# access", *(f"#{line}" for line in aligned(rows))])


def _login(spec: Spec, node: Node) -> str:
    user = node.user or spec.cluster.ssh.user
    port = node.port or spec.cluster.ssh.port
    text = f"ssh {f'{user}@' if user else ''}{node.host}{f' port {port}' if port else ''}"
    return text + (
        f" by way of {', '.join(spec.cluster.ssh.jump)}" if spec.cluster.ssh.jump else ""
    )


def started_again_notice(plan: Plan, run_flags: str) -> str:
    """Return that a stop came too late: the hosts had relaunched the run."""
    return (
        f"run {plan.run_id}: the hosts had relaunched it before they received the stop\n"
        f"  {this_program()} stop {run_flags}"
    )


def ended_notice(run_flags: str) -> str:
    """Return what there is to ask about a run that had ended before anybody asked."""
    program = this_program()
    return f"that run had ended:\n  {program} why  {run_flags}\n  {program} logs {run_flags}"


def detach_notice(
    plan: Plan,
    run_flags: str,
    *,
    is_detached: bool,
    is_stopping: bool = False,
    hub_unreachable: bool = False,
) -> str:
    """Return the notice about a run that continues without this controller."""
    lines = [f"run {plan.run_id} {'is being stopped' if is_stopping else 'goes on'}"]
    lines[0] += " without this terminal"
    first = plan.nodes[0]
    limit_s = first.order.disconnect_s
    if limit_s and not is_detached and not is_stopping:
        lines[0] += f", for {format_duration(limit_s)} unless you attach"
    if first.order.notify and not is_stopping:
        lines.append(f"  notify: {first.node} tells, and runs the commands")
    if first.order.relaunches_left and not is_stopping:
        lines.append(f"  {_relaunch_note(plan, hub_unreachable=hub_unreachable)}")
    lines += [
        f"  {this_program()} {verb:7}{run_flags}{flag}"
        for verb, flag in (("attach", ""), ("logs", " --follow"), ("stop", ""), ("pull", ""))
    ]
    return "\n".join(lines)


def _relaunch_note(plan: Plan, *, hub_unreachable: bool) -> str:
    """Return what happens after a failure while no controller is attached."""
    voters, nodes = plan.nodes[0].order.voter_count, len(plan.nodes)
    if not voters or (hub_unreachable and nodes > 1):
        return (
            "if it fails, it is not relaunched: the hosts have no port for that between them "
            "(see cluster.master_port)"
        )
    if voters == 1:
        return "if it fails, its host relaunches it"
    spares = counted(voters - nodes, "spare")
    where = f"{spares} standing by" if voters > nodes else "no spare node"
    needed = voters // 2 + 1
    warning = "" if needed < voters else ", so not after the loss of one"
    return (
        f"if it fails, the hosts relaunch it ({where}), as long as {needed} of {voters} "
        f"are connected{warning}"
    )


def final_report(
    plan: Plan,
    verdict: Verdict,
    folder: Path,
    diagnosis: Diagnosis | None,
    *,
    run_flags: str,
    disconnect_s: float = 0.0,
    rerun: str = "",
) -> str:
    """Return the verdict: the first failure, each node, the outcome, and the logs' folder.

    `disconnect_s` is 0 unless hosts out of reach wait for a controller; `rerun` is the command
    that repeats the run without hosts that were lost, if any.
    """
    lines: list[str] = []
    failure = verdict.first_failure
    if failure:
        lines += _first_failure(plan, verdict, failure, diagnosis)
    elif verdict.stalled_s:
        message = f"no rank had made progress for {verdict.stalled_s:.0f} s"
        lines.append(f"  {message}; the stacks of all ranks: {folder}/logs/NODE/stacks.out")
    lines += aligned([_outcome_row(group, verdict) for group in _group_by_outcome(plan, verdict)])
    apart = [name for name, result in verdict.nodes.items() if result.apart]
    if apart and verdict.state == SUCCEEDED:
        unmet = f"no rank met the master at {plan.master_addr}:{plan.master_port}"
        store = "torch's store there was for that node alone"
        lines.append(f"  warning: {fold_names(apart)}: {unmet}; {store}")
        lines.append(f"  cure: if this was to be one training: {OWN_MASTER}")
    if verdict.membership_count > 1:
        lines.append(f"  {verdict.membership_count} memberships; the ranks are those of the last")
    retry_command = f"{this_program()} stop {run_flags}"
    lines += _unverified_lines(plan, verdict.unverified, disconnect_s, retry_command)
    lines += [
        f"  {name}: cannot be killed: PID {', '.join(map(str, result.survivors))}"
        for name, result in verdict.nodes.items()
        if result.survivors
    ]
    lines += _past_attempts(plan, verdict, disconnect_s, retry_command)
    state = verdict.state
    if state == STUCK and not any(result.survivors for result in verdict.nodes.values()):
        # Stuck only because a host is unreachable: it may have ended.
        state = f"not known to have ended on {fold_names(verdict.unverified)},"
    reason = f": {printable(verdict.stop_reason)}" if verdict.stop_reason else ""
    lines.append(f"run {plan.run_id} {state} after {format_duration(verdict.seconds)}{reason}")
    if rerun:
        lines.append(f"  without the hosts that were lost: {rerun}")
    if not verdict.has_begun:
        return "\n".join([*lines, f"  record: {folder}"])
    lines.append(f"  logs: {folder}/logs")
    if plan.release and any(result.started for result in verdict.ranks.values()):
        order = plan.nodes[0].order
        work = RunPaths(order.workdir, plan.run_id, "NODE").work
        lines.append(f"  the ranks' working folder: {work} on each host")
    return "\n".join(lines)


def _past_attempts(
    plan: Plan, verdict: Verdict, disconnect_s: float, retry_command: str
) -> list[str]:
    """Return the past attempts and why each ended."""
    if not verdict.past_attempts:
        return []
    lines = [f"after {counted(len(verdict.past_attempts), 'relaunch', 'relaunches')}:"]
    for past in verdict.past_attempts:
        attempt_text = f"attempt {past.attempt + 1} on {fold_names(past.nodes)}"
        lines.append(f"  {attempt_text}, {format_duration(past.seconds)}: {past.reason}")
    return lines + _unverified_lines(plan, verdict.unverified_before, disconnect_s, retry_command)


def _first_failure(
    plan: Plan, verdict: Verdict, failure: Failure, diagnosis: Diagnosis | None
) -> list[str]:
    title = "stopped" if is_unattended(failure.reason) else "first failure"
    lines = [f"{title}: {failure_text(failure)}"]
    if number := verdict.same_failures:
        is_all = number == len(verdict.ranks) - 1
        others = "all others" if is_all else counted(number, "other rank")
        own = verdict.ranks[str(failure.rank)]
        is_equal = sum(each.code == own.code for each in verdict.ranks.values()) > number
        lines[0] += f", and so did {others}" if is_equal else f"; {others} raised the same"
    if diagnosis:
        quoted = (*diagnosis.context, *diagnosis.excerpt)
        work = plan.work_folders.get(failure.node)
        quoted = tuple(line.replace(f"{work}/", "") for line in quoted) if work else quoted
        lines += [f"  | {line}" for line in quoted if not CARET_LINE.fullmatch(line)]
        if diagnosis.meaning:
            lines += [f"  why: {diagnosis.meaning}", f"  cure: {diagnosis.remedy}"]
    if verdict.consequences > 0:
        lines.append(f"  {counted(verdict.consequences, 'rank')} failed as a consequence")
    return lines


def _group_by_outcome(plan: Plan, verdict: Verdict) -> list[list[NodePlan]]:
    """Group nodes with equal outcomes, so that a report fits a screen."""
    groups: dict[tuple[str, ...], list[NodePlan]] = {}
    for name, result in verdict.nodes.items():
        node_plan = plan.node(name)
        outcomes = {_rank_outcome(verdict, rank) for rank in verdict.ranks_on(name)}
        is_grouped = len(outcomes) <= 1
        key = (*outcomes, _cleanup_note(result)) if is_grouped else (name,)
        groups.setdefault(key, []).append(node_plan)
    return list(groups.values())


def _outcome_row(group: Sequence[NodePlan], verdict: Verdict) -> tuple[str, str]:
    """Return the names of nodes with the same outcome, and that outcome."""
    ranks = sorted(rank for node_plan in group for rank in verdict.ranks_on(node_plan.node))
    by_outcome: dict[str, list[int]] = {}
    for rank in ranks:
        by_outcome.setdefault(_rank_outcome(verdict, rank), []).append(rank)
    text = "; ".join(
        f"{format_ranges(same)} {outcome.replace('was ', 'were ', 1) if same[1:] else outcome}"
        for outcome, same in by_outcome.items()
    )
    if not by_outcome:
        is_unknown = group[0].node in verdict.unverified
        text = "outcome unknown" if is_unknown else "none of its ranks was left at the end"
    cleanup = _cleanup_note(verdict.nodes[group[0].node])
    per_node = " on each" if len(group) > 1 and cleanup.endswith(" killed") else ""
    return fold_names(node_plan.node for node_plan in group), f"{text}{cleanup}{per_node}"


def _cleanup_note(result: NodeResult) -> str:
    text = ""
    if result.left_over:
        commands = join_some([repr(command) for command in result.left_over], limit=3)
        text = f"; what it had left running was ended: {commands}"
    if result.end_verified and not result.survivors:
        text += f"; 0 processes left{f', {result.killed} killed' if result.killed else ''}"
    if result.end_reason:
        text += f"; {result.end_reason}"
    return text


def _rank_outcome(verdict: Verdict, rank: int) -> str:
    end = verdict.ranks[str(rank)]
    has_ended = end.code is not None or end.signal is not None
    if end.node in verdict.unverified and not has_ended:
        return "outcome unknown"
    if not end.started:
        return "never started"
    if end.code == 0:
        return "succeeded"
    failure = verdict.first_failure
    is_ours = end.signal == signal.SIGTERM or verdict.state == SUCCEEDED
    if is_ours and not (failure and failure.rank == rank):
        return "was stopped"  # by us: what ends by itself, or by somebody else, fails first
    return describe_exit(end.code, end.signal)


def _unverified_lines(
    plan: Plan, names: Sequence[str], disconnect_s: float, retry_command: str
) -> list[str]:
    """Return what is known of hosts that could not be asked; `disconnect_s` is 0 for never."""
    if not names:
        return []
    hub = plan.nodes[0].order.hub
    limits = []
    if hub and not plan.min_nodes:  # else some may go on without the others
        limits = [f"{hub.lost_s:g} s after losing the other hosts"]
    if disconnect_s:
        limits.append(f"{disconnect_s:g} s after losing this controller")
    lines = [f"  {fold_names(names)}: could not verify that all processes ended"]
    if limits:
        lines.append(f"    a supervisor that is up ends its ranks {' or '.join(limits)}")
    return [*lines, f"    when reachable again: {retry_command}"]


def _node_text(group: Sequence[NodePlan]) -> str:
    node_plan = group[0]
    devices = ", on CPU" if node_plan.order.env.get("DIST_BACKEND", "gloo") == "gloo" else ""
    if node_plan.gpus:
        devices = f", on {format_ranges(node_plan.gpus, 'GPU')}"
    per_node = f", {node_plan.nproc} each" if len(group) > 1 else ""
    ranks = [rank for member in group for rank in member.ranks]
    count = sum(member.nproc for member in group)
    ranks_text = format_ranges(ranks) if ranks else counted(count, "rank")
    return f"{ranks_text}{per_node}{devices}"
