"""Container: the words before a command by which an engine runs it in an image, and ends it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, Iterable, Iterator, Mapping, Tuple

ENGINE_VARIABLE = re.compile(
    r"PATH|HOME|TMPDIR|LD_\w+|PYTHON(PATH|HOME)|XDG_(RUNTIME_DIR|CONFIG_HOME|DATA_HOME)"
    r"|DOCKER_(HOST|CONTEXT|CONFIG|CERT_PATH|TLS_VERIFY)|CONTAINER_(HOST|CONNECTION)"
    r"|CONTAINERS_\w*CONF\w*|STORAGE_(DRIVER|OPTS)"
)
"""Variables of an engine's client: by them it, its daemon and its images are found."""

REMOVE = {
    "docker": ("rm", "--force", "--volumes"),
    "podman": ("rm", "--force", "--volumes", "--time", "0"),
}
ALL_GPUS = ("all",)


@dataclass(frozen=True)
class Container:
    """What a command runs in: an image, by an engine whose processes are no children of ours.

    Without an `engine`, `program` are all the words before the command, which stays our child.
    """

    engine: str
    program: Tuple[str, ...]
    image: str = ""
    mounts: Tuple[str, ...] = ()  # records of CSV, as `--mount` takes them
    options: Tuple[str, ...] = ()  # others of `run`
    labels: Tuple[str, ...] = ()  # by which an engine finds all that it has of a node's run
    is_login: bool = True  # whether its user is that of the login: the next three
    uid: int = 0
    gid: int = 0
    groups: Tuple[int, ...] = ()
    gpus: Tuple[str, ...] = ()  # UUIDs, or `ALL_GPUS`
    secrets: Tuple[str, ...] = ()  # names of variables that go inside
    env: Dict[str, str] = field(default_factory=dict)  # `ENGINE_VARIABLE`s, for who was not set up

    def prefix(self, *, name: str, cwd: str, env: Mapping[str, str]) -> Tuple[str, ...]:
        """Return the words before a command that run it in a new container.

        The client passes on its own variables of the names in `env`, and gets the values of only
        those that it does not use itself (see `client_env`): these are no words, which all see.
        """
        if not self.engine:
            return self.program
        words = [*self.program, "run", "--rm", "--init", "--network", "host", "--pull", "never"]
        words += ["--log-driver", "none", "--entrypoint", "", "--workdir", cwd]
        words += ["--name", name] if name else []
        words += _each("--label", self.labels)
        is_own = {key: key not in self.secrets and is_of_engine(key) for key in env}
        words += _each("--env", [f"{key}={env[key]}" if is_own[key] else key for key in env])
        words += _each("--env", [key for key in self.secrets if key not in env])
        words += [*_each("--mount", self.mounts), *self._user_options(), *self._gpu_options()]
        return (*words, *self.options, self.image)

    def _user_options(self) -> Iterator[str]:
        if not self.is_login:
            return
        yield from ("--user", f"{self.uid}:{self.gid}")
        if self.engine == "podman" and self.uid:
            # A group has no rights of the host's there, and one above the range is refused.
            yield from ("--userns", "keep-id")
            return
        yield from _each("--group-add", [str(group) for group in self.groups])

    def _gpu_options(self) -> Iterator[str]:
        """Yield the options for the GPUs; podman has them by CDI, and may ignore `--gpus`."""
        if self.engine == "podman":
            yield from _each("--device", [f"nvidia.com/gpu={gpu}" for gpu in self.gpus])
        elif self.gpus == ALL_GPUS:
            yield from ("--gpus", "all")
        elif self.gpus:  # a field of CSV, whose commas need quotes inside the word
            yield from ("--gpus", f'"device={",".join(self.gpus)}"')

    @property
    def find(self) -> Tuple[str, ...]:
        """The command that prints the ids of all containers with the labels, in any state."""
        filters = _each("--filter", [f"label={label}" for label in self.labels])
        return (*self.program, "ps", "--all", "--quiet", "--no-trunc", *filters)

    @property
    def remove(self) -> Tuple[str, ...]:
        """The command that kills and removes the containers whose names or ids follow."""
        return (*self.program, *REMOVE[self.engine])


def is_of_engine(name: str) -> bool:
    return ENGINE_VARIABLE.fullmatch(name) is not None


def client_env(env: Mapping[str, str]) -> Dict[str, str]:
    """Return what of the environment in a container its engine's client is to have."""
    return {name: value for name, value in env.items() if not is_of_engine(name)}


def container_name(run_id: str, node: str, attempt: int) -> str:
    return f"runner-{run_id}-{re.sub('[^A-Za-z0-9_.-]', '_', node)}-{attempt}"


def _each(option: str, values: Iterable[str]) -> Tuple[str, ...]:
    return tuple(word for value in values for word in (option, value))


@dataclass(frozen=True)
class ContainerFacts:
    """What an engine answered on a host, and what a trial found in a container of the image."""

    step: str = ""  # the last one that was begun: find, ask, image, pull or start
    problem: str = ""  # why that failed, in the engine's words
    program: str = ""  # the path of its client
    env: Dict[str, str] = field(default_factory=dict)  # `ENGINE_VARIABLE`s that were set
    hostname: str = ""  # of the engine's machine
    gpus: int = -1  # devices; -1 if none were asked for
    shm_bytes: int = 0  # the size of /dev/shm
