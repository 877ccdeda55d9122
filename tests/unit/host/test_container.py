"""Containers of a host: small programs stand for engines, and for the client of docker."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from runner.core.wire.container import Container
from runner.core.wire.facts import Facts, FactsRequest
from runner.host import container
from runner.host.container import remove_container
from runner.host.facts.container import Trial
from runner.host.process.bounded_child import wait_all
from tests.lab.waiting import PATIENCE

ENGINE = """#!/bin/sh
echo "a warning" >&2
cd {folder} || exit
case $1 in
  ps) echo "$4" "$6" >> ../asked; ls ;;
  rm) shift 3; rm -f "$@"; [ ! -e ../late ] || mv ../late . ;;
esac
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Container:
    """A program that keeps containers as an engine does: as files of a folder."""
    monkeypatch.setattr(container, "LOOK_AGAIN_S", 0.01)
    (tmp_path / "kept").mkdir()
    program = tmp_path / "engine"
    program.write_text(ENGINE.format(folder=tmp_path / "kept"))
    program.chmod(0o700)
    return Container("docker", (str(program),), "train:1", labels=("runner.run=r",))


def test_what_shows_up_late_is_removed_too(engine: Container, tmp_path: Path) -> None:
    """By its id; what the engine warns of is no container."""
    (tmp_path / "kept" / "0a1").touch()
    (tmp_path / "late").touch()
    assert remove_container(engine, {"PATH": os.defpath}) == ""
    assert list((tmp_path / "kept").iterdir()) == []
    asked = (tmp_path / "asked").read_text().splitlines()
    assert len(asked) == 4
    assert asked[0].endswith("label=runner.run=r")


def test_an_engine_that_does_not_answer_proves_nothing(tmp_path: Path) -> None:
    """Its words are the reason."""
    gone = Container("docker", (str(tmp_path / "gone"),), "train:1")
    expected = "docker does not say that its container is gone: No such file or directory"
    assert remove_container(gone, {"PATH": os.defpath}) == expected


CLIENT = """\
#!/bin/sh
echo "WARNING: no rights" >&2
cd {folder} || exit
case $1 in
    image) [ -e there ] || {{ echo "Error: No such image: x" >&2; exit 1; }} ;;
    pull) [ -e registry ] || {{ echo "Error response from daemon: refused" >&2; exit 1; }} ;;
    run)
        while [ "$1" != x ]; do shift; done
        shift
        if [ -e broken ]; then
            printf "docker: no room.\\nSee 'docker run --help'.\\n" >&2
            exit 125
        fi
        exec "$@" ;;
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
    wait_all([trial.child])
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
        (["there", "broken"], "never", ("start", "no room.", "")),
    ],
)
def test_step_that_fails_and_its_reason(
    tmp_path: Path, files: list[str], pull: str, expected: tuple[str, str, str]
) -> None:
    """In the engine's words; a warning is none where it answers."""
    assert tried(tmp_path, *files, pull=pull) == expected
