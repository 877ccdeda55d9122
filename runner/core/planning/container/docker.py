"""Docker: a container is created, then started with its output attached, and removed by its id.

`docker run` leaves a window in which a container that nobody waits for any more may start. Nothing
is left to `--rm`: exit code and reason are read from the container first.
"""

from __future__ import annotations

from typing import Iterator, Optional, Sequence, Tuple

from runner.core.model.container import Container, ContainerProbe
from runner.core.model.facts import Facts
from runner.core.planning.container import problems
from runner.core.planning.container.base import ContainerRequest
from runner.core.spec import Mount, Spec

RENUMBERS_DEVICES = True
IGNORED_KEYS = ()
IMAGE_IS_FILE = False
PULL_QUIETLY = ("pull", "--quiet")
INFINIBAND = "/dev/infiniband"
STATE_FORMAT = "{{.State.ExitCode}} {{.State.OOMKilled}} {{.State.Status}} {{.State.Error}}"
IMAGE_FORMAT = "{{.Os}}/{{.Architecture}}"
ENDPOINT_FORMAT = "{{.Endpoints.docker.Host}}"
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
ENDPOINT_SCRIPT = """\
[ -z "$DOCKER_HOST" ] || { echo "$DOCKER_HOST"; exit; }
exec "$0" context inspect --format "$1"
"""


def probe(spec: Spec) -> ContainerProbe:
    """Return what to ask a host."""
    container, program = spec.container, spec.container.program
    may_pull = container.fetches and container.pull != "never"
    pull = (program, *PULL_QUIETLY, container.image) if may_pull else ()
    ulimits = container.ulimits
    return ContainerProbe(
        endpoint=("/bin/sh", "-c", ENDPOINT_SCRIPT, program, ENDPOINT_FORMAT),
        name=("--name", "{name}"),
        discard=(program, "rm", "--force", "--volumes", "{name}"),
        user=("--user", "{uid}:{gid}") if (container.user == "login") else (),
        group=("--group-add", "{gid}") if (container.user == "login") else (),
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
        pull_timeout_s=container.prepare_timeout_s,
    )


def container(request: ContainerRequest) -> Container:
    """Return the commands of a container."""
    program, name = request.spec.container.program, request.name
    labels = dict(request.labels)
    filters = [word for key in labels for word in ("--filter", f"label={key}={labels[key]}")]
    return Container(
        engine="docker",
        name=name,
        create=(
            *(program, "create", "--name", name, "--interactive", "--pull", "never"),
            *("--log-driver", "none"),
            *label_options(request),
            *(word for key in request.env for word in ("--env", f"{key}={request.env[key]}")),
            *options(request, gpu_options(request.gpus)),
            request.spec.container.image,
            *request.argv,
        ),
        start=(program, "start", "--attach", "--interactive", name),
        kill=(program, "kill"),
        inspect=(program, "inspect", "--type", "container", "--format", STATE_FORMAT, name),
        remove=(program, "rm", "--force", "--volumes"),
        reclaim=tuple(reclaim(request, request.facts.uid, request.facts.gid)),
        find=(program, "ps", "--all", "--quiet", "--no-trunc", *filters),
    )


def reclaim(request: ContainerRequest, uid: int, gid: int) -> Iterator[str]:
    """Yield the command by which the folder of a run is the login's again; nothing if it is.

    `uid` and `gid` are what the login has in a container.
    """
    spec, facts, run = request.spec.container, request.facts, request.mounts[0]
    if (spec.user == "login") or facts.uid == 0:
        return
    yield from (spec.program, "run", "--rm", "--pull", "never", "--network", "none")
    yield from (
        "--name",
        f"{request.name}-reclaim",
        "--log-driver",
        "none",
        "--user",
        "0:0",
        "--entrypoint",
        "",
    )
    yield from (*label_options(request), *mount_options(request.mounts), *spec.extra, spec.image)
    yield from (facts.python.executable, "-I", "-S", "-c", RECLAIM)
    yield from (run.target, str(uid), str(gid))


def command(request: ContainerRequest) -> Tuple[str, ...]:
    """Return the command that does the same for a person."""
    names = [name for name in (*request.env, *request.spec.secrets) if name != "HOME"]
    return (
        *(request.spec.container.program, "run", "--rm"),
        *(word for text in (f"HOME={request.env['HOME']}", *names) for word in ("--env", text)),
        *options(request, gpu_options(request.gpus)),
        request.spec.container.image,
        *request.argv,
    )


def options(request: ContainerRequest, gpus: Sequence[str]) -> Iterator[str]:
    """Yield the options of a container, whatever it is started by."""
    spec, facts = request.spec, request.facts
    yield from ("--init", "--network", "host", "--workdir", request.cwd, *entrypoint(spec))
    if spec.container.user == "login":
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
    if spec.container.ipc == "host":
        return ("--ipc", "host")
    return ("--shm-size", spec.container.shm_size) if spec.container.shm_size else ()


def label_options(request: ContainerRequest) -> Tuple[str, ...]:
    """Return the options by which a container of an order is found."""
    return tuple(word for key, value in request.labels for word in ("--label", f"{key}={value}"))


def entrypoint(spec: Spec) -> Tuple[str, ...]:
    """Return the option that leaves out the entry point of the image."""
    return () if (spec.container.entrypoint == "image") else ("--entrypoint", "")


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
    for index, text in enumerate(fields):
        if {*text} & {*',"\n'}:
            fields[index] = '"' + text.replace('"', '""') + '"'
    return ",".join(fields)


def problem(spec: Spec, facts: Facts) -> Optional[Tuple[str, str]]:
    """Return what is wrong with engine or image on a host, and what to do about it."""
    return problems.engine_or_image_problem(spec, facts)
