"""The words before a command: what of its environment is on them, and what is not."""

from __future__ import annotations

from runner.core.wire.container import Container, client_env, container_name

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


def test_words_of_another_engine_are_all_there_is() -> None:
    """Its processes are children of ours."""
    words = ("apptainer", "exec", "--nv", "x.sif")
    assert Container("", words).prefix(name="a", cwd="/w", env=ENV) == words
