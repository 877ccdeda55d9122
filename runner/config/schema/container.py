"""Schema of a container: the image that ranks run in, and the engine that runs it."""

# ruff: noqa: RUF009 (`doc` makes a field, as `dataclasses.field` does)

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from runner.config.schema.fields import MOUNTS, PATH, SECONDS, SIZE, TEXT, TEXTS, choice, doc
from runner.core.planning.container.base import ENGINES


@dataclass
class ContainerConfig:
    """The keys of the files in `conf/container`: the image that ranks run in, and its engine.

    [containers.md](containers.md) says how such a run works.
    """

    engine: str | None = choice(
        "null: none, ranks run on the host itself; apptainer is untested", *ENGINES, null=True
    )
    program: str | None = doc("the engine on the hosts; null: its name, on the PATH", TEXT)
    image: str | None = doc("the image, as the engine names it", TEXT)
    prepare_timeout_s: float = doc("the time a host may take to pull the image", SECONDS, 3600.0)
    python: str = doc("the interpreter of the task in the image", *(PATH, "python3"))
    mounts: Any = doc(
        "what else of a host ranks see, as SOURCE:TARGET or SOURCE:TARGET:ro; absolute paths",
        *(MOUNTS, list),
    )
    shm_size: str | None = doc("the size of /dev/shm, such as 16g; null: the engine's own", SIZE)
    ipc: str = choice("host shares /dev/shm with the host, all of it", "private", "host")
    user: str = choice(
        "login: ranks are the user and the groups of the login; image: what the image says",
        *("login", "image"),
    )
    ulimits: Any = doc(
        "limits such as {nofile: 65536, memlock: -1}", "mapping of names to a number", dict
    )
    pull: str = choice(
        "missing pulls an image that is not on a host; always: at each launch",
        *("missing", "always", "never"),
    )
    entrypoint: str = choice(
        "none leaves the image's entry point out; image runs it, with the program as arguments",
        *("none", "image"),
    )
    extra: Any = doc(
        "more options of the engine, each one word with its value, such as --memory=64g",
        *(TEXTS, list),
    )
