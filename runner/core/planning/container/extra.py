"""Extra options of an engine: those are refused by which a run could not be followed or ended.

Each word is one option with its value: then none takes the image for its value, and no word is
left that the engine would take for the image.
"""

from __future__ import annotations

import re
from typing import Dict, Iterator, Sequence, Tuple

Reason = Tuple[str, str]  # why an option is refused, and what to do instead

SHORT = {"d": "detach", "i": "interactive", "t": "tty", "u": "user", "v": "volume"}
"""The short names of options that are refused, by which people know them."""

SWITCHES = ("privileged", "read-only", "no-healthcheck", "oom-kill-disable")
"""Options without a value, as they are mostly written; others are `--name=true`."""

FORM = "write each option with its value as one word, such as --memory=64g or --privileged"
MARKS: Reason = ("the runner finds a run by what begins with it", "choose another name")
NETWORK: Reason = (
    "the plan chose addresses and ports of the host's network",
    "leave it out: it is the host's anyway",
)
REFUSED: Dict[str, Reason] = {
    "rm": ("the exit code is read after the end, then the container is removed", "leave it out"),
    "detach": ("the output of the ranks comes through the client", "see detach=true"),
    "attach": ("input and output of the ranks go through the client", "leave it out"),
    "interactive": ("the environment comes on standard input", "leave it out: it is so anyway"),
    "init": ("it passes on signals and ends what is left", "leave it out: it is so anyway"),
    "network": NETWORK,
    "net": NETWORK,
    "help": ("no container would be made", "leave it out"),
    "name": ("the runner finds the container by its own", "it is runner-RUN_ID-…"),
    "cidfile": ("a second attempt would be refused for it", "leave it out"),
    "tty": ("output and errors would be mixed, and the environment shown", "leave it out"),
    "restart": ("it would run again after its end", "see relaunch.max"),
    "pid": ("what is left of a run is found by its PID namespace", "leave it out"),
    "entrypoint": ("the environment is read by the first program", "set container.entrypoint"),
    "user": ("files of the run have to be writable", "set container.user"),
    "pull": ("an image is pulled before the start", "set container.pull"),
    "gpus": ("the plan chooses them", "set cluster.nodes.NODE.gpus"),
    "volume": (
        "a source that is missing would be made, and a name be a volume",
        "set container.mounts, or use --mount=…",
    ),
    "ipc": ("there is a key for it", "set container.ipc"),
    "shm-size": ("there is a key for it", "set container.shm_size"),
}
"""Options of docker and podman that are refused whatever their value."""


def extra_problems(engine: str, words: Sequence[str]) -> Iterator[Reason]:
    """Yield what is wrong with each word of `container.extra`, and what to do instead."""
    for word in words:
        if engine in ("docker", "podman"):
            yield from _problems(word)
        elif not re.match("-.*[^-]", word):
            yield f"{word!r} would be taken for the image", "write --name=value as one word"


def _problems(word: str) -> Iterator[Reason]:
    """Yield what is wrong with a word for docker or podman."""
    name, is_equal, value = word[2:].partition("=")
    is_long = word.startswith("--") and bool(name)
    if not is_long:
        name = SHORT.get(word[1:2], "") if word.startswith("-") else ""
    is_mark = name == "env" and value.startswith(("RUNNER_RUN_ID", "RUNNER_NODE"))
    is_mark = is_mark or (name == "label" and value.startswith("runner."))
    if reason := MARKS if is_mark else REFUSED.get(name):
        yield f"--{name} is not possible: {reason[0]}", reason[1]
    elif not word.startswith("-"):
        yield f"{word!r} would be taken for the image", FORM
    elif not is_long:
        yield f"{word!r} is no long option", FORM
    elif not is_equal and name not in SWITCHES:
        yield f"{word!r} has no value, and would take the next word for it", FORM
