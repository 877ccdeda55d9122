"""Many hosts behind one bastion, whose sshd drops what exceeds its MaxStartups."""

from __future__ import annotations

import pytest

from tests.lab.lab import LOGIN_USER, LabFactory
from tests.lab.launching import Launcher

pytestmark = [pytest.mark.promise(4, 8), pytest.mark.all]


def test_all_hosts_behind_a_bastion_are_reached(
    lab_factory: LabFactory, launcher: Launcher
) -> None:
    """By one login at the jump host for all."""
    hosts = [f"in{number}" for number in range(1, 9)]
    options = {"bastion": ["MaxStartups 3:100:3"]}
    lab = lab_factory(names=["bastion", *hosts], isolated=hosts, sshd_options=options)
    jump = f"{LOGIN_USER}@{lab['bastion'].address}"
    lab.write_cluster(launcher.conf, names=hosts, ssh={"jump": jump})
    done = launcher("exec", "--cluster", "lab", "--quiet-equal", "--", "true")
    assert done.code == 0, done
