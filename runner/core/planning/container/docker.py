"""Docker: a container is created, then started with its output attached, and removed by name.

`docker run` leaves a window in which a container that nobody waits for any more may start. Nothing
is left to `--rm`: exit code and reason are read from the container first.
"""

from __future__ import annotations

import re
from typing import Iterator, Optional, Sequence, Tuple

from runner.core import shell
from runner.core.model.container import (
    Container,
    ContainerProbe,
    ContainerSpec,
    ImageCommands,
    Mount,
)
from runner.core.model.facts import Facts
from runner.core.model.spec import Spec
from runner.core.planning.container.base import ContainerRequest

RENUMBERS_DEVICES = True
PULL_QUIETLY = ("pull", "--quiet")
INFINIBAND = "/dev/infiniband"
STATE_FORMAT = "{{.State.ExitCode}} {{.State.OOMKilled}} {{.State.Status}} {{.State.Error}}"
IMAGE_FORMAT = "{{.Os}}/{{.Architecture}}"
ENDPOINT_FORMAT = "{{.Endpoints.docker.Host}}"
INVENTORY = """\
info=$({engine} info --format {info}) || exit
echo "store=$(uname -n) $info"  # the ids of engines are equal on copies of a machine
echo "free=$(df -Pk "${{info##* }}" | awk 'NR == 2 {{print $4}}')"
echo "image=$({engine} image inspect --format {{{{.Id}}}} {image} 2>/dev/null)"
ids=$({engine} image ls --quiet --no-trunc)
[ -z "$ids" ] || {engine} image inspect --format 'layers={{{{json .RootFS.Layers}}}}' $ids
command -v zstd >/dev/null && echo zstd=1
exit 0
"""
RECLAIM = """
import os, sys
root, uid, gid = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for folder, folders, files in os.walk(root):
    for path in (os.path.join(folder, name) for name in (*folders, *files)):
        if os.lstat(path).st_uid != uid:
            os.lchown(path, uid, gid)
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
    may_pull = container.fetches and not container.comes_from_here and container.pull != "never"
    pull = (program, *PULL_QUIETLY, container.image) if may_pull else ()
    return ContainerProbe(
        engine=(program, "version", "--format", "{{.Server.Version}}"),
        image=(program, "image", "inspect", "--format", IMAGE_FORMAT, container.image),
        run=(
            *(program, "run", "--rm", "--init", "--pull", "never", "--network", "host"),
            *("--log-driver", "none", "--env", "PYTHONPATH", *entrypoint(spec)),
            *(*mount_options(container.mounts), *container.extra, container.image),
        ),
        pull=pull,
        pull_always=container.pull == "always",
        pull_timeout_s=container.prepare_timeout_s,
    )


def image_commands(container: ContainerSpec, dockerfile: str) -> ImageCommands:
    """Return how a host gets the image from here; `dockerfile` is its name in the context."""
    info = "{{.ID}} {{.DockerRootDir}}"
    return commands_for_image(container, dockerfile, info=info, loads_new_layers=True)


def commands_for_image(
    container: ContainerSpec, dockerfile: str, *, info: str, loads_new_layers: bool
) -> ImageCommands:
    """Return those commands; by `info` the engine prints what identifies its store, and where."""
    program, image = container.program, container.image
    words = {"engine": shell.quote(program), "image": shell.quote(image)}
    pull = ("--pull",) if container.pull == "always" else ()
    tag = ("--tag", image, "--label", f"runner.build={image}")
    return ImageCommands(
        inventory=("/bin/sh", "-c", INVENTORY.format(info=shell.quote(info), **words)),
        build=(
            *(program, "build", "--force-rm", *tag, "--network", "host"),
            *(*pull, "--file", dockerfile, "-"),
        ),
        load=(program, "load", "--quiet"),
        save=(program, "save", image),
        loads_new_layers=loads_new_layers,
    )


def container(request: ContainerRequest) -> Container:
    """Return the commands of a container."""
    program, name = request.spec.container.program, request.name
    labels = dict(request.labels)
    filters = [word for key in labels for word in ("--filter", f"label={key}={labels[key]}")]
    return Container(
        engine="docker",
        create=(
            *(program, "create", "--name", name, "--interactive", "--pull", "never"),
            *("--log-driver", "none"),
            *(word for key in labels for word in ("--label", f"{key}={labels[key]}")),
            *(word for key in request.env for word in ("--env", f"{key}={request.env[key]}")),
            *options(request, gpu_options(request.gpus)),
            request.spec.container.image,
            *request.argv,
        ),
        start=(program, "start", "--attach", "--interactive", name),
        kill=(program, "kill", name),
        inspect=(program, "inspect", "--type", "container", "--format", STATE_FORMAT, name),
        remove=(program, "rm", "--force", "--volumes", name),
        reclaim=tuple(reclaim(request)),
        dump=(program, "exec", name, *request.dump),
        find=(program, "ps", "--all", "--quiet", "--no-trunc", *filters),
    )


def reclaim(request: ContainerRequest) -> Iterator[str]:
    """Yield the command by which the folder of a run is the login's again; nothing if it is."""
    spec, facts, run = request.spec.container, request.facts, request.mounts[0]
    if spec.host_user or facts.uid == 0:
        return
    yield from (spec.program, "run", "--rm", "--pull", "never", "--network", "none")
    yield from ("--log-driver", "none", "--user", "0:0", "--entrypoint", "")
    yield from (*mount_options(request.mounts), *spec.extra, spec.image)
    yield from (facts.python.executable, "-I", "-S", "-c", RECLAIM)
    yield from (run.target, str(facts.uid), str(facts.gid))


def command(request: ContainerRequest) -> Tuple[str, ...]:
    """Return the command that does the same for a person."""
    return (
        *(request.spec.container.program, "run", "--rm"),
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
    yield from ("--ipc", "host") if spec.container.host_ipc else ()
    if spec.container.shm_size:
        yield from ("--shm-size", spec.container.shm_size)
    ulimits = dict(spec.container.ulimits)
    if facts.system.infiniband:  # whose memory is pinned
        ulimits.setdefault("memlock", "-1")
        yield from ("--device", INFINIBAND, "--cap-add", "IPC_LOCK")
    yield from (word for name in ulimits for word in ("--ulimit", f"{name}={ulimits[name]}"))
    yield from mount_options(request.mounts)
    yield from gpus
    yield from spec.container.extra


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
        return f"container.program: there is no {name} on its PATH", hint
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


def engine_problem(name: str, facts: Facts) -> Tuple[str, str]:
    """Return why an engine does not answer."""
    text = facts.container.engine.output
    if "permission denied" in text:
        message = f"{name}: {facts.user} may not use the socket of its daemon"
        hint = (
            f"an administrator can do: usermod -aG docker {facts.user} (which is as good as root)"
        )
        return message, hint
    if "Cannot connect" in text or "daemon running" in text:
        return f"{name}: its daemon does not answer", "start it there: systemctl start docker"
    if facts.container.engine.code == -1:
        hint = "look at it there: systemctl status docker"
        return f"{name}: its daemon did not answer in time", hint
    return f"{name} does not work: {last_line(text)}", f"try it there: {name} version"


def image_problem(spec: Spec, facts: Facts) -> Tuple[str, str]:
    """Return why an image is not on a host."""
    container, image, pull = spec.container, spec.container.image, facts.container.pull
    message = f"container.image: {image} is not on this host"
    if container.comes_from_here:
        how = "builds it there" if container.build else "sends it there"
        hint = "dry runs and checks change nothing there; a node that joins later has to have it"
        return f"{message}; the start of a launch {how}", hint
    if not container.fetches and container.pull != "never":
        hint = f"launch it, or pull it there by hand: {container.program} pull {image}"
        return f"{message} yet, and a dry run or check pulls nothing", hint
    if container.pull == "never":
        return f"{message}, and container.pull is never", "load it there, or set container.pull"
    if pull.code == -1:
        return f"{message}, and could not be pulled in time", "pull it there by hand first"
    hint = "look at the name and the network, log in to the registry there, or load it by hand"
    return f"{message}, and cannot be pulled: {last_line(pull.output)}", hint


def last_line(text: str) -> str:
    """Return the last line of what an engine printed, without its prefix."""
    lines = [line for line in text.strip().splitlines() if line.strip()] or ["(no output)"]
    return re.sub(r"^(docker|Error( response from daemon)?|error): *", "", lines[-1])[:300]
