"""Contact file: `contact.json`, by which any verb reaches the hosts of a run without its YAML.

It has the settings of the launch as they were resolved on this machine, and nothing of its task,
environment or secrets; no variable, folder or file of the user is needed to read it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path

from runner.control.record.file_names import CONTACT_FILE
from runner.core.codec import decode
from runner.core.errors import ConfigError, Problem, reason_of
from runner.core.launch_request import LaunchRequest
from runner.core.shell import expand_home
from runner.core.spec import Cluster, Deploy, Node, Progress, Spec


@dataclass(frozen=True)
class RunContact:
    """Fields of `Spec`."""

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


@dataclass(frozen=True)
class RecordedContact:
    """Content of the file."""

    run: RunContact
    config_dirs: tuple[str, ...] = ()
    launched_at: float = 0.0  # as its hosts have it on record
    launched_from: str = ""  # the folder; "" in a record that was begun later


def recorded_contact(request: LaunchRequest) -> RecordedContact:
    """Return the content of the file."""
    spec = request.spec
    values = {field.name: getattr(spec, field.name) for field in fields(RunContact)}
    values["nodes"] = tuple(replace(node, env={}) for node in (*spec.nodes, *spec.spares))
    values["cluster"] = replace(
        spec.cluster,
        nodes={},
        env={},
        pass_env=(),
        secrets=(),
        project="" if spec.deploy.enabled else spec.cluster.project,
    )
    folders = tuple(str(Path(expand_home(folder)).absolute()) for folder in request.config_dirs)
    return RecordedContact(
        run=RunContact(**values),
        config_dirs=folders,
        launched_at=request.launched_at,
        launched_from=request.launched_from,
    )


def read_contact(folder: Path) -> LaunchRequest:
    """Return how the hosts of a run on record are reached; its task is not known from there.

    Raises:
        ConfigError: The file cannot be read; another version wrote the record, or it is damaged.
    """
    file = folder / CONTACT_FILE
    try:
        contact = decode(RecordedContact, json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        hint = "--cluster NAME finds the run on the hosts of that cluster"
        raise ConfigError(
            [Problem(str(file), f"cannot be read: {reason_of(error)}", hint)]
        ) from error
    values = {field.name: getattr(contact.run, field.name) for field in fields(RunContact)}
    return LaunchRequest(
        spec=Spec(**values),
        run_dir=folder,
        config_yaml="",
        config_dirs=contact.config_dirs,
        launched_at=contact.launched_at,
        launched_from=contact.launched_from,
        on_record=True,
    )
