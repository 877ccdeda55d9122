"""Container problems: what keeps a host from running a container, in words, by what it answered."""

from __future__ import annotations

import re
from typing import Iterator, Optional, Tuple

from runner.core.errors import Problem
from runner.core.model.container import NOT_ASKED, TIMED_OUT
from runner.core.model.facts import Facts
from runner.core.planning.container.engines import WITHOUT_SUBUIDS
from runner.core.spec import ContainerSpec, Node, Spec

MACHINES = {
    "amd64": ("x86_64", "amd64"),
    "arm64": ("aarch64", "arm64"),
    "ppc64le": ("ppc64le",),
    "386": ("i386", "i686"),
}
"""The kinds of processor, as `uname -m` prints them, by the architecture of an image."""
ADVICE = ("See '", "Run '")  # what an engine prints after its reason
NO_PYTHON_HINT = "set container.python to the Python in it, 3.8 or newer, or choose another image"
GPU_HINT = (
    "set up NVIDIA's container toolkit there (docker: nvidia-ctk runtime configure; podman: "
    "nvidia-ctk cdi generate), or set cluster.nodes.{name}.gpus=0"
)
GPU_FAILURES = (
    "could not select device driver",
    "unresolvable CDI devices",
    "nvidia-container-cli",
)
NOT_STARTED = (
    "executable file not found",
    "no such file or directory: unknown",
    "permission denied: unknown",
    "FATAL tini",
    "failed to exec pid1",
)
FORBIDDEN_HINT = "set container.user=image, or have the image let everyone read and start it"
NO_ANSWER = " without an answer: "
ENGINE_REFUSAL = "ended with exit code 125 "
ENTRYPOINT_HINT = (
    "its entry point has to run the words that it is given; leave container.entrypoint out for "
    "one that is a launcher itself"
)
SLOW_START = " in a container: no answer within "
SLOW_START_HINT = (
    "look at the engine and its disk there, or raise container.prepare_timeout_s (of which a start "
    "has 300 s at most)"
)
SUBUIDS_HINT = (
    "an administrator can install newuidmap (package uidmap) and do: usermod --add-subuids "
    "100000-165535 --add-subgids 100000-165535 {user}; or set container.user=image"
)
REFUSAL_HINT = "look at container.extra, container.ulimits, container.shm_size and container.mounts"


def container_problems(spec: Spec, node: Node, facts: Facts) -> Iterator[Problem]:
    """Yield what keeps a host from running the container of a spec."""
    if not spec.container:
        return
    for source in facts.container.mounts_missing:
        message = f"container.mounts: there is no {source}"
        yield Problem(node.name, message, "make it there, or take it out of container.mounts")
    wanted = len(facts.gpus) if node.gpu_count is None else min(node.gpu_count, len(facts.gpus))
    inside = facts.container.inside.gpus
    if found := _engine_or_image_problem(spec, facts):
        message, hint = found
        yield Problem(node.name, message, hint)
    elif facts.python.error and not facts.container.mounts_missing:
        yield _probe_problem(spec, node, facts.python.error)
    elif 0 <= inside < wanted:
        message = f"{spec.container.engine}: a container has {inside} of the {wanted} GPUs"
        yield Problem(node.name, f"{message} for a run", GPU_HINT.format(name=node.name))


def _probe_problem(spec: Spec, node: Node, error: str) -> Problem:
    """Return why the interpreter did not answer in a container: it, or the engine, has failed."""
    container = spec.container
    image = container.image
    python = container.python
    reason = error.rpartition(NO_ANSWER)[2]
    for prefix in ("docker: ", "Error response from daemon: "):
        reason = reason.rpartition(prefix)[2]
    was_not_started = any(text in error for text in NOT_STARTED)
    hint = NO_PYTHON_HINT
    if SLOW_START in error:
        limit = error.rpartition(SLOW_START)[2]
        message = f"container.image: {image}: a container did not start within {limit}"
        hint = SLOW_START_HINT
    elif any(text in error for text in GPU_FAILURES):
        message = f"{container.engine} gives its containers no GPUs: {reason}"
        hint = GPU_HINT.format(name=node.name)
    elif was_not_started and "ermission denied" in error:
        message = f"container.python: its user may not start {python} in {image}"
        hint = FORBIDDEN_HINT
    elif was_not_started:
        message = f"container.python: {image} has no {python}"
    elif ENGINE_REFUSAL in error:
        message = f"{container.engine} refuses a container of {image}: {reason}"
        hint = REFUSAL_HINT
    elif container.entrypoint == "image":
        message = f"container.entrypoint: {image}: {error}"
        hint = ENTRYPOINT_HINT
    else:
        key = "python" if NO_ANSWER in error else "image"
        message = f"container.{key}: {image}: {error}"
    return Problem(node.name, message, hint)


def _engine_or_image_problem(spec: Spec, facts: Facts) -> Optional[Tuple[str, str]]:
    """Return what is wrong with engine or image on a host, and what to do about it."""
    container = spec.container
    answers = facts.container
    name = container.program
    if not answers.program:
        hint = "install it there, or set container.program to its path"
        where = "" if "/" in name else " on its PATH"
        return f"container.program: there is no {name}{where}", hint
    if answers.is_elsewhere or not answers.engine.ok:
        return _engine_problem(container, facts)
    must_pull = container.pull == "always" and answers.pull != NOT_ASKED
    if not answers.image.ok or (must_pull and not answers.pull.ok):
        return _image_problem(container, facts)
    machine = answers.image.output.strip().rpartition("/")[2]
    if facts.machine and facts.machine not in MACHINES.get(machine, (facts.machine,)):
        message = f"container.image: {container.image} is for {machine}"
        hint = "choose an image for that processor, or set container.pull=always"
        return f"{message}, and this host is a {facts.machine}", hint
    if container.user == "image" or WITHOUT_SUBUIDS not in answers.engine.output:
        return None
    message = f"{name}: {facts.user} has no range of users to map"
    return message, SUBUIDS_HINT.format(user=facts.user)


def _engine_problem(container: ContainerSpec, facts: Facts) -> Tuple[str, str]:
    """Return why an engine does not answer."""
    answer = facts.container.engine
    name = container.program
    if facts.container.is_elsewhere:
        address = facts.container.endpoint.output.strip()
        undo = f"DOCKER_HOST unset there, and `{name} context use default`"
        if container.engine == "podman":
            undo = "CONTAINER_HOST unset there"
        message = f"{name} is set to use {address}, another machine, whose folders would be mounted"
        return message, f"name that machine in cluster.nodes, or have {undo}"
    if container.engine == "podman":  # docker's reasons are about its daemon
        reason = "no answer in time" if answer.code == TIMED_OUT else _last_line(answer.output)
        return f"{name} does not work: {reason}", f"try it there: {name} info"
    lines = answer.output.splitlines(keepends=True)
    text = "".join(line for line in lines if not line.startswith("WARNING: "))
    address = facts.container.endpoint.output.strip() if facts.container.endpoint.ok else ""
    daemon = f"its daemon{f' ({address})' if address else ''}"
    if "permission denied" in text:
        message = f"{name}: {facts.user} may not use the socket of {daemon}"
        hint = (
            f"an administrator can do: usermod -aG docker {facts.user} (which is as good as root)"
        )
        return message, hint
    if "Cannot connect" in text or "daemon running" in text:
        hint = (
            "start it there: systemctl start docker; or name the socket of another one:\n"
            "cluster.setup=['export DOCKER_HOST=unix:///PATH']"
        )
        return f"{name}: {daemon} does not run", hint
    if answer.code == TIMED_OUT:
        hint = "look at it there: systemctl status docker; journalctl -u docker"
        return f"{name}: {daemon} did not answer in time: it hangs", hint
    return f"{name} does not work: {_last_line(text)}", f"try it there: {name} version"


def _image_problem(container: ContainerSpec, facts: Facts) -> Tuple[str, str]:
    """Return why an image is not on a host."""
    image = container.image
    pull = facts.container.pull
    if facts.container.image.ok:
        message = f"container.pull: {image} is there, and cannot be pulled anew"
        hint = "container.pull=missing uses the one that is there"
        return f"{message}: {_last_line(pull.output)}", hint
    if container.engine == "apptainer":
        reason = _last_line(facts.container.image.output)
        hint = "put the file there: each host reads its own"
        return f"container.image: {image} cannot be read: {reason}", hint
    if container.pull == "never":
        reason = ", and container.pull is never"
        hint = "load it there, or set container.pull"
    elif not container.fetches:
        reason = " yet, and a dry run or check pulls nothing"
        hint = f"launch it, or pull it there by hand: {container.program} pull {image}"
    elif "no space left" in pull.output:
        reason = ", and there is no room for it: its disk is full"
        hint = f"free some room there (see {container.program} system df), or load it by hand"
    elif pull.code == TIMED_OUT:
        reason = ", and could not be pulled in time"
        hint = "pull it there by hand first"
    else:
        reason = f", and cannot be pulled: {_last_line(pull.output)}"
        hint = "look at the name and the network, log in to the registry there, or load it by hand"
    return f"container.image: {image} is not on this host{reason}", hint


def awaits_image(spec: Spec, facts: Facts) -> bool:
    """Return whether all that a host lacks is an image which a launch would pull."""
    container = spec.container
    answers = facts.container
    is_absent = answers.engine.ok and not answers.is_elsewhere and not answers.image.ok
    may_pull = container.pull != "never" and container.engine != "apptainer"
    return not container.fetches and may_pull and is_absent and not answers.mounts_missing


def _last_line(text: str) -> str:
    """Return the last line of what an engine printed, without its prefix."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(ADVICE)] or ["(no output)"]
    return re.sub(r"^(docker|Error( response from daemon)?|error): *", "", lines[-1])[:300]
