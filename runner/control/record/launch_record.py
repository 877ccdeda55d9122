"""Launch on record: its files, and how any verb reaches the hosts of the run without its YAML.

`plan.json`, or `job.json` before the job of a run has begun, has the settings of the launch as they
were resolved here, and nothing of its program, environment or secrets.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner.core.errors import ConfigError, Problem, reason_of
from runner.core.launch_request import LaunchRequest
from runner.core.shell import expand_home
from runner.core.spec import Spec, Task
from runner.core.wire.codec import decode, encode
from runner.core.wire.plan import Plan

CONFIG_FILE = "config.yaml"
OVERRIDES_FILE = "overrides.yaml"  # of a launch here
PLAN_FILE = "plan.json"
RESULT_FILE = "result.json"
JOB_FILE = "job.json"  # where the launch is in a job of Slurm: what it begins with
HOSTS_FOLDER = "hosts"  # below it, a folder for each node with what its host has on record
SWEEP_FILE = "sweep.json"
"""In the record of a run, its place in a sweep; in the folder of a sweep, its runs."""

LATEST = "latest"  # the name of the link to the last run launched from a folder


@dataclass(frozen=True)
class LaunchRecord:
    spec: Spec  # as far as it reaches the hosts; its nodes have the spares among them
    config_dirs: tuple[str, ...] = ()
    launched_at: float = 0.0  # as its hosts have it on record
    launched_from: str = ""  # the folder; "" in a record that was begun later


@dataclass(frozen=True)
class PlanRecord:
    """The file, without the plan."""

    launch: LaunchRecord


def record_content(plan: Plan, request: LaunchRequest) -> dict[str, Any]:
    spec = request.spec
    cluster = replace(
        spec.cluster,
        nodes={},
        env={},
        pass_env=(),
        secrets=(),
        project="" if spec.deploy.enabled else spec.cluster.project,
    )
    reaching = Spec(
        run_id=spec.run_id,
        cluster=cluster,
        task=Task(nnodes=spec.task.nnodes),
        nodes=tuple(replace(node, env={}) for node in (*spec.nodes, *spec.spares)),
        deploy=spec.deploy,
        grace_s=spec.grace_s,
        lost_s=spec.lost_s,
        disconnect_s=spec.disconnect_s,
        pull_outputs=spec.pull_outputs,
        progress=spec.progress,
        ui=spec.ui,
        console_ranks=spec.console_ranks,
    )
    folders = tuple(str(Path(expand_home(folder)).absolute()) for folder in request.config_dirs)
    launch = LaunchRecord(reaching, folders, request.launched_at, request.launched_from)
    return {**encode(plan), "launch": encode(launch)}


def read_launch(folder: Path) -> LaunchRequest:
    """Return how the hosts of a run on record are reached; raise ConfigError if it is damaged."""
    file = folder / PLAN_FILE
    if not file.exists() and (folder / JOB_FILE).exists():
        file = folder / JOB_FILE
    try:
        launch = decode(PlanRecord, json.loads(file.read_text(encoding="utf-8"))).launch
    except (OSError, ValueError) as error:
        hint = "--cluster NAME finds the run on the hosts of that cluster"
        problem = Problem(str(file), f"cannot be read: {reason_of(error)}", hint)
        raise ConfigError([problem]) from error
    return LaunchRequest(
        spec=launch.spec,
        run_dir=folder,
        config_yaml="",
        config_dirs=launch.config_dirs,
        launched_at=launch.launched_at,
        launched_from=launch.launched_from,
        on_record=True,
    )
