"""Extra options of an engine: those by which a run could not be followed or ended are refused."""

from __future__ import annotations

import pytest

from runner.core.planning.container.extra import extra_problems


def said(*words: str, engine: str = "docker") -> list[str]:
    """What is wrong with these words."""
    return [message for message, _ in extra_problems(engine, words)]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--rm"], "--rm"),
        (["--rm=true"], "--rm"),
        (["-d"], "--detach"),
        (["-it"], "--tty"),
        (["--name", "mine"], "--name"),
        (["--network", "bridge"], "--network"),
        (["--net=none"], "--net"),
        (["--pid=host"], "--pid"),
        (["--env", "RUNNER_RUN_ID=1"], "--env"),
        (["-eRUNNER_NODE=a"], "--env"),
        (["--label=runner.run=1"], "--label"),
        (["--entrypoint="], "--entrypoint"),
        (["-v", "data:/data"], "--volume"),
        (["-v/data:/data"], "--volume"),
        (["-u0"], "--user"),
        (["--restart=always"], "--restart"),
        (["--gpus", "all"], "--gpus"),
        (["--init=false"], "--init"),
        (["--interactive=false"], "--interactive"),
        (["--cpus", "2", "--rm"], "--rm"),
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
        ["--memory=64g"],
        ["--memory", "64g", "--cpus=2"],
        ["-m", "64g"],
        ["--network=host"],
        ["--env", "NVIDIA_DRIVER_CAPABILITIES=all"],
        ["--init"],
        ["--cap-add", "SYS_PTRACE", "--security-opt=seccomp=unconfined"],
        ["--mount", "type=volume,src=data,dst=/data"],
        ["--privileged", "--ulimit=core=0"],
    ],
)
def test_other_options_are_the_users_own(words: list[str]) -> None:
    """The engine judges them."""
    assert said(*words) == []


@pytest.mark.parametrize("words", [["ubuntu"], ["--memory=64g", "ubuntu"], ["--"]])
def test_a_word_that_would_be_the_image(words: list[str]) -> None:
    """It stands where no value can."""
    (message,) = said(*words)
    assert message == f"{words[-1]!r} would be taken for the image"


def test_engines_without_a_daemon_have_other_options() -> None:
    """Theirs are not judged."""
    assert said("--pid", "--rm", engine="apptainer") == []
