"""Podman: as docker, without a daemon of its own; GPUs by CDI, the device names of its runtime."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional, Sequence, Tuple

from runner.core.model.container import Container, ContainerProbe
from runner.core.model.facts import Facts
from runner.core.model.spec import Spec
from runner.core.planning.container import docker
from runner.core.planning.container.base import ContainerRequest

RENUMBERS_DEVICES = True


def probe(spec: Spec) -> ContainerProbe:
    """Return what to ask a host."""
    program = spec.container.program
    made = docker.probe(spec)
    return replace(
        made,
        engine=(program, "version", "--format", "{{.Client.Version}}"),
        endpoint=("/bin/sh", "-c", 'echo "${CONTAINER_HOST-}"'),
        environ=("PATH", "CONTAINER_HOST"),
        store=(program, "info", "--format", "{{.Store.GraphRoot}}"),
        gpus=("--device", "nvidia.com/gpu=all"),
        user=(),  # it would need `--userns keep-id` without root
        group=(),
    )


def container(request: ContainerRequest) -> Container:
    """Return the commands of a container."""
    made = docker.container(replace(request, gpus=()))
    create = with_gpus(made.create, request, request.gpus)
    return replace(made, engine="podman", create=create)


def command(request: ContainerRequest) -> Tuple[str, ...]:
    """Return the command that does the same for a person."""
    return with_gpus(docker.command(replace(request, gpus=())), request, request.gpus)


def with_gpus(
    words: Sequence[str], request: ContainerRequest, gpus: Sequence[str]
) -> Tuple[str, ...]:
    """Return a command with devices by their CDI names: `--gpus` is ignored by some versions."""
    at = len(words) - len(request.argv) - 1
    devices = [word for gpu in gpus for word in ("--device", f"nvidia.com/gpu={gpu}")]
    is_rootless = request.facts.uid != 0 and request.spec.container.host_user
    names = ("--userns", "keep-id") if is_rootless else ()
    return (*words[:at], *names, *devices, *words[at:])


def problem(spec: Spec, facts: Facts) -> Optional[Tuple[str, str]]:
    """Return what is wrong with engine or image on a host, and what to do about it."""
    return docker.problem(spec, facts)
