"""Container planning: an order's command, wrapped in those of a container engine.

An engine is a module of this package with four pure functions; no other place names it.
"""

from __future__ import annotations

import hashlib
import importlib
import posixpath
from dataclasses import dataclass, replace
from typing import Dict, Mapping, Optional, Protocol, Sequence, Tuple, cast

from runner.core.model.container import Container, ContainerProbe
from runner.core.model.facts import Facts
from runner.core.model.plan import NodePlan
from runner.core.protocol.paths import RunPaths, tasks_folder
from runner.core.spec import ContainerSpec, Mount, Node, Spec

ENGINES = ("docker", "podman", "apptainer")
"""The modules of this package that are engines."""


@dataclass(frozen=True)
class ContainerRequest:
    """What an engine is to run: `argv` in `cwd`, with these names of the environment."""

    spec: Spec
    facts: Facts
    name: str  # of the container, unique on its host
    labels: Tuple[Tuple[str, str], ...]
    mounts: Tuple[Mount, ...]
    gpus: Tuple[str, ...]  # UUIDs of the devices
    cwd: str
    argv: Tuple[str, ...]
    env: Mapping[str, str]


class Engine(Protocol):
    """What each module of an engine has.

    `RENUMBERS_DEVICES`: whether a container has only the chosen GPUs, numbered from 0.
    `IGNORED_KEYS`: the keys of `container` that mean nothing to it.
    `IMAGE_IS_FILE`: whether an image is a file, which nobody pulls.
    """

    RENUMBERS_DEVICES: bool
    IGNORED_KEYS: Tuple[str, ...]
    IMAGE_IS_FILE: bool

    def probe(self, spec: Spec) -> ContainerProbe:
        """Return what to ask a host."""

    def container(self, request: ContainerRequest) -> Container:
        """Return the commands of a container whose program reads its environment by itself."""

    def command(self, request: ContainerRequest) -> Tuple[str, ...]:
        """Return one command that does the same for a person, with names of `env` to be set.

        All but HOME, whose value is in it.
        """

    def problem(self, spec: Spec, facts: Facts) -> Optional[Tuple[str, str]]:
        """Return what is wrong with engine or image on a host, and what to do about it."""


def engine_of(container: ContainerSpec) -> Engine:
    """Return the engine of a container."""
    return cast(Engine, importlib.import_module(f"{__package__}.{container.engine}"))


def facts_inside(facts: Facts) -> Facts:
    """Return the facts as programs in a container meet them.

    Its Python is also that of our shim; of the host's environment nothing is there.
    """
    return replace(facts, host_python=facts.python.executable, preset_env={})


def container_environment(run_paths: RunPaths, facts: Facts) -> Dict[str, str]:
    """Return variables by which programs find a home and their user: the image may have neither."""
    home = run_paths.home
    cache = posixpath.join(home, ".cache")
    return {
        "HOME": home,
        "USER": facts.user,
        "LOGNAME": facts.user,
        "XDG_CACHE_HOME": cache,
        "TORCHINDUCTOR_CACHE_DIR": posixpath.join(cache, "torchinductor"),
        "TRITON_CACHE_DIR": posixpath.join(cache, "triton"),
    }


def container_name(run_id: str, node: str, attempt: int) -> str:
    """Return a name that says which run it is, and is no other container's."""
    digest = hashlib.sha256(f"{node}/{attempt}".encode()).hexdigest()[:8]
    return f"runner-{run_id}-{digest}"


def run_mounts(spec: Spec, facts: Facts, run_paths: RunPaths, tasks_hash: str) -> Tuple[Mount, ...]:
    """Return what a container sees of its host, in the same places: the run, its code, the user's.

    The private copy of a release is in the folder of the run.
    """
    mounts = [Mount(run_paths.root, run_paths.root)]
    if spec.task.shipped_file:
        folder = tasks_folder(facts.workdir, tasks_hash)
        mounts.append(Mount(folder, folder, read_only=True))
    elif not spec.pushes_code:
        mounts.append(Mount(facts.project, facts.project))
    return (*mounts, *spec.container.mounts)


def device_uuids(facts: Facts, indices: Sequence[int]) -> Tuple[str, ...]:
    """Return the UUIDs of GPUs, or their indices where the driver tells none."""
    by_index = {gpu.index: gpu.uuid for gpu in facts.gpus}
    return tuple(by_index.get(index) or str(index) for index in indices)


def wrap(spec: Spec, node: Node, facts: Facts, plan: NodePlan, tasks_hash: str) -> NodePlan:
    """Return the part of a node in a plan with its command, and its order, run in a container.

    `facts` are those of the host itself.
    """
    order = plan.order
    engine, run_paths = engine_of(spec.container), RunPaths(facts.workdir, spec.run_id, node.name)
    name = container_name(spec.run_id, node.name, order.attempt)
    marks = {"RUNNER_RUN_ID": spec.run_id, "RUNNER_NODE": node.name}
    request = ContainerRequest(
        spec=spec,
        facts=facts,
        name=name,
        labels=(("runner.run", spec.run_id), ("runner.node", node.name)),
        mounts=run_mounts(spec, facts, run_paths, tasks_hash),
        gpus=device_uuids(facts, plan.gpus),
        cwd=order.cwd,
        argv=plan.command,
        env=plan.env,
    )
    entry = (facts.python.executable, "-I", "-S", run_paths.container_entry)
    argv = (*entry, run_paths.attempt_folder(order.attempt), *order.argv)
    container = engine.container(replace(request, argv=argv, env=marks))
    container = replace(
        container,
        env=facts.container.env,
        secrets=tuple(spec.secrets),
        devices=len(plan.gpus),
    )
    client = (facts.host_python, "-I", "-S", run_paths.container_client, run_paths.order)
    order = replace(
        order,
        argv=(*client, run_paths.attempt_folder(order.attempt)),
        env={**container_environment(run_paths, facts), **order.env},
        container=container,
        path_folder="",  # a folder of the image's, which sets its own PATH
    )
    typed = for_person(request, run_paths)
    shown = {name: value for name, value in typed.env.items() if name != "HOME"}
    return replace(plan, command=engine.command(typed), env=shown, order=order)


def for_person(request: ContainerRequest, run_paths: RunPaths) -> ContainerRequest:
    """Return what a person would run: a folder of the run is there only if the code is in it.

    HOME is the container's alone: the engine's client finds its own settings by it.
    """
    user = request.facts.user
    in_run = f"{request.cwd}/".startswith(f"{run_paths.root}/")
    mounts = request.mounts if in_run else request.mounts[1:]
    env = {"HOME": "/tmp", "USER": user, "LOGNAME": user, **request.env}  # noqa: S108
    return replace(request, mounts=mounts, env=env)
