"""Run lookup: the folder of the run that a request names, in whichever workdir of the user."""

from __future__ import annotations

import os
from typing import Generator

from runner.core.protocol.frames import Frame
from runner.core.protocol.paths import RunPaths, validated_paths
from runner.host.agent.server import AgentContext
from runner.host.storage.workdir_index import list_elsewhere


def find_run(context: AgentContext, frame: Frame) -> Generator[None, None, RunPaths]:
    """Return that folder; if there is none, where it would be in the conversation's workdir.

    Each agent looks for itself: no path comes from a controller, which has it from hosts.
    """
    run_id, node = frame.data["run_id"], frame.data["node"]
    workdir = context.run_workdirs.get((run_id, node), context.workdir)
    folder = validated_paths(workdir, run_id, node)
    if os.path.isdir(folder.root):
        return folder
    runs, _ = yield from list_elsewhere(context.workdir, node, run_id=run_id)
    for run in runs:
        if run["node"] == node:
            context.run_workdirs[run_id, node] = run["workdir"]
            return RunPaths(run["workdir"], run_id, node)
    return folder
