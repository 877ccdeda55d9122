"""Container problems: what keeps a host from running a container, in words, by what it answered."""

from __future__ import annotations

import re
from typing import Iterator, Optional, Tuple

from runner.core.errors import Problem
from runner.core.model.container import NOT_ASKED, TIMED_OUT
from runner.core.model.facts import Facts
from runner.core.planning.container.base import engine_of
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
    *("could not select device driver", "unresolvable CDI devices"),
    "nvidia-container-cli",
)
NOT_STARTED = (
    *("executable file not found", "no such file or directory: unknown"),
    *("permission denied: unknown", "FATAL tini", "failed to exec pid1"),
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
REFUSAL_HINT = "look at container.extra, container.ulimits, container.shm_size and container.mounts"


def container_problems(spec: Spec, node: Node, facts: Facts) -> Iterator[Problem]:
    """Yield what keeps a host from running the container of a spec."""
    if not spec.container:
        return
    for source in facts.container.mounts_missing:
        message = f"container.mounts: there is no {source}"
        yield Problem(node.name, message, "make it there, or take it out of container.mounts")
    if found := engine_of(spec.container).problem(spec, facts):
        message, hint = found
        yield Problem(node.name, message, hint)
    elif facts.python.error and not facts.container.mounts_missing:
        yield probe_problem(spec, node, facts.python.error)
    elif problem := gpu_problem(spec, node, facts):
        yield problem


def probe_problem(spec: Spec, node: Node, error: str) -> Problem:
    """Return why the interpreter did not answer in a container: it, or the engine, has failed."""
    container = spec.container
    reason = error.rpartition(NO_ANSWER)[2]
    for prefix in ("docker: ", "Error response from daemon: "):
        reason = reason.rpartition(prefix)[2]
    if SLOW_START in error:
        limit = error.rpartition(SLOW_START)[2]
        message = f"container.image: {container.image}: a container did not start within {limit}"
        return Problem(node.name, message, SLOW_START_HINT)
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
    key = "python" if NO_ANSWER in error else "image"
    key = "entrypoint" if (container.entrypoint == "image") else key
    hint = ENTRYPOINT_HINT if (container.entrypoint == "image") else NO_PYTHON_HINT
    return Problem(node.name, f"container.{key}: {container.image}: {error}", hint)


def gpu_problem(spec: Spec, node: Node, facts: Facts) -> Optional[Problem]:
    """Return the lack of GPUs in a container, which shows all that there are."""
    wanted = len(facts.gpus) if node.gpu_count is None else min(node.gpu_count, len(facts.gpus))
    inside = facts.container.inside.gpus
    if inside < 0 or inside >= wanted:
        return None
    message = f"{spec.container.engine}: a container has {inside} of the {wanted} GPUs for a run"
    return Problem(node.name, message, GPU_HINT.format(name=node.name))


def engine_or_image_problem(spec: Spec, facts: Facts) -> Optional[Tuple[str, str]]:
    """Return what is wrong with engine or image on a host, and what to do about it."""
    answers, name = facts.container, spec.container.program
    if not answers.program:
        hint = "install it there, or set container.program to its path"
        where = "" if "/" in name else " on its PATH"
        return f"container.program: there is no {name}{where}", hint
    if answers.is_elsewhere:
        message = f"{name} is set to use {answers.endpoint.output.strip()}, another machine"
        return f"{message}, whose folders would be mounted", elsewhere_hint(spec)
    if not answers.engine.ok:
        return engine_problem(name, facts)
    must_pull = spec.container.pull == "always" and answers.pull != NOT_ASKED
    if not answers.image.ok or (must_pull and not answers.pull.ok):
        return image_problem(spec, facts)
    machine = answers.image.output.strip().rpartition("/")[2]
    if facts.machine and facts.machine not in MACHINES.get(machine, (facts.machine,)):
        message = f"container.image: {spec.container.image} is for {machine}"
        hint = "choose an image for that processor, or set container.pull=always"
        return f"{message}, and this host is a {facts.machine}", hint
    return None


def elsewhere_hint(spec: Spec) -> str:
    """Return what to do about an engine on another machine."""
    name = spec.container.program
    undo = f"DOCKER_HOST unset there, and `{name} context use default`"
    undo = "CONTAINER_HOST unset there" if spec.container.engine == "podman" else undo
    return f"name that machine in cluster.nodes, or have {undo}"


def engine_problem(name: str, facts: Facts) -> Tuple[str, str]:
    """Return why an engine does not answer."""
    lines = facts.container.engine.output.splitlines(keepends=True)
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
    if facts.container.engine.code == TIMED_OUT:
        hint = "look at it there: systemctl status docker; journalctl -u docker"
        return f"{name}: {daemon} did not answer in time: it hangs", hint
    return f"{name} does not work: {last_line(text)}", f"try it there: {name} version"


def image_problem(spec: Spec, facts: Facts) -> Tuple[str, str]:
    """Return why an image is not on a host."""
    container, image, pull = spec.container, spec.container.image, facts.container.pull
    if facts.container.image.ok:
        message = f"container.pull: {image} is there, and cannot be pulled anew"
        hint = "container.pull=missing uses the one that is there"
        return f"{message}: {last_line(pull.output)}", hint
    message = f"container.image: {image} is not on this host"
    if engine_of(container).IMAGE_IS_FILE:
        reason = last_line(facts.container.image.output)
        hint = "put the file there: each host reads its own"
        return f"container.image: {image} cannot be read: {reason}", hint
    if container.pull == "never" or not container.fetches:
        reason, hint = _absence_reason(container)
        return message + reason, hint
    if "no space left" in pull.output:
        hint = f"free some room there (see {spec.container.program} system df), or load it by hand"
        return f"{message}, and there is no room for it: its disk is full", hint
    if pull.code == TIMED_OUT:
        return f"{message}, and could not be pulled in time", "pull it there by hand first"
    hint = "look at the name and the network, log in to the registry there, or load it by hand"
    return f"{message}, and cannot be pulled: {last_line(pull.output)}", hint


def _absence_reason(container: ContainerSpec) -> Tuple[str, str]:
    """Return why nobody tried to pull an image, and what to do about it."""
    if container.pull == "never":
        return ", and container.pull is never", "load it there, or set container.pull"
    hint = f"launch it, or pull it there by hand: {container.program} pull {container.image}"
    return " yet, and a dry run or check pulls nothing", hint


def awaits_image(spec: Spec, facts: Facts) -> bool:
    """Return whether all that a host lacks is an image which a launch would pull."""
    container, answers = spec.container, facts.container
    is_absent = answers.engine.ok and not answers.is_elsewhere and not answers.image.ok
    may_pull = container.pull != "never" and not engine_of(container).IMAGE_IS_FILE
    return not container.fetches and may_pull and is_absent and not answers.mounts_missing


def last_line(text: str) -> str:
    """Return the last line of what an engine printed, without its prefix."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(ADVICE)] or ["(no output)"]
    return re.sub(r"^(docker|Error( response from daemon)?|error): *", "", lines[-1])[:300]
