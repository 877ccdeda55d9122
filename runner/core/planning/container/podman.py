"""Podman: as docker, without a daemon: its monitor, conmon, is the parent of a container.

GPUs are chosen by CDI, the device names of its runtime: some versions ignore `--gpus`. Without root
it maps users: `keep-id` makes the login's own number inside that number outside, too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Optional, Sequence, Tuple

from runner.core.model.container import Container, ContainerProbe
from runner.core.model.facts import Facts
from runner.core.planning.container import docker, problems
from runner.core.planning.container.base import ContainerRequest
from runner.core.spec import Spec

RENUMBERS_DEVICES = True
IGNORED_KEYS = ()
IMAGE_IS_FILE = False
ROOTLESS, WITHOUT_SUBUIDS = "rootless", "without subuids"
VERSION_FORMAT = (
    "{{.Version.Version}}{{if .Host.Security.Rootless}} "
    f"{ROOTLESS}{{{{if le (len .Host.IDMappings.UIDMap) 1}}}} {WITHOUT_SUBUIDS}"
    "{{end}}{{end}}"
)
SUBUIDS_HINT = (
    "an administrator can install newuidmap (package uidmap) and do: usermod --add-subuids "
    "100000-165535 --add-subgids 100000-165535 {user}; or set container.user=image"
)


def probe(spec: Spec) -> ContainerProbe:
    """Return what to ask a host."""
    program = spec.container.program
    made = docker.probe(spec)
    return replace(
        made,
        engine=(program, "info", "--format", VERSION_FORMAT),
        endpoint=("/bin/sh", "-c", 'echo "${CONTAINER_HOST-}"'),
        gpus=("--device", "nvidia.com/gpu=all"),
        user=(),  # it would need `--userns keep-id` without root
        group=(),
    )


def container(request: ContainerRequest) -> Container:
    """Return the commands of a container."""
    asked = as_for_docker(request)
    made = docker.container(asked)
    create = with_gpus(made.create, request, request.gpus)
    # Who is not root here is root in there.
    reclaim = tuple(docker.reclaim(asked, 0, 0))
    return replace(made, engine="podman", create=create, reclaim=reclaim)


def command(request: ContainerRequest) -> Tuple[str, ...]:
    """Return the command that does the same for a person."""
    return with_gpus(docker.command(as_for_docker(request)), request, request.gpus)


def as_for_docker(request: ContainerRequest) -> ContainerRequest:
    """Return a request without what is asked for in another way, or cannot be had.

    Without root a group has no rights of the host's, and one above the range is refused.
    """
    facts = replace(request.facts, groups=()) if is_rootless(request) else request.facts
    return replace(request, gpus=(), facts=facts)


def is_rootless(request: ContainerRequest) -> bool:
    """Whether the user of the login, who is not root, has the same number inside."""
    return request.facts.uid != 0 and (request.spec.container.user == "login")


def with_gpus(
    words: Sequence[str], request: ContainerRequest, gpus: Sequence[str]
) -> Tuple[str, ...]:
    """Return a command with devices by their CDI names: `--gpus` is ignored by some versions."""
    at = len(words) - len(request.argv) - 1
    devices = [word for gpu in gpus for word in ("--device", f"nvidia.com/gpu={gpu}")]
    names = ("--userns", "keep-id") if is_rootless(request) else ()
    return (*words[:at], *names, *devices, *words[at:])


def problem(spec: Spec, facts: Facts) -> Optional[Tuple[str, str]]:
    """Return what is wrong with engine or image on a host, and what to do about it."""
    engine, name = facts.container.engine, spec.container.program
    if facts.container.program and not engine.ok:  # docker's reasons are about its daemon
        reason = "no answer in time" if engine.code == -1 else problems.last_line(engine.output)
        return f"{name} does not work: {reason}", f"try it there: {name} info"
    found = problems.engine_or_image_problem(spec, facts)
    if not found and (spec.container.user == "login") and WITHOUT_SUBUIDS in engine.output:
        message = f"{name}: {facts.user} has no range of users to map"
        return message, SUBUIDS_HINT.format(user=facts.user)
    return found
