"""Many hosts behind one bastion, whose sshd drops what exceeds its MaxStartups."""

from __future__ import annotations

import contextlib
import shlex
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.transport.ssh.login_budget import FIRST_LOGINS
from tests.lab.lab import LOGIN_USER, Host, Lab, LabFactory
from tests.lab.launching import Launcher
from tests.lab.test_lab_itself import ssh_options

pytestmark = [pytest.mark.promise(4, 8)]

HOSTS = [f"in{number}" for number in range(1, 13)]


@pytest.fixture
def lab(lab_factory: LabFactory) -> Lab:
    """Twelve hosts that only a bastion reaches; its sshd takes three logins at a time."""
    options = {"bastion": ["MaxStartups 3:100:3"]}
    return lab_factory(names=["bastion", *HOSTS], isolated=HOSTS, sshd_options=options)


def proxied(lab: Lab, folder: Path, key: Path | None = None) -> dict[str, str]:
    """Return settings for `cluster.ssh` with one login at the bastion for each host."""
    words = ["ssh", *ssh_options(lab, key or lab.key), "-W", "%h:%p"]
    config = folder / "ssh_config"
    command = f"{shlex.join(words)} {LOGIN_USER}@{lab['bastion'].address}"
    config.write_text(f"Host *\n ProxyCommand {command}\n")
    return {"config": str(config)}


@contextlib.contextmanager
def unfinished_logins(host: Host, count: int) -> Iterator[None]:
    """Keep as many logins in progress at a host's sshd."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            link = stack.enter_context(socket.create_connection((host.address, host.port), 5))
            assert link.recv(4) == b"SSH-"
        yield


@pytest.mark.parametrize("way", ["jump", "proxy_command"])
def test_all_hosts_behind_a_bastion_are_reached(lab: Lab, launcher: Launcher, way: str) -> None:
    """By one login at the jump host for all, and by a ProxyCommand's login for each."""
    jump = {"jump": f"{LOGIN_USER}@{lab['bastion'].address}"}
    settings = jump if way == "jump" else proxied(lab, launcher.folder)
    lab.write_cluster(launcher.conf, names=HOSTS, ssh=settings)
    done = launcher("exec", "--cluster", "lab", "--quiet-equal", "--", "true")
    assert done.code == 0, done


@pytest.mark.parametrize("way", ["jump", "proxy_command"])
def test_bastion_that_refuses_for_now_is_named(lab: Lab, launcher: Launcher, way: str) -> None:
    """It is up, which the message tells from a host that is down, with what to do."""
    bastion = lab["bastion"]
    jump = {"jump": f"{LOGIN_USER}@{bastion.address}"}
    route = jump if way == "jump" else proxied(lab, launcher.folder)
    settings = {**route, "connect_timeout": 2}
    lab.write_cluster(launcher.conf, names=HOSTS, ssh=settings)
    with unfinished_logins(bastion, 3):
        done = launcher("exec", "--cluster", "lab", "--", "true")
    assert done.code == 3, done
    assert done.seconds < 20
    assert "refuses logins for now" in done.err
    assert "MaxStartups" in done.err
    assert "PerSourcePenalties" in done.err
    assert bastion.address in done.err.splitlines()[0]
    assert done.err.startswith("error: in[1-12]: ")
    assert done.err.count("error:") == 1


def test_bastion_that_accepts_no_key_is_asked_by_two_only(lab: Lab, launcher: Launcher) -> None:
    """What it said is told once for all hosts, and at once."""
    settings = proxied(lab, launcher.folder, lab.wrong_key)
    lab.write_cluster(launcher.conf, names=HOSTS, ssh=settings)
    done = launcher("exec", "--cluster", "lab", "--", "true")
    assert done.code == 3, done
    assert done.seconds < 8
    assert done.err.startswith("error: in[1-12]: the jump host of the ProxyCommand `ssh ")
    assert "` denies the login\n" in done.err
    assert "Permission denied (publickey)" in done.err
    assert done.err.count("error:") == 1
    denied = lab["bastion"].console.read_text().count("by authenticating user")
    assert 1 <= denied <= FIRST_LOGINS
