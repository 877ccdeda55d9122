"""Container: the image that ranks run in, and the commands by which an engine runs and ends it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, Tuple

_HOST_ENV = ("PATH", "HOME", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
_DOCKER_ENV = (
    "DOCKER_HOST",
    "DOCKER_CONTEXT",
    "DOCKER_CONFIG",
    "DOCKER_CERT_PATH",
    "DOCKER_TLS_VERIFY",
)
_PODMAN_ENV = (
    "CONTAINER_HOST",
    "CONTAINER_CONNECTION",
    "CONTAINERS_CONF",
    "CONTAINERS_CONF_OVERRIDE",
    "CONTAINERS_STORAGE_CONF",
    "STORAGE_DRIVER",
    "STORAGE_OPTS",
)
ENGINE_ENV = (*_HOST_ENV, *_DOCKER_ENV, *_PODMAN_ENV)
"""Variables by which the programs of engines, and by these their daemons and stores, are found."""


@dataclass(frozen=True)
class ContainerProbe:
    """What a host is asked of an engine and an image, large on purpose: commands, one by one."""

    engine: Tuple[str, ...]  # prints where the engine is, if it answers
    image: Tuple[str, ...]  # prints what the image is made for, if it is there
    run: Tuple[str, ...]  # runs the words after it in a new container
    pull: Tuple[str, ...] = ()  # () for never
    pull_always: bool = False
    pull_timeout_s: float = 3600.0
    run_timeout_s: float = 300.0  # of `run`: a first container of a large image is slow
    endpoint: Tuple[str, ...] = ()  # prints where its daemon is; () for an engine without one
    name: Tuple[str, ...] = ()  # the option of `run` by which a container is called {name}
    discard: Tuple[str, ...] = ()  # removes the container {name}, whatever its state
    user: Tuple[str, ...] = ()  # options of `run`, with {uid} and {gid} of the login
    group: Tuple[str, ...] = ()  # and for each other group of the login
    gpus: Tuple[str, ...] = ()  # and where there are GPUs, to have all of them

    def limit_s(self, tool_timeout_s: float) -> float:
        """Return how long all may take, each `tool_timeout_s`, but for a pull and `run`."""
        pull_s = self.pull_timeout_s if self.pull else 0.0
        return 4 * tool_timeout_s + pull_s + self.run_timeout_s


TIMED_OUT = -1
NOT_RUN = -2
"""Codes of commands that have none."""


@dataclass(frozen=True)
class CommandAnswer:
    """How a command of an engine ended: its exit code, and the end of what it printed."""

    code: int
    output: str = ""

    @property
    def ok(self) -> bool:
        """Whether it succeeded."""
        return self.code == 0


NOT_ASKED = CommandAnswer(NOT_RUN)
LOCAL_SCHEMES = ("unix://", "fd://")


@dataclass(frozen=True)
class InsideFacts:
    """What the task's interpreter found in a container of the run's image."""

    gpus: int = -1  # devices; -1 if none were asked for
    shm_bytes: int = 0  # the size of /dev/shm
    has_verbs: bool = True  # the user's library of InfiniBand


@dataclass(frozen=True)
class ContainerFacts:
    """What an engine answered on a host."""

    program: str = ""  # its path, "" if it is not on PATH
    engine: CommandAnswer = NOT_ASKED
    image: CommandAnswer = NOT_ASKED
    pull: CommandAnswer = NOT_ASKED
    mounts_missing: Tuple[str, ...] = ()  # sources of mounts that are not there
    env: Dict[str, str] = field(default_factory=dict)  # `ENGINE_ENV` that was set, also by setup
    endpoint: CommandAnswer = NOT_ASKED
    inside: InsideFacts = InsideFacts()

    @property
    def is_elsewhere(self) -> bool:
        """Whether the engine is on another machine, where mounts would be that one's folders."""
        address = self.endpoint.output.strip()
        return self.endpoint.ok and "://" in address and not address.startswith(LOCAL_SCHEMES)

    @property
    def is_usable(self) -> bool:
        """Whether a container of the image can be tried."""
        return self.image.ok and not self.mounts_missing


@dataclass(frozen=True)
class Container:
    """The container of an order, as commands: its supervisor knows no more of the engine.

    `start` takes the environment of the program, as a line of JSON, on its standard input; it
    passes on signals and output, and ends with the program's exit code. Where it is the parent of
    the program's processes, there is nothing else; where a daemon is, `create` comes first, and
    the others end, examine and remove what it made, whatever became of `start`. After the words
    of `kill` and `remove` follow the `name`, or what `find` prints.
    """

    engine: str
    start: Tuple[str, ...]
    client: Tuple[str, ...] = ()  # our program that runs all of this
    given: Dict[str, str] = field(default_factory=dict)  # the environment of the program
    name: str = ""
    create: Tuple[str, ...] = ()
    kill: Tuple[str, ...] = ()
    inspect: Tuple[str, ...] = ()  # prints exit code, whether memory ran out, and an error
    remove: Tuple[str, ...] = ()
    find: Tuple[str, ...] = ()  # prints the id of each container of this node, whatever its state
    reclaim: Tuple[str, ...] = ()  # gives the login what another user of the image's wrote
    env: Dict[str, str] = field(default_factory=dict)  # `ENGINE_ENV`, for who was not set up
    secrets: Tuple[str, ...] = ()  # names of those that go inside
    devices: int = 0  # GPUs that must be there

    @property
    def has_daemon(self) -> bool:
        """Whether its processes are children of a daemon."""
        return bool(self.create)
