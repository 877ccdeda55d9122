"""What every transport promises, against real processes: sshds, and children of this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runner.core.spec import Node
from runner.transport.base import Connection
from runner.transport.process import LocalTransport
from tests.lab.sshds import MakePlace, Place, children_of, read_all, start
from tests.lab.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.promise(7)]

MEGABYTE = 1_000_000
Connect = Callable[[], Connection]


@pytest.fixture(autouse=True)
def silence(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Whatever happens, nothing is printed."""
    yield
    assert capfd.readouterr() == ("", "")


@pytest.fixture(params=["ssh", "openssh", "local"])
def connect(request: pytest.FixtureRequest, make_place: MakePlace) -> Connect:
    """All transports: what the seam promises holds for each."""
    if request.param == "local":
        return lambda: LocalTransport().connect(Node("here", "localhost", transport="local"))
    place = make_place(request.param)
    sshd = place.sshd()
    transport = place.transport()
    return lambda: transport.connect(sshd.node())


def test_big_output_arrives_whole(connect: Connect) -> None:
    """What a command prints comes as it was written, and what it reads as it was sent."""
    channel = start(connect(), "head -n 1; head -c 40000000 /dev/zero; echo end >&2")
    channel.write(b"hello\n")
    output = read_all(channel)
    assert output.replace(b"end\n", b"").strip(b"\0") == b"hello\n"
    assert len(output) == 40_000_000 + len(b"hello\nend\n")


def test_close_wakes_a_reader(connect: Connect) -> None:
    """Who waits for output gets the end, and who waits for a reader an error; not after 900 s."""
    read = start(connect(), "sleep 900")
    written = start(connect(), "sleep 900")
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(read.read)
        writing = pool.submit(written.write, bytes(50 * MEGABYTE))
        wait_until(lambda: reading.running() and writing.running(), "both threads")
        read.close()
        read.close()
        written.close()
        assert reading.result(60 * PATIENCE) == b""
        with pytest.raises(OSError):  # noqa: PT011 - which one is not promised
            writing.result(60 * PATIENCE)


def test_end_of_a_program_is_told(connect: Connect) -> None:
    """Its exit code, also that by which ssh says that it failed itself."""
    for code in (0, 7, 255):
        channel = start(connect(), f"echo bye >&2; exit {code}")
        assert read_all(channel) == b"bye\n"
        assert channel.ended
        assert (channel.ended.status, channel.ended.reason) == (
            code,
            f"the program ended with exit code {code}",
        )


def test_local_child_is_gone_after_close(tmp_path: Path) -> None:
    """One that ends with its input does so by itself; one that does not is killed; none stays."""
    here = LocalTransport().connect(Node("here", "localhost", transport="local"))
    polite = start(here, f"cat; echo end >{tmp_path}/polite")
    deaf = start(here, "trap '' TERM; echo $$; while :; do sleep 60; done")
    pid = int(deaf.read())
    polite.close()
    deaf.close()
    assert (tmp_path / "polite").read_text() == "end\n"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_lost_connection_ends_the_channel(place: Place) -> None:
    """Reader and writer learn of it, and that it was not the program; a new one can be made."""
    sshd = place.sshd()
    transport = place.transport()
    channel = start(transport.connect(sshd.node()), "echo on; exec sleep 900")
    assert channel.read() == b"on\n"
    sshd.signal_sessions(signal.SIGKILL)
    assert channel.read() == b""
    assert channel.ended
    assert channel.ended.status is None
    assert channel.ended.reason.startswith("the ssh connection was lost")
    with pytest.raises(OSError):  # noqa: PT011 - which one is not promised
        channel.write(b"x")
    channel.close()
    assert read_all(start(transport.connect(sshd.node()), "echo back")) == b"back\n"


@pytest.mark.all
def test_close_does_not_wait_for_a_frozen_host(place: Place) -> None:
    """Not even while writers have filled the connection to the brim."""
    sshd = place.sshd()
    transport = place.transport()
    channels = [start(transport.connect(sshd.node()), "cat >/dev/null") for _ in range(3)]
    sshd.signal_sessions(signal.SIGSTOP)
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(channel.write, bytes(9 * MEGABYTE)) for channel in channels]
        wait_until(lambda: all(each.running() for each in waiting), "the writers")
        for channel in channels:
            pool.submit(channel.close).result(60 * PATIENCE)
        for each in waiting:
            with pytest.raises(OSError):  # noqa: PT011 - which one is not promised
                each.result(60 * PATIENCE)


def test_killed_controller_leaves_no_client(make_place: MakePlace) -> None:
    """The user's client ends with what started it, and with it the session on the host."""
    place = make_place("openssh")
    sshd = place.sshd()
    ssh = place.ssh()
    code = f"""
from runner.core.spec import Node, Ssh
from runner.transport.logins import SshTransport
from runner.transport.process import OpensshConnection
ssh = {ssh!r}
transport = SshTransport(ssh, lambda *where: OpensshConnection(ssh, *where))
channel = transport.connect({sshd.node()!r}).start(["cat"])
print("on", flush=True)
channel.read()
"""
    argv = [sys.executable, "-c", code]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as controller:
        assert controller.stdout
        assert controller.stdout.readline() == "on\n"
        assert [*children_of(sshd.process.pid)]
        controller.kill()
    wait_until(lambda: not [*children_of(sshd.process.pid)], "the end of the session")


def test_nodes_behind_a_jump_host_share_its_connection(place: Place) -> None:
    """One log-in at each bastion, however many nodes are reached; a lost one is replaced."""
    outer = place.sshd()
    gate = place.sshd()
    first = place.sshd()
    second = place.sshd()
    nodes = [first.node("gpu1"), second.node("gpu2"), first.node("gpu3"), second.node("gpu4")]
    transport = place.transport(jump=(outer.hop, gate.hop))

    def say(node: Node) -> bytes:
        return read_all(start(transport.connect(node), f"echo {node.name}"))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(say, nodes)) == [b"gpu1\n", b"gpu2\n", b"gpu3\n", b"gpu4\n"]
    assert [sshd.logins for sshd in (outer, gate, first, second)] == [1, 1, 2, 2]
    channel = start(transport.connect(nodes[0]), "exec sleep 900")
    gate.signal_sessions(signal.SIGKILL)
    assert read_all(channel) == b""
    assert say(nodes[0]) == b"gpu1\n"
