"""Dry run: shell text that starts on each host what a launch would start there.

Hosts whose commands have the same form share one template. What differs between them are shell
variables in it, and each host has a line that assigns them: that line, then the template, is what
to paste there.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from runner.core import shell
from runner.core.model.plan import NodePlan, Plan
from runner.core.protocol.paths import CODE_FOLDER, RunPaths, release_folder
from runner.core.text import bracket_ipv6
from runner.ui.layout import fold_names, terminal_width, wrap_lines
from runner.ui.reports.report import run_header


@dataclass(frozen=True)
class _Text:
    """A word of a script, or a part of one, still to be quoted."""

    value: str
    variable: str = ""  # its name, where the value is not that of all hosts
    is_path: bool = False  # a leading `~/` is the home on the host


_Part = str | _Text  # shell text as it is, or to be quoted


def render_dry_run(plan: Plan, assumed: Sequence[str] = ()) -> str:
    """Return the exact command, environment and folder of each node, then the run's header."""
    blocks = []
    if assumed:
        lines = ["# assumed, since no host was contacted:", *(f"#   {each}" for each in assumed)]
        blocks.append("\n".join(lines))
    groups: dict[tuple[object, ...], list[tuple[NodePlan, list[_Part]]]] = {}
    for node_plan in plan.nodes:
        script = _script(plan, node_plan)
        form = tuple(part if isinstance(part, str) else part.variable for part in script)
        groups.setdefault((_remark(plan, node_plan), *form), []).append((node_plan, script))
    for (remark, *_), members in groups.items():
        names = fold_names(node_plan.node for node_plan, _ in members)
        title = f"# {names}{f' ({remark})' if remark else ''}"
        template = _Template(plan, [node_plan for node_plan, _ in members])
        text = template.render([script for _, script in members])
        if len(members) > 1:
            title += ": on each host, paste its line and then the command below"
            blocks.append("\n".join([_comment(title), *template.assignments()]))
            blocks.append(text)
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


def _remark(plan: Plan, node_plan: NodePlan) -> str:
    order = node_plan.order
    if order.release:
        return "in a copy of the release, as in a launch"
    run = RunPaths(order.workdir, plan.run_id, node_plan.node)
    in_run = node_plan.cwd.startswith(run.root + "/")
    return "a launch puts the task's file there first" if in_run else ""


def _script(plan: Plan, node_plan: NodePlan) -> list[_Part]:
    """Return what starts the command on one node."""
    order = node_plan.order
    script: list[_Part] = []
    enter = _enter_folder(plan, node_plan)
    setup = [f"{line}\n" for line in node_plan.setup]
    if order.release or not setup:
        # With a release, a launch runs the setup in the home folder, before the code is there.
        script += [*setup, *enter, " && \\\n"]
    else:
        script += [*enter, "\n", *setup]
    for name, value in node_plan.env.items():
        variable = name.lower()
        # Not `path`, which zsh ties to PATH.
        variable = variable if variable.startswith("node_") else f"node_{variable}"
        script += [f"{name}=", _Text(value, variable), " "]
    if order.path_folder:
        folder = _Text(order.path_folder, "node_path", is_path=True)
        script += ["PATH=", folder, ':"$PATH" ']
    script += [f"{shell.assignments({}, references=plan.secrets)} " if plan.secrets else "", "\\\n"]
    path_count = len(node_plan.command) - node_plan.arg_count
    for index, word in enumerate(node_plan.command):
        variable = "argument" if index >= path_count else "program" if index else "executable"
        script += [" " if index else "", _Text(word, variable, is_path=index < path_count)]
    return script


def _enter_folder(plan: Plan, node_plan: NodePlan) -> list[_Part]:
    order = node_plan.order
    run = RunPaths(order.workdir, plan.run_id, node_plan.node)

    def quoted(path: str) -> list[_Part]:
        if not f"{path}/".startswith(run.root + "/"):
            return [_Text(path, "folder", is_path=True)]
        runs = f"{posixpath.dirname(run.root)}/"
        inside = [_Text(path[len(run.root) :])] if path != run.root else []
        return [_Text(runs, "runs", is_path=True), _Text(node_plan.node, "node"), *inside]

    folder = quoted(node_plan.cwd)
    if order.release:
        code = posixpath.join(release_folder(order.workdir, order.release), CODE_FOLDER)
        source, work = _Text(code, "code", is_path=True), quoted(run.work)
        copy: list[_Part] = ["mkdir -p ", *quoted(run.root), " && cp -R ", source, " ", *work]
        return [*copy, " && chmod -R u+w ", *work, " && cd ", *folder]
    if _remark(plan, node_plan):
        return ["mkdir -p ", *folder, " && cd ", *folder]
    return ["cd ", *folder]


class _Template:
    """Scripts of the same form as one, with variables for what differs between the nodes."""

    def __init__(self, plan: Plan, node_plans: Sequence[NodePlan]) -> None:
        self._nodes = tuple(node_plan.node for node_plan in node_plans)
        self._interfaces = tuple(node_plan.interface for node_plan in node_plans)
        lines = [line for node_plan in node_plans for line in node_plan.setup]
        self._used = {*plan.secrets, *re.findall(r"\w+", "\n".join(lines))}
        self._used.update(*(node_plan.env for node_plan in node_plans))
        self._columns: dict[tuple[str, tuple[str, ...]], tuple[str, bool]] = {}
        self._variable("node", self._nodes, is_path=False)

    def render(self, scripts: Sequence[Sequence[_Part]]) -> str:
        """Return the text that is the same on every node."""
        merged: list[_Part] = [""]
        for parts in zip(*scripts, strict=True):
            part = parts[0] if len(set(parts)) == 1 else self._reference(parts)
            last = merged[-1]
            if isinstance(last, _Text) and isinstance(part, _Text):
                merged[-1] = replace(last, value=last.value + part.value)
            else:
                merged.append(part)
        return "".join(part if isinstance(part, str) else _quoted(part) for part in merged)

    def assignments(self) -> list[str]:
        """Return a line for each node that assigns its values to the variables."""
        cells = [
            [f"{name}={_quoted(_Text(value, is_path=is_path))}" for value in values]
            for (_, values), (name, is_path) in self._columns.items()
        ]
        return [" ".join(line) for line in zip(*cells, strict=True)]

    def _reference(self, parts: Sequence[_Part]) -> str:
        """Return a word of which only what follows its last common `=` is a variable."""
        texts = [part for part in parts if isinstance(part, _Text)]
        pieces = zip(*(text.value.split("=")[:-1] for text in texts), strict=False)
        common = itertools.takewhile(lambda same: len(set(same)) == 1, pieces)
        prefix = "".join(f"{piece}=" for piece, *_ in common)
        option = re.search(r"([A-Za-z_]\w*)=\Z", prefix)
        name = self._variable(
            option[1] if option else texts[0].variable,
            tuple(text.value[len(prefix) :] for text in texts),
            is_path=texts[0].is_path and not prefix,
        )
        return f'{shell.quote(prefix) if prefix else ""}"${name}"'

    def _variable(self, variable: str, values: tuple[str, ...], *, is_path: bool) -> str:
        known = {self._nodes: "node", self._interfaces: "interface"}
        wanted = known.get(values, variable)
        if (wanted, values) not in self._columns:
            name = wanted
            while name in self._used:
                name += "_"
            self._used.add(name)
            self._columns[wanted, values] = name, is_path
        return self._columns[wanted, values][0]


def _quoted(text: _Text) -> str:
    return shell.path(text.value) if text.is_path else shell.quote(text.value)
