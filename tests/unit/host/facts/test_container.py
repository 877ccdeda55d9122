"""What an engine answers: a small program stands for its client."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.core.model.container import ContainerFacts, ContainerProbe
from runner.core.model.facts import FactsRequest, Interpreter
from runner.host.facts import container
from runner.host.facts.collect import collect
from runner.host.process.bounded_child import wait_all
from runner.host.process.event_loop import run_steps

CLIENT = """\
#!/bin/sh
echo "WARNING: Error loading config file: /root/.docker/config.json: permission denied" >&2
case $1 in
    endpoint) echo unix:///run/docker.sock ;;
    store) echo /tmp ;;
    version) echo 20.10 ;;
    image) echo linux/amd64 ;;
    run) shift; sleep 1; exec "$@" ;;
    fail) echo partly; echo "Error response from daemon: why" >&2; exit 1 ;;
esac
"""


def client_in(folder: Path) -> Path:
    """The client."""
    client = folder / "client"
    client.write_text(CLIENT)
    client.chmod(0o700)
    return client


def asked(folder: Path, **commands: tuple[str, ...]) -> ContainerFacts:
    """What the client answers."""
    client = client_in(folder)
    words: dict[str, Any] = {name: (str(client), *words) for name, words in commands.items()}
    probe = ContainerProbe(engine=(str(client), "version"), image=(str(client), "image"), run=())
    child = container.start(replace(probe, **words), {"PATH": "/bin"}, (), 10, str(folder))
    for _ in wait_all([child]):
        pass
    return container.result(child)


def test_a_warning_of_the_client_is_no_part_of_an_answer(tmp_path: Path) -> None:
    """Nor is its engine elsewhere for it."""
    found = asked(tmp_path, endpoint=("endpoint",))
    assert not found.is_elsewhere
    answers = [found.endpoint.output, found.engine.output, found.image.output]
    assert answers == ["unix:///run/docker.sock\n", "20.10\n", "linux/amd64\n"]


def found_inside(folder: Path, run_timeout_s: float) -> Interpreter:
    """The interpreter in a container that takes a second to start, other tools having less."""
    client = str(client_in(folder))
    probe = ContainerProbe((client, "version"), (client, "image"), (client, "run"))
    probe = replace(probe, run_timeout_s=run_timeout_s)
    asked_for = FactsRequest("n1", python=sys.executable, workdir=str(folder), container=probe)
    return run_steps(collect(replace(asked_for, tool_timeout_s=0.8))).facts.python


def test_a_container_has_longer_to_start_than_a_tool_to_answer(tmp_path: Path) -> None:
    """Its own limit, which is told when it is reached."""
    assert found_inside(tmp_path, 30).version
    error = found_inside(tmp_path, 0.5).error
    assert error.endswith(" in a container: no answer within 0.5 s")
