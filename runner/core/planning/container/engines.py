"""Container engines: the commands of docker, podman and apptainer, and what they take.

With docker and podman a container is created, then started with its output attached, and removed by
its id: `docker run` leaves a window in which a container that nobody waits for any more may start.
Nothing is left to `--rm`: exit code and reason are read from the container first.

Podman chooses GPUs by CDI, the device names of its runtime: some versions ignore `--gpus`. Without
root it maps users: `keep-id` makes the login's own number inside that number outside, too.

Apptainer runs an image file as a child of its client. It was not tried with the engine itself:
Debian has no package of it, and tests compare commands only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Iterator, Mapping, Sequence, Tuple

from runner.core.model.container import Container, ContainerProbe
from runner.core.model.facts import Facts
from runner.core.spec import ContainerSpec, Mount, Spec

IGNORED_KEYS: Mapping[str, Tuple[str, ...]] = {
    "apptainer": ("shm_size", "ipc", "user", "ulimits", "pull", "entrypoint"),
}
"""The keys of `container` that mean nothing to an engine."""

INFINIBAND = "/dev/infiniband"
RUN = ("run", "--rm", "--pull", "never", "--log-driver", "none")
STATE_FORMAT = "{{.State.ExitCode}} {{.State.OOMKilled}} {{.State.Status}} {{.State.Error}}"
IMAGE_FORMAT = "{{.Os}}/{{.Architecture}}"
ENDPOINT_FORMAT = "{{.Endpoints.docker.Host}}"
ENDPOINT_SCRIPT = """\
[ -z "$DOCKER_HOST" ] || { echo "$DOCKER_HOST"; exit; }
exec "$0" context inspect --format "$1"
"""
WITHOUT_SUBUIDS = "without subuids"
PODMAN_FORMAT = (
    "{{.Version.Version}}{{if .Host.Security.Rootless}} "
    f"rootless{{{{if le (len .Host.IDMappings.UIDMap) 1}}}} {WITHOUT_SUBUIDS}"
    "{{end}}{{end}}"
)
RECLAIM = """
import os, sys
root, uid, gid = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
problem = ""
for folder, folders, files in os.walk(root):
    for path in (os.path.join(folder, name) for name in (*folders, *files)):
        try:
            if os.lstat(path).st_uid != uid:
                os.lchown(path, uid, gid)
        except FileNotFoundError:
            pass
        except OSError as error:
            problem = str(error)
sys.exit(problem or 0)
"""

SHORT = {"d": "detach", "i": "interactive", "t": "tty", "u": "user", "v": "volume"}
"""The short names of options that are refused, by which people know them."""

SWITCHES = ("privileged", "read-only", "no-healthcheck", "oom-kill-disable")
"""Options without a value, as they are mostly written; others are `--name=true`."""

FORM = "write each option with its value as one word, such as --memory=64g or --privileged"
LEAVE_OUT = "leave it out"
REFUSED = {
    **dict.fromkeys(("rm", "attach", "interactive", "init", "network", "net"), LEAVE_OUT),
    **dict.fromkeys(("help", "name", "cidfile", "tty", "pid"), LEAVE_OUT),
    "detach": "see detach=true",
    "restart": "see relaunch.max",
    "entrypoint": "set container.entrypoint",
    "user": "set container.user",
    "pull": "set container.pull",
    "gpus": "set cluster.nodes.NODE.gpus",
    "volume": "set container.mounts, or use --mount=…",
    "ipc": "set container.ipc",
    "shm-size": "set container.shm_size",
}
"""Options of docker and podman by which a run could not be followed or ended, with the remedy."""


@dataclass(frozen=True)
class ContainerRequest:
    """What an engine is to run: `argv` in `cwd`, with these names of the environment."""

    spec: Spec
    facts: Facts
    name: str  # of the container, unique on its host
    labels: Mapping[str, str]
    mounts: Tuple[Mount, ...]
    gpus: Tuple[str, ...]  # UUIDs of the devices
    cwd: str
    argv: Tuple[str, ...]
    env: Mapping[str, str]

    @property
    def is_podman(self) -> bool:
        """Whether the engine is podman."""
        return self.spec.container.engine == "podman"

    @property
    def keeps_id(self) -> bool:
        """Whether the user of the login, who is not root, gets the same number inside by podman."""
        return self.is_podman and self.facts.uid != 0 and self.spec.container.user == "login"


def extra_problems(engine: str, words: Sequence[str]) -> Iterator[Tuple[str, str]]:
    """Yield what is wrong with each word of `container.extra`, and what to do instead.

    Each word is one option with its value: then none takes the image for its value, and no word is
    left that the engine would take for the image.
    """
    for word in words:
        if engine == "apptainer":
            if not re.match("-.*[^-]", word):
                yield f"{word!r} would be taken for the image", "write --name=value as one word"
            continue
        name, is_equal, value = word[2:].partition("=")
        is_long = word.startswith("--") and bool(name)
        if not is_long:
            name = SHORT.get(word[1:2], "") if word.startswith("-") else ""
        is_mark = (name == "label" and value.startswith("runner.")) or (
            name == "env" and value.startswith(("RUNNER_RUN_ID", "RUNNER_NODE"))
        )
        if is_mark:
            message = f"--{name} is not possible: the runner finds a run by what begins with it"
            yield message, "choose another name"
        elif name in REFUSED:
            message = f"--{name} is not possible: the runner decides that itself"
            yield message, REFUSED[name]
        elif not word.startswith("-"):
            yield f"{word!r} would be taken for the image", FORM
        elif not is_long:
            yield f"{word!r} is no long option", FORM
        elif not is_equal and name not in SWITCHES:
            yield f"{word!r} has no value, and would take the next word for it", FORM


def probe(spec: Spec) -> ContainerProbe:
    """Return what to ask a host."""
    container = spec.container
    program = container.program
    if container.engine == "apptainer":
        return ContainerProbe(
            engine=(program, "version"),
            image=(program, "inspect", container.image),
            run=(*_apptainer(container), *_bind_options(container.mounts), *_image(container)),
            gpus=("--nv",),
        )
    may_pull = container.fetches and container.pull != "never"
    is_login = container.user == "login"
    run = [program, *RUN, "--init", "--network", "host", "--env", "PYTHONPATH"]
    run += [*_entrypoint(container), *_memory_options(container)]
    run += [*_pairs("--ulimit", container.ulimits), *_mount_options(container.mounts)]
    asked = ContainerProbe(
        endpoint=("/bin/sh", "-c", ENDPOINT_SCRIPT, program, ENDPOINT_FORMAT),
        name=("--name", "{name}"),
        discard=(program, "rm", "--force", "--volumes", "{name}"),
        user=("--user", "{uid}:{gid}") if is_login else (),
        group=("--group-add", "{gid}") if is_login else (),
        gpus=("--gpus", "all"),
        engine=(program, "version", "--format", "{{.Server.Version}}"),
        image=(program, "image", "inspect", "--format", IMAGE_FORMAT, container.image),
        run=(*run, *_image(container)),
        pull=(program, "pull", "--quiet", container.image) if may_pull else (),
        pull_always=container.pull == "always",
        pull_timeout_s=container.prepare_timeout_s,
    )
    if container.engine == "docker":
        return asked
    return replace(
        asked,
        engine=(program, "info", "--format", PODMAN_FORMAT),
        endpoint=("/bin/sh", "-c", 'echo "${CONTAINER_HOST-}"'),
        gpus=("--device", "nvidia.com/gpu=all"),
        user=(),  # it would need `--userns keep-id` without root
        group=(),
    )


def container(request: ContainerRequest) -> Container:
    """Return the commands of a container whose program reads its environment by itself."""
    spec = request.spec.container
    program = spec.program
    name = request.name
    if spec.engine == "apptainer":
        return Container(engine="apptainer", start=command(request))
    create = [program, "create", "--name", name, "--interactive", "--pull", "never"]
    create += ["--log-driver", "none", *_pairs("--label", request.labels)]
    create += _pairs("--env", request.env)
    labels = [f"label={key}={value}" for key, value in request.labels.items()]
    filters = [word for label in labels for word in ("--filter", label)]
    return Container(
        engine=spec.engine,
        name=name,
        create=(*create, *_options(request), spec.image, *request.argv),
        start=(program, "start", "--attach", "--interactive", name),
        kill=(program, "kill"),
        inspect=(program, "inspect", "--type", "container", "--format", STATE_FORMAT, name),
        remove=(program, "rm", "--force", "--volumes"),
        reclaim=_reclaim(request),
        find=(program, "ps", "--all", "--quiet", "--no-trunc", *filters),
    )


def command(request: ContainerRequest) -> Tuple[str, ...]:
    """Return one command that does the same for a person, with names of `env` to be set.

    All but HOME, whose value is in it. That of apptainer takes nothing from its own environment.
    """
    spec = request.spec.container
    env = request.env
    if spec.engine == "apptainer":
        words = [*_apptainer(spec), "--pid", *_pairs("--env", env)]
        words += ["--nv"] if request.gpus else []
        words += ["--pwd", request.cwd, *_bind_options(request.mounts)]
        return (*words, *_image(spec), *request.argv)
    names = [name for name in (*env, *request.spec.secrets) if name != "HOME"]
    words = [spec.program, "run", "--rm"]
    words += [word for text in (f"HOME={env['HOME']}", *names) for word in ("--env", text)]
    return (*words, *_options(request), spec.image, *request.argv)


def _reclaim(request: ContainerRequest) -> Tuple[str, ...]:
    """Return the command by which the folder of a run is the login's again; () if it is.

    Who is not root outside is root inside with podman.
    """
    spec = request.spec.container
    facts = request.facts
    if spec.user == "login" or facts.uid == 0:
        return ()
    words = [spec.program, *RUN, "--network", "none", "--name", f"{request.name}-reclaim"]
    words += ["--user", "0:0", "--entrypoint", "", *_pairs("--label", request.labels)]
    words += [*_mount_options(request.mounts), *_image(spec)]
    words += [facts.python.executable, "-I", "-S", "-c", RECLAIM, request.mounts[0].target]
    if request.is_podman:
        return (*words, "0", "0")
    return (*words, str(facts.uid), str(facts.gid))


def _options(request: ContainerRequest) -> Iterator[str]:
    """Yield the options of a container, whatever it is started by."""
    spec = request.spec.container
    facts = request.facts
    yield from ("--init", "--network", "host", "--workdir", request.cwd)
    yield from _entrypoint(spec)
    if spec.user == "login":
        yield from ("--user", f"{facts.uid}:{facts.gid}")
        # Without root a group has no rights of the host's, and one above the range is refused.
        groups = () if request.keeps_id else facts.groups
        yield from (word for group in groups for word in ("--group-add", str(group)))
    yield from _memory_options(spec)
    ulimits = dict(spec.ulimits)
    if facts.system.infiniband:  # whose memory is pinned
        ulimits.setdefault("memlock", "-1")
        yield from ("--device", INFINIBAND, "--cap-add", "IPC_LOCK")
    yield from _pairs("--ulimit", ulimits)
    yield from _mount_options(request.mounts)
    if request.gpus and not request.is_podman:
        # A field of CSV, whose commas need quotes inside the word.
        yield from ("--gpus", f'"device={",".join(request.gpus)}"')
    yield from spec.extra
    if request.keeps_id:
        yield from ("--userns", "keep-id")
    if request.is_podman:
        yield from (w for gpu in request.gpus for w in ("--device", f"nvidia.com/gpu={gpu}"))


def _apptainer(container: ContainerSpec) -> Tuple[str, ...]:
    return (container.program, "exec", "--cleanenv", "--no-home")


def _image(container: ContainerSpec) -> Tuple[str, ...]:
    """Return the image, after the user's own options."""
    return (*container.extra, container.image)


def _bind_options(mounts: Sequence[Mount]) -> Tuple[str, ...]:
    binds = [f"{each.source}:{each.target}{':ro' if each.read_only else ''}" for each in mounts]
    return tuple(word for bind in binds for word in ("--bind", bind))


def _memory_options(container: ContainerSpec) -> Tuple[str, ...]:
    """Return the options for what the processes of a container share."""
    if container.ipc == "host":
        return ("--ipc", "host")
    return ("--shm-size", container.shm_size) if container.shm_size else ()


def _entrypoint(container: ContainerSpec) -> Tuple[str, ...]:
    """Return the option that leaves out the entry point of the image."""
    return () if container.entrypoint == "image" else ("--entrypoint", "")


def _pairs(option: str, values: Mapping[str, str]) -> Tuple[str, ...]:
    """Return an option for each NAME=VALUE."""
    return tuple(word for name in values for word in (option, f"{name}={values[name]}"))


def _mount_options(mounts: Sequence[Mount]) -> Iterator[str]:
    """Yield the options for what a container sees of its host, each a record of CSV.

    A missing source is an error, which it is not with `--volume`.
    """
    for mount in mounts:
        fields = ["type=bind", f"src={mount.source}", f"dst={mount.target}"]
        fields += ["readonly"] if mount.read_only else []
        for index, text in enumerate(fields):
            if {*text} & {*',"\n'}:
                fields[index] = '"' + text.replace('"', '""') + '"'
        yield from ("--mount", ",".join(fields))
