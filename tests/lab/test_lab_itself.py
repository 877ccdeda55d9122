"""The lab itself: what every other test on real hosts relies on."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lab.lab import LOGIN_USER, Host, Lab, LabError
from tests.lab.waiting import PATIENCE

if TYPE_CHECKING:
    pass


def ssh(
    lab: Lab, host: Host, command: str, *options: str, user: str = LOGIN_USER
) -> subprocess.CompletedProcess[str]:
    settings = {
        "BatchMode": "yes",
        "IdentitiesOnly": "yes",
        "IdentityFile": lab.key,
        "UserKnownHostsFile": lab.known_hosts,
        "GlobalKnownHostsFile": "/dev/null",
    }
    flags = [f"-o{name}={value}" for name, value in settings.items()]
    return subprocess.run(
        ["ssh", "-F/dev/null", *flags, *options, f"{user}@{host.address}", command],
        check=False,
        capture_output=True,
        text=True,
        timeout=20 * PATIENCE,
    )


def answers(host: Host, within_s: float = 10) -> bool:
    ping = ["ping", "-q", "-c", "1", "-W", str(within_s), host.address]
    return subprocess.run(ping, check=False, capture_output=True).returncode == 0


def test_a_host_is_a_machine_of_its_own(lab: Lab) -> None:
    """Its name, accounts, network and files are its own; this Python and pytest's folder are not.

    A crash of a supervisor on it is seen, and its homes are made again.
    """
    host, other = lab["node1"], lab["node2"]
    for user in ("root", "alice"):
        done = ssh(lab, host, "hostname; id -un; pwd; echo $SSH_CONNECTION", user=user)
        assert (done.returncode, done.stderr) == (0, "")
        hostname, account, home, connection = done.stdout.splitlines()
        assert (hostname, account, home) == ("node1", user, f"/home/{user}")
        assert connection.split()[0::2] == [lab.address, host.address]
        assert host.sh(f"{sys.executable} -c 'import yaml; print(42)'", user=user) == "42\n"
    assert host.sh("ls /sys/class/net").split() == ["eth0", "lo"]
    assert host.sh("getent hosts node2").split() == [other.address, "node2"]
    for folder in ("/home/root", "/tmp", "/run", "/dev/shm", "/var/log", "/root"):
        path = f"{folder}/only-here"
        host.write(path, "mine", user="root")
        assert host.read(path, user="root") == "mine"
        assert not Path(path).exists()
        with pytest.raises(LabError, match="No such file"):
            other.read(path, user="root")
        host.sh(f"rm {path}", user="root")
    everything = "find . -printf '%P %u %m %s\\n' | sort"
    before = host.sh(everything)
    host.sh("mkdir -m 500 frozen; ln -s frozen link; rm .profile; chmod 750 .")
    host.write("~/.runner/runs/1122-0900-rank-abcd/node1/supervisor.log", "Traceback")
    assert lab.crashes() == {"node1": ["Traceback"]}
    lab.reset_homes()
    assert lab.crashes() == {}
    assert host.sh(everything) == before


def test_a_power_cut_tells_nobody(lab: Lab) -> None:
    """An open connection just falls silent; the reboot keeps the disk and nothing else."""
    host = lab["node3"]
    host.write("kept", "on disk")
    host.write("/tmp/lost", "in memory")
    sleeper = host.popen(["sleep", "600"])
    with socket.create_connection((host.address, 22)) as connection:
        connection.settimeout(10 * PATIENCE)
        assert connection.recv(4) == b"SSH-"
        connection.recv(1000)
        host.power_off()
        assert sleeper.wait(5 * PATIENCE) == -signal.SIGKILL
        assert not host.is_on
        assert host.processes() == []
        with pytest.raises(LabError, match="node3 is off"):
            host.sh("true")
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(1)

        host.power_on()
        connection.settimeout(10 * PATIENCE)
        connection.send(b"still there?")
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    assert host.read("kept") == "on disk"
    assert host.sh("ls /tmp/lost || echo none", check=False) == "none\n"


def test_clear_and_repair_undo_everything(lab: Lab) -> None:
    """Whatever a test broke, the next one finds a sound lab."""
    off, cut, busy = (lab[f"node{i}"] for i in (1, 2, 3))
    off.power_off()
    cut.unplug()
    cut.fill_disk()
    assert not answers(cut, within_s=0.3)
    with pytest.raises(LabError, match="No space left on device"):
        cut.sh("head -c 1 /dev/zero > file")
    busy.sh("setsid sleep 600 >/dev/null 2>&1 &")
    busy.sh("mkdir -p /dev/shm/folder && touch /dev/shm/folder/go /dev/shm/go")
    assert list(lab.leftovers()) == ["node3"]

    lab.repair()
    lab.kill_all()

    assert lab.leftovers() == {}
    assert busy.sh("ls /dev/shm") == ""
    assert [ssh(lab, host, "echo ok > ok").returncode for host in lab.hosts.values()] == [0] * 4
