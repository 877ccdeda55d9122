"""What is wrong with engine, image or interpreter on a host, by what the engine printed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runner.core.model.container import NOT_ASKED, CommandAnswer, ContainerFacts, InsideFacts
from runner.core.model.facts import Interpreter
from runner.core.planning.container.problems import container_problems
from runner.core.spec import ContainerSpec, Node
from tests.golden.builders import facts, spec

NODE = Node("gpu1", "gpu1")
YES = CommandAnswer(0, "linux/amd64\n")
LOCAL = CommandAnswer(0, "unix:///var/run/docker.sock\n")


def said(kind: str = "docker", python: str = "", node: Node = NODE, **answers: Any) -> list[str]:
    found = ContainerFacts(program=f"/usr/bin/{kind}", engine=YES, image=YES, endpoint=LOCAL)
    host = facts(node.name, "eth0 10.0.0.1/24", gpu_count=4, container=replace(found, **answers))
    host = replace(host, machine="x86_64")
    host = replace(host, python=Interpreter(error=python)) if python else host
    image = ContainerSpec(engine=kind, program=kind, image="train:1")
    return [str(each) for each in container_problems(spec(node, container=image), node, host)]


def test_nothing_is_wrong_with_what_is_well() -> None:
    """Nor where nobody counted the GPUs."""
    assert said() == []
    assert said(inside=InsideFacts(gpus=4)) == []


@pytest.mark.parametrize(
    ("engine", "answers", "texts"),
    [
        (
            "docker",
            {"engine": CommandAnswer(1, "WARNING: x: permission denied\nCannot connect to it\n")},
            ("docker.sock) does not run", "systemctl start docker"),
        ),
        (
            "apptainer",
            {"image": CommandAnswer(255, "FATAL: no such file\n")},
            ("container.image: train:1 cannot be read: FATAL: no such file", "put the file there"),
        ),
        (
            "podman",
            {"engine": NOT_ASKED, "image": NOT_ASKED, "endpoint": CommandAnswer(0, "ssh://far\n")},
            ("podman is set to use ssh://far, another machine", "CONTAINER_HOST unset there"),
        ),
        (
            "docker",
            {"inside": InsideFacts(gpus=1)},
            ("docker: a container has 1 of the 4 GPUs", "nvidia-ctk", "cluster.nodes.gpu1.gpus=0"),
        ),
    ],
)
def test_an_engine_that_cannot_be_used(
    engine: str, answers: dict[str, Any], texts: tuple[str, ...]
) -> None:
    """One problem, with what to do."""
    (problem,) = said(engine, **answers)
    for text in texts:
        assert text in problem
    assert "\n" in problem


EXIT = "python3 ended with exit code {} without an answer: {}"
OCI = 'docker: Error response from daemon: failed: exec: "python3": {}: unknown.'


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (EXIT.format(127, OCI.format("executable file not found in $PATH")), "train:1 has no pyth"),
        (
            "starting python3 in a container: no answer within 300 s",
            "container.image: train:1: a container did not start within 300 s",
        ),
    ],
)
def test_an_interpreter_that_does_not_answer(error: str, text: str) -> None:
    """It is missing, or its engine has refused the container."""
    (problem,) = said(python=error)
    assert text in problem
    assert "\n" in problem
