"""Reports of a run: its header, its notices, its end, and the commands that it would start."""

from __future__ import annotations

import itertools
import posixpath
import re
import signal
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path

from runner.core import shell
from runner.core.errors import fold_names
from runner.core.outcome.attempt_events import NodeResult
from runner.core.outcome.diagnosis import Diagnosis
from runner.core.outcome.verdict import OWN_MASTER, Verdict
from runner.core.shell import this_program
from runner.core.wire.paths import RunPaths, content_file, release_file
from runner.core.wire.plan import NodePlan, Plan
from runner.core.wire.states import STOPPED, STUCK, SUCCEEDED, Reason, ReasonKind
from runner.core.wire.text import (
    bracket_ipv6,
    counted,
    describe_exit,
    format_duration,
    format_ranges,
    join_some,
    printable,
)
from runner.core.wire.tracebacks import EXCERPT_LINES, TRACEBACK
from runner.ui.layout import aligned, group_names, terminal_width, wrap_lines

RED = "1;31"
END_COLOURS = {SUCCEEDED: "1;32", STOPPED: "1;33"}

CARET_LINE = re.compile(r" *[~^]+")  # of a traceback; it only marks a part of the line above


CHECK_OUT = """'
import json, os, shutil, stat, sys
for path, mode, size, content in json.load(open(sys.argv[1])):
    if stat.S_ISDIR(mode): os.mkdir(path)
    elif stat.S_ISLNK(mode): os.symlink(content, path)
    else: os.chmod(shutil.copyfile(sys.argv[2] + content, path), mode & 0o777 | 0o200)
'"""
"""The program of Python that copies a release: its arguments are the manifest and the pool."""


def run_header(plan: Plan) -> str:
    """Return what runs where, and which code: two lines, and more where nodes differ."""
    names = fold_names(each.node for each in plan.nodes)
    where = names if plan.cluster == names else f"{names} ({plan.cluster})"
    alike = itertools.groupby(plan.nodes, attrgetter("nproc", "gpus"))  # neighbours
    groups = [list(group) for _, group in alike]
    ranks = counted(plan.world_size, "rank")
    nodes = counted(len(plan.nodes), "node")
    size = f"{nodes}, {ranks}"
    rows = [(fold_names(each.node for each in group), _node_text(group)) for group in groups]
    if plan.torch_assigns_ranks:
        limits = f" ({plan.min_nodes} to {plan.max_nodes} may take part)"
        limits = limits if plan.min_nodes < plan.max_nodes else ""
        size = f"{ranks} on {nodes}{limits}, numbered by torch"
    elif len(groups) == 1:
        size = rows.pop()[1]
    attempt = f", attempt {plan.attempt + 1}" if plan.attempt else ""
    code = [f"code: {code_name(plan.release, plan.commit)}"] if plan.release else []
    code += [f"image: {plan.image}"] if plan.image else []
    lines = [f"run {plan.run_id}: {plan.task} on {where}, {size}, {plan.backend}{attempt}"]
    lines += [f"  {', '.join(code)}"] if code else []
    return "\n".join([*lines, *aligned(rows)])


def _node_text(group: Sequence[NodePlan]) -> str:
    share = group[0]
    devices = ", on CPU" if share.order.program.env.get("DIST_BACKEND", "gloo") == "gloo" else ""
    if share.gpus:
        devices = f", on {format_ranges(share.gpus, 'GPU')}"
    per_node = f", {share.nproc} each" if len(group) > 1 else ""
    ranks = [rank for member in group for rank in member.ranks]
    text = format_ranges(ranks) if ranks else counted(share.nproc * len(group), "rank")
    return f"{text}{per_node}{devices}"


def outliving_line(plan: Plan, run_flags: str) -> str:
    """Return how to end the run, and how to find it when its terminal is gone."""
    limit_s = plan.nodes[0].order.disconnect_s
    limit = f"does after {format_duration(limit_s)}" if limit_s else "does not"
    return f"  Ctrl-C stops it, closing the terminal {limit}: {this_program()} attach {run_flags}"


def code_name(release: str, commit: str) -> str:
    if not commit:
        return f"release {release}"
    changes = " and later changes" if commit.endswith("+") else ""
    return f"release {release}, commit {commit[:12]}{changes}"


def ended_notice(run_flags: str) -> str:
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
    state = "is being stopped" if is_stopping else "goes on"
    lines = [f"run {plan.run_id} {state} without this terminal"]
    first = plan.nodes[0]
    if not is_stopping:
        if first.order.disconnect_s and not is_detached:
            lines[0] += f", for {format_duration(first.order.disconnect_s)} unless you attach"
        if first.order.notify:
            lines.append(f"  notify: {first.node} tells, and runs the commands")
        if first.order.relaunches_left:
            lines.append(f"  if it fails, {_relaunch_note(plan, hub_unreachable=hub_unreachable)}")
    lines += [
        f"  {this_program()} {verb:7}{run_flags}{flag}"
        for verb, flag in (("attach", ""), ("logs", " --follow"), ("stop", ""), ("pull", ""))
    ]
    return "\n".join(lines)


def _relaunch_note(plan: Plan, *, hub_unreachable: bool) -> str:
    hub = plan.nodes[0].order.hub
    if len(plan.nodes) == 1:
        return "its host relaunches it"
    if hub is None or hub_unreachable:
        lack = "the hosts have no port for that between them (see cluster.master_port)"
        return f"it is not relaunched: {lack}"
    spares = f"{counted(len(hub.spares), 'spare')} standing by" if hub.spares else "no spare node"
    return f"the hosts relaunch it ({spares}), unless {hub.node} is lost"


def final_report(
    plan: Plan,
    verdict: Verdict,
    folder: Path,
    diagnosis: Diagnosis | None,
    *,
    run_flags: str,
    disconnect_s: float = 0.0,
    rerun: str = "",
) -> tuple[str, dict[str, str]]:
    """Return the verdict: the first failure, each node, the outcome, and the logs' folder.

    With it come the colours of the lines that have one, as of an SGR sequence.

    `disconnect_s` is 0 unless hosts out of reach wait for a controller; `rerun` is the command
    that repeats the run without hosts that were lost, if any.
    """
    lines: list[str] = []
    colours: dict[str, str] = {}
    retry_command = f"{this_program()} stop {run_flags}"
    if verdict.first_failure:
        lines += _first_failure(plan, verdict, verdict.first_failure, diagnosis)
        colours[lines[0]] = END_COLOURS.get(verdict.state, RED)
    lines += aligned(_outcomes(verdict))
    apart = [name for name, result in verdict.nodes.items() if result.apart]
    if apart and verdict.state == SUCCEEDED:
        unmet = f"no rank met the master at {plan.master_addr}:{plan.master_port}"
        store = "torch's store there was for that node alone"
        lines.append(f"  warning: {fold_names(apart)}: {unmet}; {store}")
        lines.append(f"  cure: if this was to be one training: {OWN_MASTER}")
    if verdict.membership_count > 1:
        lines.append(f"  {verdict.membership_count} memberships; the ranks are those of the last")
    lines += _unverified_lines(plan, verdict.unverified, disconnect_s, retry_command)
    survivors = {name: each.survivors for name, each in verdict.nodes.items() if each.survivors}
    for name, pids in survivors.items():
        lines.append(f"  {name}: cannot be killed: PID {', '.join(map(str, pids))}")
    if past := verdict.past_attempts:
        lines.append(f"after {counted(len(past), 'relaunch', 'relaunches')}:")
        for each in past:
            where = f"attempt {each.attempt + 1} on {fold_names(each.nodes)}"
            lines.append(f"  {where}, {format_duration(each.seconds)}: {each.reason.text}")
        lines += _unverified_lines(plan, verdict.unverified_before, disconnect_s, retry_command)
    state = verdict.state
    if state == STUCK and not survivors:
        # Stuck only because a host is unreachable: it may have ended.
        state = f"not known to have ended on {fold_names(verdict.unverified)},"
    reason = f": {printable(verdict.stop_reason)}" if verdict.stop_reason else ""
    lines.append(f"run {plan.run_id} {state} after {format_duration(verdict.seconds)}{reason}")
    colours[lines[-1]] = END_COLOURS.get(verdict.state, RED)
    if rerun:
        lines.append(f"  without the hosts that were lost: {rerun}")
    lines.append(f"  logs: {folder}/logs" if verdict.has_begun else f"  record: {folder}")
    has_work = plan.release and any(result.started for result in verdict.ranks.values())
    if has_work and not plan.outputs:  # else they are, or `pull` brings them, beside the logs
        work = RunPaths(plan.nodes[0].order.workdir, plan.run_id, "NODE").work
        lines.append(f"  working folder on each host: {work}")
    return "\n".join(lines), colours


def _first_failure(
    plan: Plan, verdict: Verdict, failure: Reason, diagnosis: Diagnosis | None
) -> list[str]:
    title = "stopped" if failure.kind is ReasonKind.UNATTENDED else "first failure"
    lines = [f"{title}: {failure.text}"]
    if diagnosis:
        quoted = [*diagnosis.context, *_without_middle(diagnosis.excerpt)]
        if work := plan.work_folders.get(failure.node):
            quoted = [line.replace(f"{work}/", "") for line in quoted]
        lines += [f"  | {line}" for line in quoted if not CARET_LINE.fullmatch(line)]
        if diagnosis.meaning:
            lines += [f"  why: {diagnosis.meaning}", f"  cure: {diagnosis.remedy}"]
    if verdict.consequences:
        lines.append(f"  {counted(verdict.consequences, 'other rank')} failed, too")
    return lines


def _without_middle(lines: Sequence[str]) -> Sequence[str]:
    """Return the first and the last lines: those between are mostly torch's frames."""
    if len(lines) <= EXCERPT_LINES:
        return lines
    head = 3 if lines[0] == TRACEBACK else 0
    left_out = len(lines) - EXCERPT_LINES + 1
    return [*lines[:head], f"  … {left_out} lines …", *lines[-(EXCERPT_LINES - head - 1) :]]


def _outcomes(verdict: Verdict) -> Iterator[tuple[str, str]]:
    """Yield the names of nodes with the same outcome, so that a report fits a screen, and that."""
    outcomes = {
        name: group_names(
            (str(rank), _rank_outcome(verdict, rank)) for rank in verdict.ranks_on(name)
        )
        for name in verdict.nodes
    }
    notes = {name: _cleanup_note(result) for name, result in verdict.nodes.items()}
    keys = (
        (name, (*outcomes[name], notes[name]) if len(outcomes[name]) <= 1 else (name,))
        for name in verdict.nodes
    )
    for names in group_names(keys).values():
        first = names[0]
        texts = []
        for outcome in outcomes[first]:
            ranks = sorted(int(rank) for name in names for rank in outcomes[name][outcome])
            told = outcome.replace("was ", "were ", 1) if len(ranks) > 1 else outcome
            texts.append(f"{format_ranges(ranks)} {told}")
        if not texts:
            is_unknown = first in verdict.unverified
            texts = ["outcome unknown" if is_unknown else "none of its ranks was left at the end"]
        per_node = " on each" if len(names) > 1 and verdict.nodes[first].killed else ""
        yield fold_names(names), f"{'; '.join(texts)}{notes[first]}{per_node}"


def _cleanup_note(result: NodeResult) -> str:
    text = ""
    if result.left_over:
        commands = join_some([repr(command) for command in result.left_over], limit=3)
        text = f"; what it had left running was ended: {commands}"
    if result.end_verified and not result.survivors:
        text += f"; 0 processes left{f', {result.killed} killed' if result.killed else ''}"
    return f"{text}; {result.end_reason}" if result.end_reason else text


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
    limits = [f"{disconnect_s:g} s after losing this controller"] if disconnect_s else []
    if hub and not plan.min_nodes:  # else some may go on without the others
        limits.insert(0, f"{hub.lost_s:g} s after losing the other hosts")
    lines = [f"  {fold_names(names)}: could not verify that all processes ended"]
    if limits:
        lines.append(f"    a supervisor that is up ends its ranks {' or '.join(limits)}")
    return [*lines, f"    when reachable again: {retry_command}"]


def render_dry_run(plan: Plan, assumed: Sequence[str] = ()) -> str:
    """Return the exact command, environment and folder of each node, then the run's header."""
    blocks = []
    if assumed:
        lines = ["# assumed, since no host was contacted:", *(f"#   {each}" for each in assumed)]
        blocks.append("\n".join(lines))
    for share in plan.nodes:
        remark = _remark(plan, share)
        title = f"# {share.node}{f' ({remark})' if remark else ''}"
        blocks.append(f"{_comment(title)}\n{_script(plan, share)}")
    header = [*run_header(plan).splitlines(), *_rendezvous_line(plan)]
    header += [f"  note: {text}" for text in plan.notes]
    blocks.append(_comment("\n".join(f"# {line}" for line in header)))
    return "\n\n".join(blocks)


def _comment(text: str) -> str:
    return wrap_lines(text, terminal_width() - 1)


def _rendezvous_line(plan: Plan) -> list[str]:
    """Return the rendezvous endpoint and the reason for it; nothing if it is not on record."""
    has_reason = plan.rendezvous_reason and len(plan.nodes) > 1
    reason = f" ({plan.rendezvous_reason})" if has_reason else ""
    if plan.etcd_endpoint:
        return [f"  meeting at the etcd at {plan.etcd_endpoint}{reason}"]
    if plan.master_port:
        return [f"  meeting at {bracket_ipv6(plan.master_addr)}:{plan.master_port}{reason}"]
    return ["  single node: torchrun needs no address"] if len(plan.nodes) == 1 else []


def _remark(plan: Plan, share: NodePlan) -> str:
    if share.order.release:
        return "in a copy of the release, as in a launch"
    run = RunPaths(share.order.workdir, plan.run_id, share.node)
    in_run = share.cwd.startswith(f"{run.root}/")
    return "a launch puts the task's file there first" if in_run else ""


def _script(plan: Plan, share: NodePlan) -> str:
    order = share.order
    setup = "".join(f"{line}\n" for line in share.setup)
    folder = shell.path(share.cwd)
    if order.release:
        # A launch runs the setup in the home folder, before the code is there.
        run = RunPaths(order.workdir, plan.run_id, share.node)
        work = shell.path(run.work)
        manifest = shell.path(release_file(order.workdir, order.release))
        pool = shell.path(content_file(order.workdir, ""))
        text = f"{setup}mkdir -p {work} && cd {work} && python3 -c {CHECK_OUT} {manifest} {pool}"
        if share.cwd != run.work:
            text += f" && cd {shell.quote(posixpath.relpath(share.cwd, run.work))}"
        text += " && \\\n"
    else:
        text = f"mkdir -p {folder} && " if _remark(plan, share) else ""
        text += f"cd {folder}\n{setup}" if setup else f"cd {folder} && \\\n"
    before = [shell.assignments(share.env)] if share.env else []
    if order.program.path_folder:
        before.append(f'PATH={shell.path(order.program.path_folder)}:"$PATH"')
    if plan.secrets:
        before.append(shell.assignments({}, references=plan.secrets))
    text += "".join(f"{words} " for words in before)
    paths = len(share.command) - share.arg_count
    return f"{text}\\\n{shell.line(share.command, paths)}"
