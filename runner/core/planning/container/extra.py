"""Extra options of an engine: those are refused by which a run could not be followed or ended."""

from __future__ import annotations

from typing import Dict, Iterator, Optional, Sequence, Tuple

Reason = Tuple[str, str]  # why an option is refused, and what to do instead

LONG = (
    *("attach", "cpu-shares", "detach", "env", "hostname", "interactive", "label", "memory"),
    *("publish", "tty", "user", "volume", "workdir"),
)
SHORT = {"P": "publish-all", **{name[0]: name for name in LONG}}
"""The long names of docker's and podman's short options."""

SHORT_SWITCHES = "ditP"
"""Those of them that take no value."""

REFUSED: Dict[str, Reason] = {
    "rm": ("the exit code is read after the end, then the container is removed", "leave it out"),
    "detach": ("the output of the ranks comes through the client", "see detach=true"),
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
        "set container.mounts, or use --mount",
    ),
    "ipc": ("there is a key for it", "set container.ipc"),
    "shm-size": ("there is a key for it", "set container.shm_size"),
}
"""Options of docker and podman that are refused whatever their value."""

NETWORK: Reason = ("the plan chose addresses and ports of the host's network", "leave it out")
MARKS: Reason = ("the runner finds a run by what begins with it", "choose another name")
NEEDED: Reason = ("a run needs it", "leave it out")


def extra_problems(engine: str, words: Sequence[str]) -> Iterator[Reason]:
    """Yield what is wrong with each word of `container.extra`, and what to do instead."""
    previous = "="  # the first word follows nothing that it could be the value of
    for index, word in enumerate(words):
        is_value = not word.startswith("-")
        if (is_value and ("=" in previous or not previous.startswith("-"))) or word == "--":
            yield f"{word!r} would be taken for the image", "options begin with a '-'"
        elif not is_value and engine in ("docker", "podman"):
            yield from _refusals(word, "".join(words[index + 1 : index + 2]))
        previous = word


def _refusals(word: str, following: str) -> Iterator[Reason]:
    for name, value in _options(word, following):
        if reason := _reason(name, value):
            yield f"--{name} is not possible: {reason[0]}", reason[1]


def _options(word: str, following: str) -> Iterator[Tuple[str, str]]:
    """Yield the long names of the options in a word, with their values."""
    if word.startswith("--"):
        name, is_equal, value = word[2:].partition("=")
        yield name, value if is_equal else following
        return
    letters = word[1:]
    while letters:
        letter, letters = letters[0], letters[1:]
        if letter in SHORT_SWITCHES and not letters.startswith("="):
            yield SHORT[letter], "true"
        else:
            yield SHORT.get(letter, letter), letters.lstrip("=") or following
            return


def _reason(name: str, value: str) -> Optional[Reason]:
    if name in ("network", "net"):
        return None if value == "host" else NETWORK
    if name == "env" and value.startswith(("RUNNER_RUN_ID", "RUNNER_NODE")):
        return MARKS
    if name == "label" and value.startswith("runner."):
        return MARKS
    if name in ("init", "interactive"):
        return NEEDED if value == "false" else None
    return REFUSED.get(name)
