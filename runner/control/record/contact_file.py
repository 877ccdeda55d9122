"""Contact file: `contact.json`, by which any verb reaches the hosts of a run without its YAML.

It has the settings of the launch as they were resolved on this machine, and nothing of its task,
environment or secrets; no variable, folder or file of the user is needed to read it. It is apart
from `plan.json`: a job in a queue has no plan yet, and plans go to hosts, which need not know it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path

from runner.control.record.file_names import CONTACT_FILE
from runner.core.errors import ConfigError, Problem, reason_of
from runner.core.launch_request import LaunchRequest
from runner.core.shell import expand_home
from runner.core.spec import Cluster, Deploy, Node, Progress, Spec
from runner.core.wire.codec import decode


@dataclass(frozen=True)
class RunContact:
    """Content of the file: fields of `Spec`, and the last three of `LaunchRequest`."""

    run_id: str
    cluster: Cluster
    nodes: tuple[Node, ...]  # the spares among them
    deploy: Deploy
    grace_s: float
    lost_s: float
    disconnect_s: float
    pull_outputs: str
    progress: Progress
    ui: str
    console_ranks: tuple[int, ...] | None
    config_dirs: tuple[str, ...] = ()
    launched_at: float = 0.0  # as its hosts have it on record
    launched_from: str = ""  # the folder; "" in a record that was begun later


SPEC_FIELDS = [field.name for field in fields(RunContact)][:-3]


def run_contact(request: LaunchRequest) -> RunContact:
    """Return the content of the file."""
    spec = request.spec
    values = {name: getattr(spec, name) for name in SPEC_FIELDS}
    values["nodes"] = tuple(replace(node, env={}) for node in (*spec.nodes, *spec.spares))
    values["cluster"] = replace(
        spec.cluster,
        nodes={},
        env={},
        secrets=(),
        project="" if spec.deploy.enabled else spec.cluster.project,
    )
    folders = tuple(str(Path(expand_home(folder)).absolute()) for folder in request.config_dirs)
    return RunContact(
        **values,
        config_dirs=folders,
        launched_at=request.launched_at,
        launched_from=request.launched_from,
    )


def read_contact(folder: Path) -> LaunchRequest:
    """Return how the hosts of a run on record are reached; its task is not known from there.

    Raises:
        ConfigError: The file cannot be read, or is damaged.
    """
    file = folder / CONTACT_FILE
    try:
        contact = decode(RunContact, json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        hint = "--cluster NAME finds the run on the hosts of that cluster"
        raise ConfigError(
            [Problem(str(file), f"cannot be read: {reason_of(error)}", hint)]
        ) from error
    return LaunchRequest(
        spec=Spec(**{name: getattr(contact, name) for name in SPEC_FIELDS}),
        run_dir=folder,
        config_yaml="",
        config_dirs=contact.config_dirs,
        launched_at=contact.launched_at,
        launched_from=contact.launched_from,
        on_record=True,
    )
