"""Dry run: the plan as a shell script for each node."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from runner.core import shell
from runner.core.model.plan import NodePlan, Plan
from runner.core.planning.launch_command import user_args_index
from runner.core.protocol.paths import CODE_FOLDER, RunPaths, release_folder
from runner.ui.reports.report import launch_header


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
