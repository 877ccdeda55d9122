"""Docker: a container is created, then started with its output attached, and removed by name.

`docker run` leaves a window in which a container that nobody waits for any more may start. Nothing
is left to `--rm`: exit code and reason are read from the container first.
"""

from __future__ import annotations

import re
from typing import Iterator, Optional, Sequence, Tuple

from runner.core.model.container import NOT_ASKED, TIMED_OUT, Container, ContainerProbe, Mount
from runner.core.model.facts import Facts
from runner.core.model.spec import Spec
from runner.core.planning.container.base import ContainerRequest

RENUMBERS_DEVICES = True
ADVICE = ("See '", "Run '")  # what an engine prints after its reason
PULL_QUIETLY = ("pull", "--quiet")
INFINIBAND = "/dev/infiniband"
STATE_FORMAT = "{{.State.ExitCode}} {{.State.OOMKilled}} {{.State.Status}} {{.State.Error}}"
IMAGE_FORMAT = "{{.Os}}/{{.Architecture}}"
USUAL_ENDPOINT = "unix:///var/run/docker.sock"
ENDPOINT_FORMAT = "{{.Endpoints.docker.Host}}"
ENDPOINT_SCRIPT = """\
[ -z "$DOCKER_HOST" ] || { echo "$DOCKER_HOST"; exit; }
exec "$0" context inspect --format "$1"
"""
MACHINES = {
    "amd64": ("x86_64", "amd64"),
    "arm64": ("aarch64", "arm64"),
    "ppc64le": ("ppc64le",),
    "386": ("i386", "i686"),
}
"""The kinds of processor, as `uname -m` prints them, by the architecture of an image."""


def probe(spec: Spec) -> ContainerProbe:
    """Return what to ask a host."""
    container, program = spec.container, spec.container.program
    pull = () if container.pull == "never" else (program, *PULL_QUIETLY, container.image)
    ulimits = container.ulimits
    return ContainerProbe(
        endpoint=("/bin/sh", "-c", ENDPOINT_SCRIPT, program, ENDPOINT_FORMAT),
        environ=("PATH", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG"),
        store=(program, "info", "--format", "{{.DockerRootDir}}"),
        remove_image=(program, "image", "rm", container.image),
        name=("--name", "{name}"),
        discard=(program, "rm", "--force", "--volumes", "{name}"),
        user=("--user", "{uid}:{gid}") if container.host_user else (),
        group=("--group-add", "{gid}") if container.host_user else (),
        gpus=("--gpus", "all"),
        engine=(program, "version", "--format", "{{.Server.Version}}"),
        image=(program, "image", "inspect", "--format", IMAGE_FORMAT, container.image),
        run=(
            *(program, "run", "--rm", "--init", "--pull", "never", "--network", "host"),
            *("--log-driver", "none", "--env", "PYTHONPATH", *entrypoint(spec)),
            *memory_options(spec),
            *(word for name in ulimits for word in ("--ulimit", f"{name}={ulimits[name]}")),
            *(*mount_options(container.mounts), *container.extra, container.image),
        ),
        pull=pull,
        pull_always=container.pull == "always",
    )


def container(request: ContainerRequest) -> Container:
    """Return the commands of a container."""
    program, name = client(request), request.name
    labels = dict(request.labels)
    filters = [word for key in labels for word in ("--filter", f"label={key}={labels[key]}")]
    return Container(
        engine="docker",
        create=(
            *(*program, "create", "--name", name, "--interactive", "--pull", "never"),
            *("--log-driver", "none"),
            *(word for key in labels for word in ("--label", f"{key}={labels[key]}")),
            *(word for key in request.env for word in ("--env", f"{key}={request.env[key]}")),
            *options(request, gpu_options(request.gpus)),
            request.spec.container.image,
            *request.argv,
        ),
        start=(*program, "start", "--attach", "--interactive", name),
        kill=(*program, "kill", name),
        inspect=(*program, "inspect", "--type", "container", "--format", STATE_FORMAT, name),
        remove=(*program, "rm", "--force", "--volumes", name),
        find=(*program, "ps", "--all", "--quiet", "--no-trunc", *filters),
    )


def command(request: ContainerRequest) -> Tuple[str, ...]:
    """Return the command that does the same for a person."""
    return (
        *(*client(request), "run", "--rm"),
        *(word for name in request.env for word in ("--env", name)),
        *options(request, gpu_options(request.gpus)),
        request.spec.container.image,
        *request.argv,
    )


def options(request: ContainerRequest, gpus: Sequence[str]) -> Iterator[str]:
    """Yield the options of a container, whatever it is started by."""
    spec, facts = request.spec, request.facts
    yield from ("--init", "--network", "host", "--workdir", request.cwd, *entrypoint(spec))
    if spec.container.host_user:
        yield from ("--user", f"{facts.uid}:{facts.gid}")
        yield from (word for group in facts.groups for word in ("--group-add", str(group)))
    yield from memory_options(spec)
    ulimits = dict(spec.container.ulimits)
    if facts.system.infiniband:  # whose memory is pinned
        ulimits.setdefault("memlock", "-1")
        yield from ("--device", INFINIBAND, "--cap-add", "IPC_LOCK")
    yield from (word for name in ulimits for word in ("--ulimit", f"{name}={ulimits[name]}"))
    yield from mount_options(request.mounts)
    yield from gpus
    yield from spec.container.extra


def memory_options(spec: Spec) -> Tuple[str, ...]:
    """Return the options for what the processes of a container share."""
    if spec.container.host_ipc:
        return ("--ipc", "host")
    return ("--shm-size", spec.container.shm_size) if spec.container.shm_size else ()


def client(request: ContainerRequest) -> Tuple[str, ...]:
    """Return the program, and where its daemon is: whoever removes a container later has no setup.

    Podman takes that from its own environment.
    """
    spec, address = request.spec.container, request.facts.container.endpoint.output.strip()
    is_usual = address in ("", USUAL_ENDPOINT) or spec.engine != "docker"
    return (spec.program,) if is_usual else (spec.program, "--host", address)


def entrypoint(spec: Spec) -> Tuple[str, ...]:
    """Return the option that leaves out the entry point of the image."""
    return () if spec.container.image_entrypoint else ("--entrypoint", "")


def gpu_options(gpus: Sequence[str]) -> Tuple[str, ...]:
    """Return the option for devices: a CSV field whose commas need quotes inside the word."""
    return ("--gpus", f'"device={",".join(gpus)}"') if gpus else ()


def mount_options(mounts: Sequence[Mount]) -> Tuple[str, ...]:
    """Return the options for what a container sees of its host."""
    return tuple(word for mount in mounts for word in ("--mount", mount_text(mount)))


def mount_text(mount: Mount) -> str:
    """Return the value of `--mount`, which is a record of CSV; a missing source is an error."""
    fields = ["type=bind", f"src={mount.source}", f"dst={mount.target}"]
    fields += ["readonly"] if mount.read_only else []
    return ",".join(csv_field(field) for field in fields)


def csv_field(text: str) -> str:
    """Return a field of CSV, in quotes where it needs them."""
    return '"' + text.replace('"', '""') + '"' if {*text} & {*',"\n'} else text


def problem(spec: Spec, facts: Facts) -> Optional[Tuple[str, str]]:
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
    if not answers.image.ok:
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
    text = facts.container.engine.output
    address = facts.container.endpoint.output.strip() if facts.container.endpoint.ok else ""
    daemon = f"its daemon{f' ({address})' if address else ''}"
    if "permission denied" in text:
        message = f"{name}: {facts.user} may not use the socket of {daemon}"
        hint = (
            f"an administrator can do: usermod -aG docker {facts.user} (which is as good as root)"
        )
        return message, hint
    if "Cannot connect" in text or "daemon running" in text:
        return f"{name}: {daemon} does not run", "start it there: systemctl start docker"
    if facts.container.engine.code == TIMED_OUT:
        hint = "look at it there: systemctl status docker; journalctl -u docker"
        return f"{name}: {daemon} did not answer in time: it hangs", hint
    return f"{name} does not work: {last_line(text)}", f"try it there: {name} version"


def image_problem(spec: Spec, facts: Facts) -> Tuple[str, str]:
    """Return why an image is not on a host."""
    image, pull = spec.container.image, facts.container.pull
    message = f"container.image: {image} is not on this host"
    if spec.container.pull == "never":
        return f"{message}, and container.pull is never", "load it there, or set container.pull"
    if pull == NOT_ASKED and facts.container.has_room:  # it is a file
        reason = last_line(facts.container.image.output)
        hint = "put the file there: each host reads its own"
        return f"container.image: {image} cannot be read: {reason}", hint
    if not facts.container.has_room or "no space left" in pull.output:
        free, store = facts.container.store_free, facts.container.store
        room = f"{store} has {(free or 0) >> 20} MiB free" if store else "its disk is full"
        hint = f"free some room there (see {spec.container.program} system df), or load it by hand"
        return f"{message}, and there is no room for it: {room}", hint
    if pull.code == TIMED_OUT:
        return f"{message}, and could not be pulled in time", "pull it there by hand first"
    hint = "look at the name and the network, log in to the registry there, or load it by hand"
    return f"{message}, and cannot be pulled: {last_line(pull.output)}", hint


def last_line(text: str) -> str:
    """Return the last line of what an engine printed, without its prefix."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(ADVICE)] or ["(no output)"]
    return re.sub(r"^(docker|Error( response from daemon)?|error): *", "", lines[-1])[:300]
