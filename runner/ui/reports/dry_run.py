"""Dry run: shell text that starts on each host what a launch would start there.

Hosts whose commands have the same form share one template. What differs between them are shell
variables in it, `my_…` so that they are no others, and each host has a line that assigns them: that
line, then the template, is what to paste there.
"""

from __future__ import annotations

import os.path
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass

from runner.core import shell
from runner.core.wire.paths import RunPaths, content_file, release_file
from runner.core.wire.plan import NodePlan, Plan
from runner.core.wire.text import bracket_ipv6
from runner.ui.layout import fold_names, group_names, terminal_width, wrap_lines
from runner.ui.reports.report import run_header

CHECK_OUT = """'
import json, os, shutil, stat, sys
for path, mode, size, content in json.load(open(sys.argv[1])):
    if stat.S_ISDIR(mode): os.mkdir(path)
    elif stat.S_ISLNK(mode): os.symlink(content, path)
    else: os.chmod(shutil.copyfile(sys.argv[2] + content, path), mode & 0o777 | 0o200)
'"""
"""The program of Python that copies a release: its arguments are the manifest and the pool."""


@dataclass(frozen=True)
class _Word:
    """A word of a script, still to be quoted."""

    text: str
    variable: str  # its name, where the text is not that of all hosts
    is_path: bool = False  # a leading `~/` is the home on the host

    @property
    def quoted(self) -> str:
        return shell.path(self.text) if self.is_path else shell.quote(self.text)


_Script = list[str | _Word]  # shell text as it is, or to be quoted


def render_dry_run(plan: Plan, assumed: Sequence[str] = ()) -> str:
    """Return the exact command, environment and folder of each node, then the run's header."""
    blocks = []
    if assumed:
        lines = ["# assumed, since no host was contacted:", *(f"#   {each}" for each in assumed)]
        blocks.append("\n".join(lines))
    scripts = {share.node: _script(plan, share) for share in plan.nodes}
    forms = (
        (name, tuple(part if isinstance(part, str) else part.variable for part in script))
        for name, script in scripts.items()
    )
    for names in group_names(forms).values():
        assignments, text = _template(names, [scripts[name] for name in names])
        remark = _remark(plan, plan.node(names[0]))
        title = f"# {fold_names(names)}{f' ({remark})' if remark else ''}"
        if len(names) > 1:
            title += ": on each host, paste its line and then the command below"
            blocks += ["\n".join([_comment(title), *assignments]), text]
        else:
            blocks.append(f"{_comment(title)}\n{text}")
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


def _script(plan: Plan, share: NodePlan) -> _Script:
    """Return what starts the command on one node."""
    order = share.order
    setup = [f"{line}\n" for line in share.setup]
    folder = _Word(share.cwd, "folder", is_path=True)
    script: _Script
    if order.release:
        # A launch runs the setup in the home folder, before the code is there.
        run = RunPaths(order.workdir, plan.run_id, share.node)
        work = _Word(run.work, "work", is_path=True)
        manifest = _Word(release_file(order.workdir, order.release), "release", is_path=True)
        pool = _Word(content_file(order.workdir, ""), "pool", is_path=True)
        script = [*setup, "mkdir -p ", work, " && cd ", work, f" && python3 -c {CHECK_OUT} "]
        script += [manifest, " ", pool]
        if share.cwd != run.work:
            script += [" && cd ", _Word(posixpath.relpath(share.cwd, run.work), "folder")]
        script.append(" && \\\n")
    else:
        script = ["mkdir -p ", folder, " && "] if _remark(plan, share) else []
        script += ["cd ", folder, *(["\n", *setup] if setup else [" && \\\n"])]
    for name, value in share.env.items():
        script += [f"{name}=", _Word(value, name.lower()), " "]
    if order.program.path_folder:
        script += ["PATH=", _Word(order.program.path_folder, "path", is_path=True), ':"$PATH" ']
    script += [f"{shell.assignments({}, references=plan.secrets)} " if plan.secrets else "", "\\\n"]
    path_count = len(share.command) - share.arg_count
    for index, word in enumerate(share.command):
        is_path = index < path_count
        name = "program" if is_path else "argument"
        script += [" " if index else "", _Word(word, name if index else "executable", is_path)]
    return script


def _template(names: Sequence[str], scripts: Sequence[_Script]) -> tuple[list[str], str]:
    """Return a line for each node that assigns what differs between them, and the script."""
    variables = {tuple(map(shell.quote, names)): "my_node"}  # by their values on these nodes
    text = ""
    for parts in zip(*scripts, strict=True):
        words = [part for part in parts if isinstance(part, _Word)]
        if not words:
            text += str(parts[0])
        elif len(set(words)) == 1:
            text += words[0].quoted
        else:
            # Only what follows the last `=` that they have in common is a variable.
            common = os.path.commonprefix([word.text for word in words])  # noqa: RUF071 (no paths)
            prefix = common[: common.rfind("=") + 1]
            option = re.search(r"([A-Za-z_]\w*)=\Z", prefix)
            wanted = f"my_{option[1].lower() if option else words[0].variable}"
            is_path = words[0].is_path and not prefix
            rests = [_Word(word.text[len(prefix) :], "", is_path) for word in words]
            values = tuple(rest.quoted for rest in rests)
            while values not in variables and wanted in variables.values():
                wanted += "_"
            variable = variables.setdefault(values, wanted)
            text += f'{shell.quote(prefix) if prefix else ""}"${variable}"'
    columns = []
    for values, variable in variables.items():
        cells = [f"{variable}={value}" for value in values]
        columns.append([cell.ljust(max(map(len, cells))) for cell in cells])
    return [" ".join(line).rstrip() for line in zip(*columns, strict=True)], text
