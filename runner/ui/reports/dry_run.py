"""Dry run: shell text that starts on each host what a launch would start there."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from runner.core import shell
from runner.core.wire.paths import RunPaths, content_file, release_file
from runner.core.wire.plan import NodePlan, Plan
from runner.core.wire.text import bracket_ipv6
from runner.ui.layout import terminal_width, wrap_lines
from runner.ui.reports.report import run_header

CHECK_OUT = """'
import json, os, shutil, stat, sys
for path, mode, size, content in json.load(open(sys.argv[1])):
    if stat.S_ISDIR(mode): os.mkdir(path)
    elif stat.S_ISLNK(mode): os.symlink(content, path)
    else: os.chmod(shutil.copyfile(sys.argv[2] + content, path), mode & 0o777 | 0o200)
'"""
"""The program of Python that copies a release: its arguments are the manifest and the pool."""


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
