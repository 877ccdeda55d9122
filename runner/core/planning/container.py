"""Container planning: the container of an order, its options, and what keeps a host from it."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from runner.core.errors import Problem
from runner.core.spec import Mount, Node, Spec
from runner.core.wire.container import ALL_GPUS, Container, is_of_engine
from runner.core.wire.facts import Facts
from runner.core.wire.paths import RunPaths, kept_folder, tasks_folder
from runner.core.wire.plan import NodePlan

SWITCHES = ("privileged", "read-only", "no-healthcheck", "oom-kill-disable")
"""Options without a value, as they are mostly written; others are `--name=true`."""

FORM = "write each option with its value as one word, such as --memory=64g or --privileged"
LEAVE_OUT = "leave it out"
REFUSED = {
    **dict.fromkeys(("rm", "attach", "interactive", "init", "network", "net"), LEAVE_OUT),
    **dict.fromkeys(("help", "name", "cidfile", "tty", "pid", "hostname", "uts"), LEAVE_OUT),
    "detach": "see detach=true",
    "restart": "see relaunch.max",
    "user": "set container.user",
    "userns": "set container.user",
    "pull": "set container.pull",
    "gpus": "set cluster.nodes.NODE.gpus",
    "volume": "set container.mounts, or use --mount=…",
    "shm-size": "set container.shm_size",
}
"""Options by which a run could not be followed or ended, with the remedy."""


MARKS = {"label": ("runner.",), "env": ("RUNNER_RUN_ID", "RUNNER_NODE")}
"""How values begin by which a run is found."""


def extra_problems(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with each word of `container.extra`, and what to do instead.

    Each word is one option with its value: then none takes the image for its value, and no word is
    left that the engine would take for the image.
    """
    for word in words:
        name, is_equal, value = word[2:].partition("=")
        is_long = word.startswith("--") and bool(name)
        marks = MARKS.get(name)
        if not word.startswith("-"):
            yield f"{word!r} would be taken for the image", FORM
        elif not is_long:
            yield f"{word!r} is no long option", FORM
        elif marks and value.startswith(marks):
            message = f"--{name} is not possible: the runner finds a run by what begins with it"
            yield message, "choose another name"
        elif name in REFUSED:
            message = f"--{name} is not possible: the runner decides that itself"
            yield message, REFUSED[name]
        elif not is_equal and name not in SWITCHES:
            yield f"{word!r} has no value, and would take the next word for it", FORM


def trial_container(spec: Spec, node: Node) -> Container:
    """Return what a host tries before a run; it adds who its login is."""
    wanted = spec.container
    if not wanted.engine:
        return Container("", wanted.prefix)
    options = ("--shm-size", wanted.shm_size) if wanted.shm_size else ()
    return Container(
        engine=wanted.engine,
        program=(wanted.program,),
        image=wanted.image,
        mounts=tuple(map(_mount_record, wanted.mounts)),
        options=(*options, *wanted.extra),
        is_login=wanted.user == "login",
        gpus=() if node.gpu_count == 0 else ALL_GPUS,
    )


def wrap(spec: Spec, node: Node, facts: Facts, plan: NodePlan, tasks_hash: str) -> NodePlan:
    """Return the part of a node in a plan with its order, and its command, in a container.

    `facts` are those of the host itself.
    """
    container = trial_container(spec, node)
    order = plan.order
    program = replace(order.program, path_folder="")  # the image sets its own PATH
    if not container.engine:
        command = (*container.program, *plan.command)
        order = replace(order, program=program, container=container)
        return replace(plan, command=command, order=order)
    run_paths = RunPaths(facts.workdir, spec.run_id, node.name)
    uuids = {gpu.index: gpu.uuid for gpu in facts.gpus}
    pinned: tuple[str, ...] = ()
    if facts.infiniband:
        pinned = ("--device", "/dev/infiniband", "--cap-add", "IPC_LOCK", "--ulimit", "memlock=-1")
    container = replace(
        container,
        labels=(f"runner.run={spec.run_id}", f"runner.node={node.name}"),
        mounts=(
            *_run_mounts(spec, facts, run_paths, tasks_hash, order.keep_place),
            *container.mounts,
        ),
        options=(*pinned, *container.options),
        uid=facts.uid,
        gid=facts.gid,
        groups=facts.groups,
        gpus=tuple(uuids.get(index) or str(index) for index in plan.gpus),
        secrets=tuple(spec.secrets),
        env=facts.container.env,
    )
    cache = posixpath.join(run_paths.home, ".cache")
    user = {"USER": facts.user, "LOGNAME": facts.user}
    env = {
        "HOME": run_paths.home,
        **user,
        "XDG_CACHE_HOME": cache,
        "TORCHINDUCTOR_CACHE_DIR": posixpath.join(cache, "torchinductor"),
        "TRITON_CACHE_DIR": posixpath.join(cache, "triton"),
    }  # the image may have neither a home nor the user
    program = replace(program, env={**env, **program.env})
    order = replace(order, program=program, container=container)
    # For a person, a folder of the run is there only if the code is in it.
    in_run = f"{order.cwd}/".startswith(f"{run_paths.root}/")
    typed = replace(container, labels=(), mounts=container.mounts[0 if in_run else 1 :])
    typed_env = {"HOME": "/tmp", **user, **plan.env}  # noqa: S108
    words = typed.prefix(name="", cwd=order.cwd, env=typed_env)
    shown = {name: value for name, value in typed_env.items() if not is_of_engine(name)}
    return replace(plan, command=(*words, *plan.command), env=shown, order=order)


def _mount_record(mount: Mount) -> str:
    """Return a mount as CSV; a missing source is an error, which it is not with `--volume`."""
    fields = ["type=bind", f"src={mount.source}", f"dst={mount.target}"]
    fields += ["readonly"] if mount.read_only else []
    for index, text in enumerate(fields):
        if {*text} & {*',"\n'}:
            fields[index] = '"' + text.replace('"', '""') + '"'
    return ",".join(fields)


def _run_mounts(
    spec: Spec, facts: Facts, run_paths: RunPaths, tasks_hash: str, keep_place: str
) -> list[str]:
    """Return what a container sees of its host, in the same places: the run and its code.

    The private copy of a release is in the folder of the run.
    """
    mounts = [Mount(run_paths.root, run_paths.root)]
    if spec.task.shipped_file:
        folder = tasks_folder(facts.workdir, tasks_hash)
        mounts.append(Mount(folder, folder, read_only=True))
    elif not spec.pushes_code:
        mounts.append(Mount(facts.project, facts.project))
    if keep_place:
        kept = kept_folder(facts.workdir, keep_place, "").rstrip("/")
        mounts.append(Mount(kept, kept))
    return [_mount_record(mount) for mount in mounts]


GPU_HINT = (
    "set up NVIDIA's container toolkit there (docker: nvidia-ctk runtime configure; podman: "
    "nvidia-ctk cdi generate), or set cluster.nodes.{name}.gpus=0"
)
SUBUIDS_HINT = (
    "an administrator can install newuidmap (package uidmap) and do: usermod --add-subuids "
    "100000-165535 --add-subgids 100000-165535 {user}; or set container.user=image"
)
SEND_HINT = "{engine} save {image} | ssh {host} {engine} load"
STEPS = {
    "find": ("container.program: {said}", "install it there, or set container.program to its path"),
    "ask": ("{program} does not work: {said}", "look at its daemon there: {program} info"),
    "image": ("container.image: {image} is not on this host", f"send it there: {SEND_HINT}"),
    "pull": (
        "container.image: {image} cannot be pulled: {said}",
        f"look at its name and the network, log in to the registry there, or send it: {SEND_HINT}",
    ),
    "start": (
        "{program} cannot run {image}: {said}",
        "look at container.extra, container.shm_size and container.mounts",
    ),
}
"""The message and the hint, by the last step that was begun on a host."""

KNOWN = {
    r"(ask|pull|start): .*permission denied.*(socket|docker\.sock)": (
        "{program}: {user} may not use the socket of its daemon",
        "an administrator can do: usermod -aG docker {user} (which is as good as root)",
    ),
    r"start: .*(select device driver|unresolvable CDI devices)": (
        "{program} gives its containers no GPUs: {said}",
        GPU_HINT,
    ),
    r"start: .*(executable file not found|no such file or directory: unknown|FATAL tini|failed to "
    r"exec pid1)": (
        "container.python: {image} has no {python}",
        "set container.python to the Python in it, 3.8 or newer, or choose another image",
    ),
    r"start: .*(sub[ug]id|newuidmap|UID/GID|range of users)": (
        "{program}: {user} has no range of users to map: {said}",
        SUBUIDS_HINT,
    ),
}
"""What engines are known to say, after the step, with message and hint."""


def container_problems(spec: Spec, node: Node, facts: Facts) -> Iterator[Problem]:
    container = spec.container
    if not container:
        return
    found = facts.container
    text = f"{found.step}: {found.problem}"
    known = [KNOWN[each] for each in KNOWN if re.match(each, text, re.DOTALL)]
    wanted = len(facts.gpus) if node.gpu_count is None else min(node.gpu_count, len(facts.gpus))
    if found.problem:
        message, hint = known[0] if known else STEPS[found.step]
        if found.step == "image" and container.pull != "never":
            message += " yet, and a dry run or check pulls nothing"
        values = {
            "said": found.problem,
            "engine": container.engine,
            "program": container.program or container.prefix[0],
            "image": container.image or " ".join(container.prefix),
            "python": container.python,
            "user": facts.user,
            "name": node.name,
            "host": node.host,
        }
        yield Problem(node.name, message.format(**values), hint.format(**values))
    elif facts.python.error:
        yield Problem(node.name, f"container.python: {facts.python.error}", "choose another image")
    elif found.hostname.partition(".")[0] not in ("", facts.hostname.partition(".")[0]):
        message = f"{container.engine} runs containers on another machine, {found.hostname}"
        hint = "unset DOCKER_HOST or CONTAINER_HOST there, or: docker context use default"
        yield Problem(node.name, message, hint)
    elif container.engine and 0 <= found.gpus < wanted:
        message = f"{container.engine}: a container has {found.gpus} of the {wanted} GPUs"
        yield Problem(node.name, f"{message} for a run", GPU_HINT.format(name=node.name))


def awaits_image(spec: Spec, facts: Facts) -> bool:
    """Return whether all that a host lacks is an image which a launch would pull."""
    is_absent = facts.container.step == "image" and bool(facts.container.problem)
    return is_absent and spec.container.pull != "never" and not spec.container.fetches
