"""What a host finds out of an engine and an image: a small program stands for docker's client."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from runner.core.wire.container import Container
from runner.core.wire.facts import Facts, FactsRequest
from runner.host.facts.container import Trial
from runner.host.process.bounded_child import wait_all
from runner.host.process.event_loop import run_steps
from tests.lab.waiting import PATIENCE

CLIENT = """\
#!/bin/sh
echo "WARNING: permission denied" >&2
cd {folder} || exit
case $1 in
    image) [ -e there ] || {{ echo "Error: No such image: x" >&2; exit 1; }} ;;
    pull) [ -e registry ] || {{ echo "Error response from daemon: refused" >&2; exit 1; }} ;;
    run) while [ "$1" != x ]; do shift; done; shift; [ ! -e broken ] || exit 125; exec "$@" ;;
esac
"""


def tried(tmp_path: Path, *files: str, pull: str = "missing") -> tuple[str, str, str]:
    """Return the last step, its problem, and the interpreter."""
    client = tmp_path / "client"
    client.write_text(CLIENT.format(folder=tmp_path))
    client.chmod(0o700)
    for name in files:
        (tmp_path / name).touch()
    limit_s = 10.0 * PATIENCE
    request = FactsRequest(
        node="n",
        python=sys.executable,
        container=Container("docker", (str(client),), "x"),
        pull=pull,
        pull_timeout_s=limit_s,
        container_start_s=limit_s,
    )
    trial = Trial(request, Facts(node="n"), {"PATH": "/usr/bin:/bin"})
    run_steps(wait_all([trial.child]))
    trial.end()
    found, python = trial.result()
    assert (found.shm_bytes > 0) == (not found.problem)
    return found.step, found.problem, python.executable


@pytest.mark.parametrize(
    ("files", "pull", "expected"),
    [
        (["there"], "missing", ("start", "", sys.executable)),
        (["registry"], "missing", ("start", "", sys.executable)),
        (["there"], "always", ("pull", "refused", "")),
        ([], "never", ("image", "No such image: x", "")),
        (["there", "broken"], "never", ("start", "WARNING: permission denied", "")),
    ],
)
def test_step_that_fails_and_its_reason(
    tmp_path: Path, files: list[str], pull: str, expected: tuple[str, str, str]
) -> None:
    """In the engine's words; a warning is none where it answers."""
    assert tried(tmp_path, *files, pull=pull) == expected
