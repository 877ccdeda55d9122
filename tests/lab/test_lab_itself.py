"""The lab itself: what every other test on real hosts relies on."""

from __future__ import annotations

import signal
import socket

import pytest

from tests.lab.lab import Lab, LabError
from tests.lab.waiting import PATIENCE


def test_a_crash_is_seen_and_a_home_is_made_again(lab: Lab) -> None:
    """Also where a test left folders that cannot be written to."""
    host = lab["node1"]
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
