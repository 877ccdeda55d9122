"""Extra options of an engine: those by which a run could not be followed or ended are refused."""

from __future__ import annotations

import pytest

from runner.core.planning.container.engines import extra_problems


def said(*words: str, engine: str = "docker") -> list[str]:
    return [message for message, _ in extra_problems(engine, words)]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--rm=true"], "--rm"),
        (["-it"], "--interactive"),
        (["--name=mine"], "--name"),
        (["--network=host"], "--network"),
        (["--label=runner.run=1"], "--label"),
        (["--entrypoint="], "--entrypoint"),
        (["--cpus=2", "--rm"], "--rm"),
    ],
)
def test_an_option_that_breaks_a_run_is_named(words: list[str], name: str) -> None:
    """Whichever way it is written, and for podman, too."""
    for engine in ("docker", "podman"):
        (message,) = said(*words, engine=engine)
        assert message.startswith(f"{name} is not possible: ")


@pytest.mark.parametrize(
    "words",
    [
        ["--memory=64g", "--cpus=2"],
        ["--cap-add=SYS_PTRACE", "--security-opt=seccomp=unconfined"],
        ["--privileged", "--ulimit=core=0", "--publish-all=false"],
    ],
)
def test_other_options_are_the_users_own(words: list[str]) -> None:
    """The engine judges them."""
    assert said(*words) == []


@pytest.mark.parametrize(
    "words",
    [
        ["ubuntu"],
        ["--memory"],
        ["-eRUNNER_NODE=a"],
        [""],
    ],
)
def test_a_word_is_an_option_with_its_value(words: list[str]) -> None:
    """So that neither it, nor the word after it, is the image, or takes its place."""
    for engine in ("docker", "podman"):
        ((message, hint),) = extra_problems(engine, words)
        assert message.startswith(repr(words[-1]))
        assert "--memory=64g" in hint
