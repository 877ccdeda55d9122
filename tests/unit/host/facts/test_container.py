"""What an engine answers: a small program stands for its client."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.core.model.container import ContainerFacts, ContainerProbe
from runner.host.facts import container
from runner.host.process.bounded_child import wait_all

CLIENT = """\
#!/bin/sh
echo "WARNING: Error loading config file: /root/.docker/config.json: permission denied" >&2
case $1 in
    endpoint) echo unix:///run/docker.sock ;;
    store) echo /tmp ;;
    version) echo 20.10 ;;
    image) echo linux/amd64 ;;
    fail) echo partly; echo "Error response from daemon: why" >&2; exit 1 ;;
esac
"""


def asked(folder: Path, **commands: tuple[str, ...]) -> ContainerFacts:
    """What the client answers."""
    client = folder / "client"
    client.write_text(CLIENT)
    client.chmod(0o700)
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


def test_the_store_is_found_despite_a_warning(tmp_path: Path) -> None:
    """Its room is known before a pull."""
    found = asked(tmp_path, image=("fail",), pull=("fail",), store=("store",))
    assert found.store == "/tmp"
    assert found.store_free
    assert found.pull.output.endswith("Error response from daemon: why\n")
