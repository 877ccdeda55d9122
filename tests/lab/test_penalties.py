"""An sshd that turns our address away for failed logins: PerSourcePenalties of OpenSSH 9.8."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

import pytest

from tests.lab.lab import Lab, LabFactory
from tests.lab.lab.programs import sshd_path
from tests.lab.launching import Launcher, Result
from tests.lab.test_lab_itself import ssh


def knows_penalties() -> bool:
    """Whether this machine's sshd has them."""
    if not (path := sshd_path()):
        return False
    said = subprocess.run([path, "-V"], check=False, capture_output=True, text=True)
    version = re.search(r"OpenSSH_(\d+)\.(\d+)", said.stderr + said.stdout)
    return version is not None and tuple(map(int, version.groups())) >= (9, 8)


pytestmark = [
    pytest.mark.promise(4, 8),
    pytest.mark.documents("docs/troubleshooting.md"),
    pytest.mark.skipif(not knows_penalties(), reason="needs the sshd of OpenSSH 9.8 or later"),
]

PENALTY_S = 4


@pytest.fixture
def lab(lab_factory: LabFactory) -> Lab:
    """A host whose sshd turns an address away after one failed login."""
    options = f"PerSourcePenalties authfail:{PENALTY_S}s min:1s"
    return lab_factory(n=1, sshd_options={"node1": [options]})


@pytest.fixture
def exec_when_penalised(lab: Lab, launcher: Launcher) -> Callable[[float], Result]:
    """Run a command on that host, with so much patience, just after such a login."""

    def run(connect_timeout: float) -> Result:
        lab.write_cluster(launcher.conf, ssh={"connect_timeout": connect_timeout})
        failed = ssh(lab, lab["node1"], "true", key=lab.wrong_key)
        assert "Permission denied" in failed.stderr
        return launcher("exec", "--cluster", "lab", "--", "echo in")

    return run


def test_login_waits_until_the_penalty_is_over(
    exec_when_penalised: Callable[[float], Result],
) -> None:
    """Its attempts make that no longer."""
    done = exec_when_penalised(30)
    assert done.code == 0, done
    assert "in\n" in done.out
    assert 1 < done.seconds < PENALTY_S + 5


def test_penalty_that_lasts_longer_is_told(exec_when_penalised: Callable[[float], Result]) -> None:
    """With what sshd said, which is the same for MaxStartups."""
    done = exec_when_penalised(0.5)
    assert done.code == 3, done
    assert "node1: " in done.err
    assert "answers but refuses logins for now\n    it said: Not allowed at this time" in done.err
    assert "PerSourcePenalties" in done.err
