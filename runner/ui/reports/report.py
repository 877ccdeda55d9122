"""What a run says about itself: before it starts, when it is only tried, and at its end."""

from __future__ import annotations

import posixpath
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

from runner.core import shell
from runner.core.model.spec import Spec
from runner.core.outcome.diagnosis import Diagnosis, Tail, diagnose
from runner.core.outcome.exits import describe_exit
from runner.core.outcome.stacks import STALLED
from runner.core.outcome.verdict import STUCK, Failure, NodeResult, Verdict
from runner.core.planning.build_plan import NodePlan, Plan
from runner.core.planning.launch_command import args_at
from runner.core.protocol.paths import CODE, RunFolder, release_folder
from runner.core.text import bracketed, spans
from runner.ui.node_names import fold_names

WIDTH = 79
"""Of our own sentences; tables and what ranks say take what they need."""

MARKS = re.compile(r" *[~^]+")
"""A line by which Python points at a part of the one above: long ones fill a screen."""


def opening(plan: Plan) -> str:
    """Return what runs where, in a few lines."""
    lines = [
        f"run {plan.run_id}: {plan.task} on {plan.cluster}, {_size(plan)}, {plan.backend}",
        *_meeting(plan),
    ]
    if plan.attempt:
        lines.append(f"  attempt {plan.attempt + 1}")
    if plan.release:
        lines.append(f"  code: {code_name(plan.release, plan.commit)}")
    lines += _shares(plan)
    for note in plan.notes:
        lines += _told("note", note)
    return "\n".join(lines)


def reopening(plan: Plan) -> str:
    """Return what runs where in a later attempt: what may be new."""
    return "\n".join(
        [f"attempt {plan.attempt + 1}: {_size(plan)}", *_meeting(plan), *_shares(plan)]
    )


def _shares(plan: Plan) -> list[str]:
    rows = [
        (fold_names(share.node for share in group), _share(group)) for group in _alike(plan.nodes)
    ]
    width = max(len(names) for names, _ in rows)
    return [f"  {names:{width}}  {text}" for names, text in rows]


def again(number: int, of: int, why: str, before: Spec, after: Spec, pause_s: float) -> str:
    """Return which attempt of how many follows, why, and on which nodes."""
    left, came = (
        [node.name for node in one.nodes if node not in other.nodes]
        for one, other in ((before, after), (after, before))
    )
    where = "on the same nodes"
    if came:
        takes = "takes" if len(came) == 1 else "take"
        where = f"{fold_names(came)} {takes} the place of {fold_names(left)}"
    elif left:
        where = f"without {fold_names(left)}"
    return f"attempt {number} of {of}: {why}; {where}; starting in {pause_s:g} s"


def too_few(there: Sequence[str], needed: int) -> str:
    """Return that no attempt follows for want of nodes."""
    names = f" ({fold_names(there)})" if there else ""
    return f"no attempt follows: {_count(needed, 'node')} needed, {len(there)} left{names}"


def _meeting(plan: Plan) -> list[str]:
    """Return where the nodes meet, and why there, in a line; none where that is not on record."""
    why = f" ({plan.meeting})" if plan.meeting and len(plan.nodes) > 1 else ""
    if plan.endpoint:
        return [f"  meeting at the etcd at {plan.endpoint}{why}"]
    if plan.master_port:
        return [f"  meeting at {bracketed(plan.master_addr)}:{plan.master_port}{why}"]
    return ["  one node alone: its torchrun needs no address"] if len(plan.nodes) == 1 else []


def _size(plan: Plan) -> str:
    ranks, nodes = _count(plan.world_size, "rank"), _count(len(plan.nodes), "node")
    if not plan.numbered_by_torch:
        return f"{nodes}, {ranks}"
    between = f" ({plan.least} to {plan.most} may take part)" if plan.least < plan.most else ""
    return f"{ranks} on {nodes}{between}, numbered by torch"


def code_name(release: str, commit: str) -> str:
    """Return which code runs, for a person: its release, and the commit where git knows one."""
    if not commit:
        return f"release {release}"
    changes = " and what was changed since" if commit.endswith("+") else ""
    return f"release {release}, commit {commit[:12]}{changes}"


def rehearsal(plan: Plan, assumed: Sequence[str] = ()) -> str:
    """Return, per node, the exact command, environment and folder, ready to paste."""
    blocks = ["\n".join(f"# {line}" for line in opening(plan).splitlines())]
    if assumed:
        lines = ["assumed, since no host was asked:", *(f"  {each}" for each in assumed)]
        blocks.append("\n".join(f"# {line}" for line in lines))
    blocks += [_to_paste(plan, share) for share in plan.nodes]
    return "\n\n".join(blocks)


def _to_paste(plan: Plan, share: NodePlan) -> str:
    folder = shell.path(share.cwd)
    run = RunFolder(share.order.workdir, plan.run_id, share.node)
    ours = share.cwd.startswith(run.root + "/")
    title, enter = f"# {share.node}", f"cd {folder}"
    if share.order.release:
        title += " (in a copy of the release, as in a launch)"
        code = posixpath.join(release_folder(share.order.workdir, share.order.release), CODE)
        work = shell.path(run.work)
        enter = (
            f"mkdir -p {shell.path(run.root)} && cp -R {shell.path(code)} {work} && "
            f"chmod -R u+w {work} && cd {folder}"
        )
    elif ours:
        title += " (a launch puts the task's file there first)"
        enter = f"mkdir -p {folder} && cd {folder}"
    env = shell.assignments(share.env, references=plan.secrets)
    command = shell.line(share.command, paths=args_at(share.command, share.order))
    if served := _served(share):
        title += f"\n# (its etcd, for as long as the run; a launch starts and ends it)\n{served}"
    before = [enter, *plan.setup] if plan.setup else [f"{enter} && \\"]
    if share.order.release:  # there is no code yet when a launch runs the setup, at home
        before = [*plan.setup, f"{enter} && \\"]
    return "\n".join([title, *before, f"{env} \\", command])


def _served(share: NodePlan) -> str:
    """Return what starts the run's server in the background, where it is this node's to run."""
    service = share.order.service
    if service is None or service.node != share.node:
        return ""
    return f'(cd "$(mktemp -d)" && exec {shell.line(service.argv, paths=1)}) &'


def begun_anew(plan: Plan, where: str) -> str:
    """Return that a stop came too late: its hosts had begun the run once more."""
    return (
        f"run {plan.run_id}: the hosts had started it once more before they heard of the stop\n"
        f"  python -m runner stop --run {plan.run_id} {where}"
    )


def leaving(
    plan: Plan, where: str, *, kept: bool, stopping: bool = False, apart: bool = False
) -> str:
    """Return what a user should know of a run that goes on without us, for ever if it is `kept`.

    `where` are the words by which a verb finds its hosts; `apart` is whether a host cannot reach
    the hub.
    """
    rest = f"--run {plan.run_id} {where}"
    lines = [f"run {plan.run_id} {'is being stopped' if stopping else 'goes on'}"]
    lines[0] += " without this terminal"
    if not kept and not stopping:
        some_time = _duration(plan.nodes[0].order.disconnect_s)
        lines[0] += f", for {some_time} unless somebody attaches"
    if kept and not stopping and plan.nodes[0].order.relaunches:
        lines.append(f"  {_by_itself(plan, apart=apart)}")
    lines += [
        f"  python -m runner {verb:7}{rest}{more}"
        for verb, more in (("attach", ""), ("logs", " --follow"), ("stop", ""), ("pull", ""))
    ]
    return "\n".join(lines)


def _by_itself(plan: Plan, *, apart: bool) -> str:
    """Return what comes of a failure while nobody is attached."""
    voters, nodes = plan.nodes[0].order.voters, len(plan.nodes)
    if not voters or (apart and nodes > 1):
        return (
            "if it fails, it does not start once more by itself: the hosts have no port for that "
            "between them (see cluster.master_port)"
        )
    if voters == 1:
        return "if it fails, its host starts it once more"
    spares = _count(voters - nodes, "spare")
    where = f"{spares} standing by" if voters > nodes else "no spare stands by"
    needed = voters // 2 + 1
    lost = "" if needed < voters else ": not when one of them is lost"
    return (
        f"if it fails, the hosts start it once more ({where}), while {needed} of {voters} "
        f"are in touch{lost}"
    )


def ending(
    plan: Plan,
    verdict: Verdict,
    folder: Path,
    tail: Tail,
    *,
    disconnect_s: float,
    where: str,
) -> str:
    """Return the verdict: how it ended, first failure, each node, and where the logs are.

    `where` is as in `leaving`.
    """
    lines: list[str] = []
    failure = verdict.first_failure
    if failure:
        lines += _first_failure(verdict, failure, diagnose(plan, verdict, tail))
    elif verdict.still_s:
        what = f"nothing of it had moved for {verdict.still_s:.0f} s"
        lines.append(f"  {what}; where each rank was: {folder}/logs/NODE/stacks.out")
    if verdict.exit_code != 0 or len(plan.nodes) <= MANY:
        rows = [_fared(group, verdict) for group in _same_fate(plan, verdict)]
        width = min(max(len(names) for names, _ in rows), WIDE)
        lines += [f"  {names:{width}}  {text}" for names, text in rows]
    if verdict.memberships > 1:
        lines.append(f"  {verdict.memberships} memberships; the ranks are those of the last")
    again = f"python -m runner stop --run {plan.run_id} {where}"
    lines += _unproven(verdict.unproven, disconnect_s, again)
    lines += [
        f"  {name}: cannot be killed: process{'es' if len(result.survivors) > 1 else ''} "
        f"{', '.join(map(str, result.survivors))}"
        for name, result in verdict.nodes.items()
        if result.survivors
    ]
    lines += _before(verdict, disconnect_s, again)
    lines.append(f"run {plan.run_id} {_state(verdict)} after {_duration(verdict.seconds)}")
    lines.append(f"  logs: {folder}/logs")
    if plan.release:
        order = plan.nodes[0].order
        work = RunFolder(order.workdir, plan.run_id, "NODE").work
        lines.append(f"  files the ranks wrote: {work} on each host")
    return "\n".join(lines)


def _before(verdict: Verdict, disconnect_s: float, again: str) -> list[str]:
    """Return why there was more than one attempt."""
    if not verdict.past:
        return []
    lines = [f"after {_count(len(verdict.past), 'relaunch', 'relaunches')}:"]
    for each in verdict.past:
        where = f"attempt {each.attempt + 1} on {fold_names(each.nodes)}"
        lines.append(f"  {where}, {_duration(each.seconds)}: {each.why}")
    names = dict.fromkeys(name for each in verdict.past for name in each.unproven)
    left = [name for name in names if name not in verdict.unproven]
    return lines + _unproven(left, disconnect_s, again)


MANY = 8
"""Up to so many nodes are listed one by one."""

WIDE = 40
"""Names longer than this are not waited for when columns are aligned."""


def _first_failure(verdict: Verdict, failure: Failure, why: Diagnosis | None) -> list[str]:
    lines = [f"first failure: {_who(failure)}{failure.what}"]
    if why:
        told = (line for line in (*why.before, *why.said) if not MARKS.fullmatch(line))
        lines += [f"  | {line}" for line in told]
        if why.means:
            lines += _told("why", why.means) + _told("cure", why.cure)
    if verdict.consequences > 0:
        lines.append(f"  {_count(verdict.consequences, 'rank')} ended badly after it")
    return lines


def _who(failure: Failure) -> str:
    if failure.what.startswith(STALLED):  # who saw it first says nothing
        return ""
    return (
        f"{failure.node}: " if failure.rank is None else f"rank {failure.rank} on {failure.node} "
    )


def _told(title: str, text: str) -> list[str]:
    return textwrap.wrap(
        f"{title}: {text}",
        WIDTH,
        initial_indent="  ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _same_fate(plan: Plan, verdict: Verdict) -> list[list[NodePlan]]:
    """Group nodes that fared alike, so that a report fits a screen; few nodes stay single."""
    groups: dict[tuple[str, ...], list[NodePlan]] = {}
    for name, result in verdict.nodes.items():
        share = plan.of(name)
        ends = {_end(verdict, rank) for rank in verdict.ranks_on(name)}
        alike = len(plan.nodes) > MANY and len(ends) == 1
        key = (*ends, _left(result)) if alike else (name,)
        groups.setdefault(key, []).append(share)
    return list(groups.values())


def _fared(group: Sequence[NodePlan], verdict: Verdict) -> tuple[str, str]:
    """Return the names of nodes that fared alike, and how they did."""
    ranks = [rank for share in group for rank in verdict.ranks_on(share.node)]
    by_end: dict[str, list[int]] = {}
    for rank in ranks:
        by_end.setdefault(_end(verdict, rank), []).append(rank)
    text = "; ".join(f"{spans(those)} {_of(those, how)}" for how, those in by_end.items())
    if not by_end:
        unknown = group[0].node in verdict.unproven
        text = "of unknown fate" if unknown else "none of its ranks was there in the end"
    left = _left(verdict.nodes[group[0].node])
    each = " on each" if len(group) > 1 and left.endswith(" killed") else ""
    return fold_names(share.node for share in group), f"{text}{left}{each}"


def _left(result: NodeResult) -> str:
    text = ""
    if result.ended and not result.survivors:
        text += f"; 0 processes left{f', {result.killed} killed' if result.killed else ''}"
    if result.note:
        text += f"; {result.note}"
    return text


def _end(verdict: Verdict, rank: int) -> str:
    end = verdict.ranks[str(rank)]
    if not end.started:
        return "of unknown fate" if end.node in verdict.unproven else "never started"
    return "succeeded" if end.code == 0 else describe_exit(end.code, end.signal)


def _of(ranks: Sequence[int], how: str) -> str:
    return how if len(ranks) == 1 else how.replace("was ", "were ", 1)


def _state(verdict: Verdict) -> str:
    """Return how it ended; what is stuck only in that a host is silent, may be well."""
    survivors = any(result.survivors for result in verdict.nodes.values())
    if verdict.state != STUCK or survivors:
        return verdict.state
    return f"not known to have ended on {fold_names(verdict.unproven)},"


def _unproven(names: Sequence[str], disconnect_s: float, again: str) -> list[str]:
    what = "there is no proof that nothing is left"
    if not disconnect_s:
        return [f"  {fold_names(names)}: {what}; when they answer again: {again}"] if names else []
    if len(names) > MANY:
        then = f"their supervisors stop the run within {disconnect_s:g} s of losing us"
        return [f"  {fold_names(names)}: {what}; where they are up, {then}"]
    then = f"its supervisor stops the run within {disconnect_s:g} s of losing us"
    return [f"  {name}: {what}; if it is up, {then}" for name in names]


def _alike(shares: Sequence[NodePlan]) -> list[list[NodePlan]]:
    """Group neighbours that differ by nothing but name and ranks; few nodes stay single."""
    groups: list[list[NodePlan]] = []
    for share in shares:
        last = groups[-1][-1] if groups else None
        alike = last and (last.size, last.gpus, last.interface) == (
            share.size,
            share.gpus,
            share.interface,
        )
        if alike and len(shares) > MANY:
            groups[-1].append(share)
        else:
            groups.append([share])
    return groups


def _share(group: Sequence[NodePlan]) -> str:
    share = group[0]
    devices = spans(share.gpus, "GPU") if share.gpus else "CPU"
    via = f", via {share.interface}" if share.interface else ""
    each = f", {share.size} each" if len(group) > 1 else ""
    ranks = [rank for member in group for rank in member.ranks]
    which = spans(ranks) if ranks else _count(sum(member.size for member in group), "rank")
    return f"{which}{each}, on {devices}{via}"


def _count(number: int, noun: str, many: str = "") -> str:
    return f"{number} {noun if number == 1 else many or f'{noun}s'}"


def _duration(seconds: float) -> str:
    if round(seconds, 1) < 60:  # noqa: PLR2004 (a minute)
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} m {rest:02} s" if hours else f"{minutes} m {rest:02} s"
