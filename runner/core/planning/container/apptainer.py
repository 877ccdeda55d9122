"""Apptainer: a program in an image file, a child of its client, with the host's network and user.

Not tried with the engine itself: Debian has no package of it, and tests compare commands only.
"""

from __future__ import annotations

from typing import Iterator, Optional, Tuple

from runner.core.model.container import Container, ContainerProbe
from runner.core.model.facts import Facts
from runner.core.planning.container import problems
from runner.core.planning.container.base import ContainerRequest
from runner.core.spec import Mount, Spec

RENUMBERS_DEVICES = False  # `--nv` shows all of them
IGNORED_KEYS = ("shm_size", "ipc", "user", "ulimits", "pull", "entrypoint")
IMAGE_IS_FILE = True


def probe(spec: Spec) -> ContainerProbe:
    """Return what to ask a host."""
    container = spec.container
    return ContainerProbe(
        engine=(container.program, "version"),
        image=(container.program, "inspect", container.image),
        run=(
            *(container.program, "exec", "--cleanenv", "--no-home"),
            *bind_options(container.mounts),
            *(*container.extra, container.image),
        ),
        gpus=("--nv",),
    )


def container(request: ContainerRequest) -> Container:
    """Return the command of a container, which is the parent of what runs in it."""
    return Container(engine="apptainer", start=command(request))


def command(request: ContainerRequest) -> Tuple[str, ...]:
    """Return the command for a person, which takes nothing from its own environment."""
    spec = request.spec
    return (
        *(spec.container.program, "exec", "--cleanenv", "--no-home", "--pid"),
        *(word for name in request.env for word in ("--env", f"{name}={request.env[name]}")),
        *(("--nv",) if request.gpus else ()),
        *("--pwd", request.cwd, *bind_options(request.mounts), *spec.container.extra),
        *(spec.container.image, *request.argv),
    )


def bind_options(mounts: Tuple[Mount, ...]) -> Iterator[str]:
    """Yield the options for what a container sees of its host."""
    for mount in mounts:
        yield from ("--bind", f"{mount.source}:{mount.target}{':ro' if mount.read_only else ''}")


def problem(spec: Spec, facts: Facts) -> Optional[Tuple[str, str]]:
    """Return what is wrong with engine or image on a host, and what to do about it."""
    return problems.engine_or_image_problem(spec, facts)
