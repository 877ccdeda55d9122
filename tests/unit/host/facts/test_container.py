"""What an engine answers: a small program stands for its client."""

from __future__ import annotations

from pathlib import Path

from runner.core.model.container import ContainerProbe
from runner.host.facts import container
from runner.host.process.bounded_child import wait_all
from tests.lab.waiting import PATIENCE

CLIENT = """\
#!/bin/sh
echo "WARNING: Error loading config file: /root/.docker/config.json: permission denied" >&2
case $1 in
    endpoint) echo unix:///run/docker.sock ;;
    version) echo 20.10 ;;
    image) echo linux/amd64 ;;
esac
"""


def test_a_warning_of_the_client_is_no_part_of_an_answer(tmp_path: Path) -> None:
    """Nor is its engine elsewhere for it."""
    client = tmp_path / "client"
    client.write_text(CLIENT)
    client.chmod(0o700)
    probe = ContainerProbe(
        engine=(str(client), "version"),
        image=(str(client), "image"),
        run=(),
        endpoint=(str(client), "endpoint"),
    )
    child = container.start(probe, {"PATH": "/bin"}, (), 10 * PATIENCE)
    wait_all([child])
    found = container.result(child)
    assert not found.is_elsewhere
    answers = [found.endpoint.output, found.engine.output, found.image.output]
    assert answers == ["unix:///run/docker.sock\n", "20.10\n", "linux/amd64\n"]
