"""Container planning: an order's command, wrapped in those of a container engine."""

from __future__ import annotations

import hashlib
import posixpath
from dataclasses import replace
from typing import List

from runner.core.launch import command_words, environment
from runner.core.model.facts import Facts
from runner.core.model.plan import NodePlan
from runner.core.planning.container import engines
from runner.core.planning.container.engines import ContainerRequest
from runner.core.protocol.paths import RunPaths, tasks_folder
from runner.core.spec import Mount, Node, Spec


def wrap(spec: Spec, node: Node, facts: Facts, plan: NodePlan, tasks_hash: str) -> NodePlan:
    """Return the part of a node in a plan with its command, and its order, run in a container.

    `facts` are those of the host itself.
    """
    order = plan.order
    run_paths = RunPaths(facts.workdir, spec.run_id, node.name)
    attempt_folder = run_paths.attempt_folder(order.attempt)
    digest = hashlib.sha256(f"{node.name}/{order.attempt}".encode()).hexdigest()[:8]
    uuids = {gpu.index: gpu.uuid for gpu in facts.gpus}
    python = (facts.python.executable, "-I", "-S")
    request = ContainerRequest(
        spec=spec,
        facts=facts,
        name=f"runner-{spec.run_id}-{digest}",
        labels={"runner.run": spec.run_id, "runner.node": node.name},
        mounts=(*_run_mounts(spec, facts, run_paths, tasks_hash), *spec.container.mounts),
        gpus=tuple(uuids.get(index) or str(index) for index in plan.gpus),
        cwd=order.cwd,
        argv=(*python, run_paths.container_entry, attempt_folder, *command_words(order)),
        env={"RUNNER_RUN_ID": spec.run_id, "RUNNER_NODE": node.name},
    )
    client = (facts.host_python, "-I", "-S", run_paths.container_client, run_paths.order)
    home = run_paths.home
    cache = posixpath.join(home, ".cache")
    user = {"USER": facts.user, "LOGNAME": facts.user}
    env = {
        "HOME": home,
        **user,
        "XDG_CACHE_HOME": cache,
        "TORCHINDUCTOR_CACHE_DIR": posixpath.join(cache, "torchinductor"),
        "TRITON_CACHE_DIR": posixpath.join(cache, "triton"),
    }  # the image may have neither a home nor the user
    # The image sets its own PATH.
    program = replace(order.program, env={**env, **order.program.env}, path_folder="")
    order = replace(order, program=program)
    container = replace(
        engines.container(request),
        client=(*client, attempt_folder),
        given=environment(order),
        env=facts.container.env,
        secrets=tuple(spec.secrets),
        devices=len(plan.gpus),
    )
    order = replace(order, container=container)
    # For a person, a folder of the run is there only if the code is in it. HOME is the container's
    # alone: the engine's client finds its own settings by it.
    in_run = f"{request.cwd}/".startswith(f"{run_paths.root}/")
    typed = replace(
        request,
        mounts=request.mounts if in_run else request.mounts[1:],
        argv=plan.command,
        env={"HOME": "/tmp", **user, **plan.env},  # noqa: S108
    )
    shown = {name: value for name, value in typed.env.items() if name != "HOME"}
    return replace(plan, command=engines.command(typed), env=shown, order=order)


def _run_mounts(spec: Spec, facts: Facts, run_paths: RunPaths, tasks_hash: str) -> List[Mount]:
    """Return what a container sees of its host, in the same places: the run and its code.

    The private copy of a release is in the folder of the run.
    """
    mounts = [Mount(run_paths.root, run_paths.root)]
    if spec.task.shipped_file:
        folder = tasks_folder(facts.workdir, tasks_hash)
        mounts.append(Mount(folder, folder, read_only=True))
    elif not spec.pushes_code:
        mounts.append(Mount(facts.project, facts.project))
    return mounts
