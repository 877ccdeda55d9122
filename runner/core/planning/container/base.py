"""Container planning: an order's command, wrapped in those of a container engine.

An engine is a module of this package with four pure functions; no other place names it.
"""

from __future__ import annotations

import hashlib
import importlib
import posixpath
from dataclasses import dataclass, replace
from typing import Dict, Iterator, Mapping, Optional, Protocol, Sequence, Tuple, cast

from runner.core.errors import Problem
from runner.core.model.container import Container, ContainerProbe, Mount
from runner.core.model.facts import Facts
from runner.core.model.plan import NodePlan
from runner.core.model.spec import Node, Spec
from runner.core.protocol.paths import RunPaths, tasks_folder

ENGINES = ("docker", "podman", "apptainer", "enroot")
"""The modules of this package that are engines."""

NO_PYTHON_HINT = "set container.python to the Python in it, 3.8 or newer, or choose another image"
GPU_HINT = (
    "set up NVIDIA's container toolkit there (docker: nvidia-ctk runtime configure; podman: "
    "nvidia-ctk cdi generate), or set cluster.nodes.{name}.gpus=0"
)
GPU_FAILURES = (
    *("could not select device driver", "unresolvable CDI devices"),
    "nvidia-container-cli",
)
NOT_STARTED = (
    *("executable file not found", "no such file or directory: unknown"),
    *("permission denied: unknown", "FATAL tini", "failed to exec pid1"),
)
FORBIDDEN_HINT = "set container.user=image, or have the image let everyone read and start it"
ENGINE_REFUSAL = "ended with exit code 125 "
REFUSAL_HINT = "look at container.extra, container.ulimits, container.shm_size and container.mounts"


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
    """

    RENUMBERS_DEVICES: bool

    def probe(self, spec: Spec) -> ContainerProbe:
        """Return what to ask a host."""

    def container(self, request: ContainerRequest) -> Container:
        """Return the commands of a container whose program reads its environment by itself."""

    def command(self, request: ContainerRequest) -> Tuple[str, ...]:
        """Return one command that does the same for a person, with names of `env` to be set."""

    def problem(self, spec: Spec, facts: Facts) -> Optional[Tuple[str, str]]:
        """Return what is wrong with engine or image on a host, and what to do about it."""


def engine_of(spec: Spec) -> Engine:
    """Return the engine of a spec that has one."""
    module = importlib.import_module(f"{__package__}.{spec.container.engine}")
    return cast(Engine, module)


def container_problems(spec: Spec, node: Node, facts: Facts) -> Iterator[Problem]:
    """Yield what keeps a host from running the container of a spec."""
    if not spec.container:
        return
    for source in facts.container.mounts_missing:
        message = f"container.mounts: there is no {source}"
        yield Problem(node.name, message, "make it there, or take it out of container.mounts")
    if found := engine_of(spec).problem(spec, facts):
        message, hint = found
        yield Problem(node.name, message, hint)
    elif facts.python.error and not facts.container.mounts_missing:
        yield probe_problem(spec, node, facts.python.error)
    elif problem := gpu_problem(spec, node, facts):
        yield problem


def probe_problem(spec: Spec, node: Node, error: str) -> Problem:
    """Return why the interpreter did not answer in a container: it, or the engine, has failed."""
    container = spec.container
    reason = error.rpartition(": docker: ")[2].rpartition("Error response from daemon: ")[2]
    if any(text in error for text in GPU_FAILURES):
        message = f"{container.engine} gives its containers no GPUs: {reason}"
        return Problem(node.name, message, GPU_HINT.format(name=node.name))
    if any(text in error for text in NOT_STARTED) and "ermission denied" in error:
        message = (
            f"container.python: its user may not start {container.python} in {container.image}"
        )
        return Problem(node.name, message, FORBIDDEN_HINT)
    if any(text in error for text in NOT_STARTED):
        message = f"container.python: {container.image} has no {container.python}"
        return Problem(node.name, message, NO_PYTHON_HINT)
    if ENGINE_REFUSAL in error:
        message = f"{container.engine} refuses a container of {container.image}: {reason}"
        return Problem(node.name, message, REFUSAL_HINT)
    message = f"container.image: {container.image}: {error}"
    return Problem(node.name, message, NO_PYTHON_HINT)


def gpu_problem(spec: Spec, node: Node, facts: Facts) -> Optional[Problem]:
    """Return the lack of GPUs in a container, which shows all that there are."""
    wanted = len(facts.gpus) if node.gpu_count is None else min(node.gpu_count, len(facts.gpus))
    inside = facts.container.inside.gpus
    if inside < 0 or inside >= wanted:
        return None
    message = f"{spec.container.engine}: a container has {inside} of the {wanted} GPUs for a run"
    return Problem(node.name, message, GPU_HINT.format(name=node.name))


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
    engine, run_paths = engine_of(spec), RunPaths(facts.workdir, spec.run_id, node.name)
    env = {**container_environment(run_paths, facts), **plan.env}
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
        env=env,
    )
    entry = (facts.python.executable, "-I", "-S", run_paths.container_entry)
    argv = (*entry, run_paths.attempt_folder(order.attempt), *order.argv)
    container = engine.container(replace(request, argv=argv, env=marks))
    container = replace(container, secrets=tuple(spec.secrets), devices=len(plan.gpus))
    client = (facts.host_python, "-I", "-S", run_paths.container_client, run_paths.order)
    order = replace(
        order,
        argv=(*client, run_paths.attempt_folder(order.attempt)),
        env={**container_environment(run_paths, facts), **order.env},
        container=container,
        path_folder="",  # a folder of the image's, which sets its own PATH
    )
    return replace(plan, command=engine.command(request), env=env, order=order)
