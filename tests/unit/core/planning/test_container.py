"""Containers in a plan: options that are refused, and what keeps a host from running one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.core.planning.container import awaits_image, container_problems, extra_problems
from runner.core.spec import ContainerSpec, Node
from runner.core.wire.container import Container, ContainerFacts, client_env, container_name
from tests.golden.builders import facts, spec

NODE = Node("gpu1", "gpu1")
DOCKER = ContainerSpec(engine="docker", program="docker", image="train:1")


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("--rm=true", "--rm is not possible"),
        ("-it", "'-it' is no long option"),
        ("--network=host", "--network is not possible"),
        ("--label=runner.run=1", "--label is not possible"),
        ("ubuntu", "'ubuntu' would be taken for the image"),
        ("--memory", "'--memory' has no value"),
        ("-eRUNNER_NODE=a", "'-eRUNNER_NODE=a' is no long option"),
    ],
)
def test_an_option_that_breaks_a_run_is_named(word: str, text: str) -> None:
    """As is a word that would take the image for its value, or its place."""
    ((message, hint),) = extra_problems([word])
    assert message.startswith(text)
    assert hint


def test_other_options_are_the_users_own() -> None:
    """The engine judges them."""
    words = ["--memory=64g", "--security-opt=seccomp=unconfined", "--privileged", "--label=a=b"]
    assert list(extra_problems(words)) == []


DENIED = "Got permission denied while trying to connect to the Docker daemon socket"


@pytest.mark.parametrize(
    ("step", "said", "texts"),
    [
        ("find", "there is no docker on its PATH", ("container.program: there is", "install it")),
        ("ask", "no answer within 15 s", ("docker did not answer", "journalctl")),
        ("ask", "Cannot connect to the Docker daemon at x", ("does not run", "systemctl start")),
        ("ask", DENIED, ("may not use the socket", "usermod -aG docker")),
        ("image", "No such image: train:1", ("train:1 is not on", "docker save train:1 |")),
        ("pull", "connect: connection refused", ("cannot be pulled: conn", "ssh gpu1 docker")),
        ("start", "exec: executable file not found in $PATH", ("train:1 has no python3", "3.8")),
        ("start", "could not select device driver", ("no GPUs", "cluster.nodes.gpu1.gpus=0")),
        ("start", "newuidmap: write to uid_map failed", ("no range of users", "--add-subuids")),
        ("start", "bind source path does not exist: /no", ("not exist: /no", "container.mounts")),
    ],
)
def test_what_an_engine_says_has_a_next_step(step: str, said: str, texts: tuple[str, ...]) -> None:
    """One problem for each."""
    host = facts("gpu1", "eth0 10.0.0.1/24", container=ContainerFacts(step, said))
    (problem,) = container_problems(spec(NODE, container=DOCKER), NODE, host)
    for text in texts:
        assert text in str(problem)


def test_a_container_that_lacks_gpus_or_is_elsewhere() -> None:
    """Its engine said nothing of it."""
    inside = ContainerFacts("start", gpus=4, hostname="gpu1")
    host = facts("gpu1", "eth0 10.0.0.1/24", gpu_count=4, container=inside)
    assert host.hostname == "gpu1"
    wanted = spec(NODE, container=DOCKER)
    assert list(container_problems(wanted, NODE, host)) == []
    few = replace(host, container=replace(inside, gpus=1))
    (problem,) = container_problems(wanted, NODE, few)
    assert "a container has 1 of the 4 GPUs" in problem.message
    (problem,) = container_problems(wanted, NODE, replace(host, hostname="gpu2"))
    assert "on another machine, gpu1" in problem.message


def test_an_image_that_a_launch_would_pull_is_awaited() -> None:
    """By a dry run or check, unless it never will be."""
    host = facts("gpu1", "eth0 10.0.0.1/24", container=ContainerFacts("image", "No such image"))
    dry = replace(DOCKER, fetches=False)
    assert awaits_image(spec(NODE, container=dry), host)
    assert not awaits_image(spec(NODE, container=replace(dry, pull="never")), host)


ENV = {"RANK": "0", "TOKEN_LIKE": "a\nb", "HOME": "/run/home", "DOCKER_HOST": "tcp://inside"}


def test_only_values_that_the_client_would_use_itself_are_words() -> None:
    """They would change its own engine, and are no secrets."""
    docker = Container("docker", ("docker",), "train:1", secrets=("TOKEN", "LD_PRELOAD"))
    words = docker.prefix(name="", cwd="/w", env={**ENV, "LD_PRELOAD": "secret"})
    passed = [words[at + 1] for at, word in enumerate(words) if word == "--env"]
    own = ["HOME=/run/home", "DOCKER_HOST=tcp://inside"]
    assert passed == ["RANK", "TOKEN_LIKE", *own, "LD_PRELOAD", "TOKEN"]
    assert client_env(ENV) == {"RANK": "0", "TOKEN_LIKE": "a\nb"}


def test_name_is_one_that_engines_take() -> None:
    """Names of nodes may have letters that are not ASCII."""
    assert container_name("0314-x", "gpü.1", 2) == "runner-0314-x-gp_.1-2"
