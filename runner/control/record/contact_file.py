"""Contact file: `contact.json`, by which any verb reaches the hosts of a run without its YAML.

It has the settings of the launch as they were resolved on this machine, and nothing of its task,
environment or secrets; no variable, folder or file of the user is needed to read it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path

from runner.core.codec import decode, encode
from runner.core.errors import ConfigError, Problem
from runner.core.model.spec import DryRun, LaunchRequest, Node, Spec, Ssh, Task

CONTACT_FILE = "contact.json"


@dataclass(frozen=True)
class _RunContact:
    """Fields of `Spec`."""

    run_id: str
    cluster: str
    nodes: tuple[Node, ...]  # the spares among them
    ssh: Ssh
    host_python: str
    setup: tuple[str, ...]  # it may bring that interpreter
    project: str  # the folder that it runs in; "": the home folder
    workdir: str
    grace_s: float
    lost_s: float
    disconnect_s: float
    pull_outputs: bool


@dataclass(frozen=True)
class _RecordedContact:
    run: _RunContact
    ui: str = "auto"
    console_ranks: tuple[int, ...] | None = None
    config_dirs: tuple[str, ...] = ()


def encode_contact(request: LaunchRequest) -> str:
    """Return the content of the file."""
    spec = request.spec
    values = {field.name: getattr(spec, field.name) for field in fields(_RunContact)}
    values["nodes"] = tuple(replace(node, env={}) for node in (*spec.nodes, *spec.spares))
    values["project"] = "" if spec.deploy.enabled else spec.project
    ranks = None if request.console_ranks is None else tuple(sorted(request.console_ranks))
    contact = _RecordedContact(_RunContact(**values), request.ui, ranks, request.config_dirs)
    return json.dumps(encode(contact), indent=1) + "\n"


def read_contact(folder: Path) -> LaunchRequest:
    """Return how the hosts of a run on record are reached; its task is not known from there.

    Raises:
        ConfigError: The file cannot be read; another version wrote the record, or it is damaged.
    """
    file = folder / CONTACT_FILE
    try:
        contact = decode(_RecordedContact, json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = "--cluster NAME finds the run on the hosts of that cluster"
        raise ConfigError([Problem(str(file), f"cannot be read: {reason}", hint)]) from error
    values = {field.name: getattr(contact.run, field.name) for field in fields(_RunContact)}
    return LaunchRequest(
        spec=Spec(task=Task("", "command", ""), **values),
        dry_run=DryRun.OFF,
        run_dir=folder,
        ui=contact.ui,
        console_ranks=None if contact.console_ranks is None else frozenset(contact.console_ranks),
        config_yaml="",
        config_dirs=contact.config_dirs,
        on_record=True,
    )
