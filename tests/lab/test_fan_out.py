"""Big releases on real hosts, which serve them to each other."""

from __future__ import annotations

import json
import os
import re

import pytest

from tests.lab.lab import Lab
from tests.lab.launching import Launcher

pytestmark = [pytest.mark.all]

SIZE = 40_000_000
DEPLOY = ("deploy", "--cluster", "lab4", "--json")


@pytest.fixture
def project(on_lab: Launcher) -> Launcher:
    """A user with a big file, an empty one, and two of the same content."""
    (on_lab.folder / "big").write_bytes(os.urandom(SIZE))
    (on_lab.folder / "empty").touch()
    for name in ("one", "twin"):
        (on_lab.folder / name).write_text("twin")
    return on_lab


def sums(lab: Lab, release: str) -> set[str]:
    """The hashes of what the hosts have of a release: one line where all have the same."""
    code = f"cd ~/.runner/releases/{release}/code"
    return {host.sh(f"{code} && sha256sum big empty one twin") for host in lab.hosts.values()}


def test_a_holder_that_dies_is_replaced(lab: Lab, project: Launcher) -> None:
    """What serves the release is killed each time: the hosts get it all the same."""
    (project.folder / "big").write_bytes(os.urandom(4 * SIZE))
    deploy = project.start(*DEPLOY)
    killed = 0
    while deploy.process.poll() is None:
        for host in lab.hosts.values():
            for row in host.sh("ss -Htlnp 'sport != 22' || true", user="root").splitlines():
                for pid in re.findall(r"pid=(\d+)", row):
                    host.sh(f"kill -9 {pid} || true", user="root")
                    killed += 1
    done = deploy.wait()

    assert done.code == 0, done
    assert killed, "nobody served"
    assert len(sums(lab, json.loads(done.out)["release"])) == 1
