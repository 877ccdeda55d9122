"""Reports of a run: its dry run, its header, its notices, and its end."""

from __future__ import annotations

import itertools
import posixpath
import re
import textwrap
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path

from runner.core import shell
from runner.core.model.plan import NodePlan, Plan
from runner.core.model.results import Failure, NodeResult
from runner.core.model.spec import Spec
from runner.core.outcome.diagnosis import Diagnosis
from runner.core.outcome.stacks import is_stall
from runner.core.outcome.verdict import STUCK, Verdict
from runner.core.planning.launch_command import user_args_index
from runner.core.protocol.paths import CODE_FOLDER, RunPaths, release_folder
from runner.core.text import bracket_ipv6, counted, describe_exit, format_duration, format_ranges
from runner.ui.layout import align, fold_names

WIDTH = 79  # the width of sentences; tables and quotations may be wider
MAX_LISTED_NODES = 8  # the number of nodes up to which each has a line of its own
CARET_LINE = re.compile(r" *[~^]+")  # of a traceback; it only marks a part of the line above


def launch_header(plan: Plan) -> str:
    """Return the task, the nodes, the rendezvous and the code of a run."""
    lines = [
        f"run {plan.run_id}: {plan.task} on {plan.cluster}, {_size_text(plan)}, {plan.backend}",
        *_rendezvous_line(plan),
    ]
    if plan.attempt:
        lines.append(f"  attempt {plan.attempt + 1}")
    if plan.release:
        lines.append(f"  code: {code_name(plan.release, plan.commit)}")
    lines += _node_lines(plan)
    for note in plan.notes:
        lines += _wrap("note", note)
    return "\n".join(lines)


def attempt_header(plan: Plan) -> str:
    """Return the parts of the header that may differ in a later attempt."""
    title = f"attempt {plan.attempt + 1}: {_size_text(plan)}"
    return "\n".join([title, *_rendezvous_line(plan), *_node_lines(plan)])


def _node_lines(plan: Plan) -> list[str]:
    groups = _group_neighbours(plan.nodes)
    return align([(fold_names(each.node for each in group), _node_text(group)) for group in groups])


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


def _rendezvous_line(plan: Plan) -> list[str]:
    """Return the rendezvous endpoint and the reason for it; nothing if it is not on record."""
    has_reason = plan.rendezvous_reason and len(plan.nodes) > 1
    reason = f" ({plan.rendezvous_reason})" if has_reason else ""
    if plan.etcd_endpoint:
        return [f"  meeting at the etcd at {plan.etcd_endpoint}{reason}"]
    if plan.master_port:
        return [f"  meeting at {bracket_ipv6(plan.master_addr)}:{plan.master_port}{reason}"]
    return ["  single node: torchrun needs no address"] if len(plan.nodes) == 1 else []


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


def started_again_notice(plan: Plan, cluster_selector: str) -> str:
    """Return that a stop came too late: the hosts had relaunched the run."""
    return (
        f"run {plan.run_id}: the hosts had relaunched it before they received the stop\n"
        f"  python -m runner stop --run {plan.run_id} {cluster_selector}"
    )


def detach_notice(
    plan: Plan,
    cluster_selector: str,
    *,
    is_detached: bool,
    is_stopping: bool = False,
    hub_unreachable: bool = False,
) -> str:
    """Return the notice about a run that continues without this controller."""
    run_flags = f"--run {plan.run_id} {cluster_selector}"
    lines = [f"run {plan.run_id} {'is being stopped' if is_stopping else 'goes on'}"]
    lines[0] += " without this terminal"
    if not is_detached and not is_stopping:
        time_left = format_duration(plan.nodes[0].order.disconnect_s)
        lines[0] += f", for {time_left} unless you attach"
    if is_detached and not is_stopping and plan.nodes[0].order.relaunches_left:
        lines.append(f"  {_relaunch_note(plan, hub_unreachable=hub_unreachable)}")
    lines += [
        f"  python -m runner {verb:7}{run_flags}{flag}"
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
    disconnect_s: float,
    cluster_selector: str,
) -> str:
    """Return the verdict: the first failure, each node, the outcome, and the logs' folder."""
    lines: list[str] = []
    failure = verdict.first_failure
    if failure:
        lines += _first_failure(verdict, failure, diagnosis)
    elif verdict.stalled_s:
        message = f"no rank had made progress for {verdict.stalled_s:.0f} s"
        lines.append(f"  {message}; the stacks of all ranks: {folder}/logs/NODE/stacks.out")
    if verdict.exit_code != 0 or len(plan.nodes) <= MAX_LISTED_NODES:
        lines += align([_outcome_row(group, verdict) for group in _group_by_outcome(plan, verdict)])
    if verdict.membership_count > 1:
        lines.append(f"  {verdict.membership_count} memberships; the ranks are those of the last")
    retry_command = f"python -m runner stop --run {plan.run_id} {cluster_selector}"
    lines += _unverified_lines(verdict.unverified, disconnect_s, retry_command)
    lines += [
        f"  {name}: cannot be killed: PID {', '.join(map(str, result.survivors))}"
        for name, result in verdict.nodes.items()
        if result.survivors
    ]
    lines += _past_attempts(verdict, disconnect_s, retry_command)
    state = verdict.state
    if state == STUCK and not any(result.survivors for result in verdict.nodes.values()):
        # Stuck only because a host is unreachable: it may have ended.
        state = f"not known to have ended on {fold_names(verdict.unverified)},"
    lines.append(f"run {plan.run_id} {state} after {format_duration(verdict.seconds)}")
    lines.append(f"  logs: {folder}/logs")
    if plan.release:
        order = plan.nodes[0].order
        work = RunPaths(order.workdir, plan.run_id, "NODE").work
        lines.append(f"  files the ranks wrote: {work} on each host")
    return "\n".join(lines)


def _past_attempts(verdict: Verdict, disconnect_s: float, retry_command: str) -> list[str]:
    """Return the past attempts and why each ended."""
    if not verdict.past_attempts:
        return []
    lines = [f"after {counted(len(verdict.past_attempts), 'relaunch', 'relaunches')}:"]
    for past in verdict.past_attempts:
        attempt_text = f"attempt {past.attempt + 1} on {fold_names(past.nodes)}"
        lines.append(f"  {attempt_text}, {format_duration(past.seconds)}: {past.reason}")
    names = dict.fromkeys(name for past in verdict.past_attempts for name in past.unverified)
    unverified = [name for name in names if name not in verdict.unverified]
    return lines + _unverified_lines(unverified, disconnect_s, retry_command)


def _first_failure(verdict: Verdict, failure: Failure, diagnosis: Diagnosis | None) -> list[str]:
    where = f"{failure.node}: "
    if failure.rank is not None:
        where = f"rank {failure.rank} on {failure.node} "
    if is_stall(failure.reason):  # the rank that reported it means nothing
        where = ""
    lines = [f"first failure: {where}{failure.reason}"]
    if diagnosis:
        quoted = (*diagnosis.context, *diagnosis.excerpt)
        lines += [f"  | {line}" for line in quoted if not CARET_LINE.fullmatch(line)]
        if diagnosis.meaning:
            lines += _wrap("why", diagnosis.meaning) + _wrap("cure", diagnosis.remedy)
    if verdict.consequences > 0:
        lines.append(f"  {counted(verdict.consequences, 'rank')} failed as a consequence")
    return lines


def _wrap(title: str, text: str) -> list[str]:
    wrapper = textwrap.TextWrapper(WIDTH, "  ", "    ", break_long_words=False)
    wrapper.break_on_hyphens = False
    return wrapper.wrap(f"{title}: {text}")


def _group_by_outcome(plan: Plan, verdict: Verdict) -> list[list[NodePlan]]:
    """Group nodes with equal outcomes, so that a report fits a screen; few stay single."""
    groups: dict[tuple[str, ...], list[NodePlan]] = {}
    for name, result in verdict.nodes.items():
        node_plan = plan.node(name)
        outcomes = {_rank_outcome(verdict, rank) for rank in verdict.ranks_on(name)}
        is_grouped = len(plan.nodes) > MAX_LISTED_NODES and len(outcomes) == 1
        key = (*outcomes, _cleanup_note(result)) if is_grouped else (name,)
        groups.setdefault(key, []).append(node_plan)
    return list(groups.values())


def _outcome_row(group: Sequence[NodePlan], verdict: Verdict) -> tuple[str, str]:
    """Return the names of nodes with the same outcome, and that outcome."""
    ranks = [rank for node_plan in group for rank in verdict.ranks_on(node_plan.node)]
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
    if result.end_verified and not result.survivors:
        text += f"; 0 processes left{f', {result.killed} killed' if result.killed else ''}"
    if result.end_reason:
        text += f"; {result.end_reason}"
    return text


def _rank_outcome(verdict: Verdict, rank: int) -> str:
    end = verdict.ranks[str(rank)]
    if not end.started:
        return "outcome unknown" if end.node in verdict.unverified else "never started"
    return "succeeded" if end.code == 0 else describe_exit(end.code, end.signal)


def _unverified_lines(names: Sequence[str], disconnect_s: float, retry_command: str) -> list[str]:
    message = "could not verify that all processes ended"
    stop = f"the run within {disconnect_s:g} s of losing this controller"
    if names and not disconnect_s:
        return [f"  {fold_names(names)}: {message}; when they answer again: {retry_command}"]
    if len(names) > MAX_LISTED_NODES:
        consequence = f"where they are up, their supervisors stop {stop}"
        return [f"  {fold_names(names)}: {message}; {consequence}"]
    return [f"  {name}: {message}; if it is up, its supervisor stops {stop}" for name in names]


def _group_neighbours(node_plans: Sequence[NodePlan]) -> list[list[NodePlan]]:
    """Group neighbours that differ only in name and ranks; few nodes stay single."""
    if len(node_plans) <= MAX_LISTED_NODES:
        return [[node_plan] for node_plan in node_plans]
    groups = itertools.groupby(node_plans, key=attrgetter("nproc", "gpus", "interface"))
    return [list(group) for _, group in groups]


def _node_text(group: Sequence[NodePlan]) -> str:
    node_plan = group[0]
    devices = format_ranges(node_plan.gpus, "GPU") if node_plan.gpus else "CPU"
    via = f", via {node_plan.interface}" if node_plan.interface else ""
    per_node = f", {node_plan.nproc} each" if len(group) > 1 else ""
    ranks = [rank for member in group for rank in member.ranks]
    count = sum(member.nproc for member in group)
    ranks_text = format_ranges(ranks) if ranks else counted(count, "rank")
    return f"{ranks_text}{per_node}, on {devices}{via}"


def render_dry_run(plan: Plan, assumed: Sequence[str] = ()) -> str:
    """Return the exact command, environment and folder of each node, ready to paste."""
    blocks = ["\n".join(f"# {line}" for line in launch_header(plan).splitlines())]
    if assumed:
        lines = ["# assumed, since no host was contacted:", *(f"#   {each}" for each in assumed)]
        blocks.append("\n".join(lines))
    blocks += [_shell_script(plan, node_plan) for node_plan in plan.nodes]
    return "\n\n".join(blocks)


def _shell_script(plan: Plan, node_plan: NodePlan) -> str:
    order, folder = node_plan.order, shell.path(node_plan.cwd)
    run = RunPaths(order.workdir, plan.run_id, node_plan.node)
    title, enter = f"# {node_plan.node}", f"cd {folder}"
    if order.release:
        title += " (in a copy of the release, as in a launch)"
        code = posixpath.join(release_folder(order.workdir, order.release), CODE_FOLDER)
        work = shell.path(run.work)
        enter = (
            f"mkdir -p {shell.path(run.root)} && cp -R {shell.path(code)} {work} && "
            f"chmod -R u+w {work} && cd {folder}"
        )
    elif node_plan.cwd.startswith(run.root + "/"):
        title += " (a launch puts the task's file there first)"
        enter = f"mkdir -p {folder} && cd {folder}"
    env = shell.assignments(node_plan.env, references=plan.secrets)
    command = shell.line(node_plan.command, paths=user_args_index(node_plan.command, order))
    if order.sidecar and order.sidecar.node == node_plan.node:
        title += "\n# (its etcd, for as long as the run; a launch starts and ends it)\n"
        title += f'(cd "$(mktemp -d)" && exec {shell.line(order.sidecar.argv, paths=1)}) &'
    setup_lines = [enter, *plan.setup]
    if order.release or not plan.setup:
        # With a release, a launch runs the setup in the home folder, before the code is there.
        setup_lines = [*plan.setup, f"{enter} && \\"]
    return "\n".join([title, *setup_lines, f"{env} \\", command])
