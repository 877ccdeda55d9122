"""Both transports against real processes: sshds on the loopback, and children of this one.

The lab's hosts are not needed here: an sshd per address 127.0.0.x starts in milliseconds.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from runner.core.errors import NotReady, Problem
from runner.core.spec import Node, Ssh
from runner.transport.base import Channel, Transport
from runner.transport.local import LocalTransport
from runner.transport.ssh import protocol as ssh_protocol
from runner.transport.ssh.transport import SshTransport
from tests.lab.lab import need
from tests.lab.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.promise(7)]

USER = getpass.getuser()
MEGABYTE = 1_000_000


class Sshd:
    """An sshd of our own: an address and a port of the loopback, its own host key."""

    def __init__(self, folder: Path, number: int, authorized: Path, *options: str) -> None:
        folder.mkdir()
        self.address = f"127.0.0.{number}"
        self.port = free_port(self.address)
        self.log = folder / "log"
        self.folder = folder
        self.host_key = make_key(folder / "host_key")
        config = folder / "config"
        settings = [
            "MaxStartups 200",  # the last value of this option counts, of others the first
            f"Port {self.port}",
            f"ListenAddress {self.address}",
            f"HostKey {self.host_key}",
            f"AuthorizedKeysFile {authorized}",
            *options,
            *("PidFile none", "UsePAM no", "StrictModes no", "UseDNS no"),
            *("PasswordAuthentication no", "MaxSessions 200"),
            "LogLevel VERBOSE",
            f"SetEnv HOME={folder}",  # bash reads ~/.bashrc under sshd, and that may do anything
        ]
        config.write_text("\n".join(settings) + "\n")
        argv = ["/usr/sbin/sshd", "-D", "-E", str(self.log), "-f", str(config)]
        self.process = subprocess.Popen(argv, start_new_session=True)
        self.wait()

    @property
    def name(self) -> str:
        return f"[{self.address}]:{self.port}"

    @property
    def known(self) -> str:
        return f"{self.name} {Path(f'{self.host_key}.pub').read_text().strip()}\n"

    @property
    def hop(self) -> str:
        return f"{self.address}:{self.port}"

    def node(self, name: str = "gpu1") -> Node:
        return Node(name, self.address, port=self.port)

    def logged(self, words: str) -> int:
        return self.log.read_text().count(words)

    @property
    def logins(self) -> int:
        return self.logged("Accepted publickey")

    def wait(self) -> None:

        def listens() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            with socket.socket() as probe:
                return probe.connect_ex((self.address, self.port)) == 0

        wait_until(listens, "the start of sshd")

    def sessions(self) -> list[int]:
        """Return the processes that serve connections, with what they have started."""
        mine = list(children_of(self.process.pid))
        for pid in mine:
            mine.extend(children_of(pid))
        return mine

    def signal_sessions(self, number: signal.Signals) -> None:
        for pid in self.sessions():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self) -> None:
        sessions = self.sessions()
        self.process.kill()
        self.process.wait()
        for pid in sessions:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Place:
    """A folder with a key, a known-hosts file, and the sshds and transports of a test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known_hosts = folder / "known_hosts"
        self.key = make_key(folder / "id")
        self.authorized = Path(f"{self.key}.pub")
        self.notes: list[str] = []
        self.sshds: list[Sshd] = []
        self.transports: list[SshTransport] = []

    def sshd(self, *options: str, known: bool = True) -> Sshd:
        number = len(self.sshds) + 2
        sshd = Sshd(self.folder / f"sshd{number}", number, self.authorized, *options)
        self.sshds.append(sshd)
        if known:
            with self.known_hosts.open("a") as file:
                file.write(sshd.known)
        return sshd

    def transport(self, **settings: Any) -> SshTransport:
        """Make a transport that reads nothing of the user's."""
        empty = self.folder / "config"
        empty.touch()
        ssh = Ssh(
            **{
                "key": str(self.key),
                "known_hosts": str(self.known_hosts),
                "config": str(empty),
                "connect_timeout": 60.0,
                **settings,
            }
        )
        transport = SshTransport(ssh, on_note=self.notes.append)
        self.transports.append(transport)
        return transport

    def problem(self, node: Node, **settings: Any) -> Problem:
        with pytest.raises(NotReady) as caught:
            self.transport(**settings).open(node, "true")
        (problem,) = caught.value.problems
        assert problem.subject == node.name
        return problem

    def close(self) -> None:
        for transport in self.transports:
            transport.close()
        for sshd in self.sshds:
            sshd.stop()


def make_key(path: Path, *options: str) -> Path:
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", *options, "-f", str(path)]
    subprocess.run(argv, check=True)
    return path


def fingerprint(path: Path) -> str:
    argv = ["ssh-keygen", "-lf", f"{path}.pub"]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split()[1]


def free_port(address: str) -> int:
    with socket.socket() as server:
        server.bind((address, 0))
        return int(server.getsockname()[1])


def read_all(channel: Channel) -> bytes:
    return b"".join(iter(channel.recv, b""))


def command_of(hint: str, start: str) -> str:
    (found,) = re.findall(rf"{re.escape(start)}.*", hint)
    return str(found)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    need("" if Path("/usr/sbin/sshd").exists() else "no sshd here")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    Path("/run/sshd").mkdir(exist_ok=True)
    place = Place(tmp_path)
    yield place
    place.close()


@pytest.fixture(autouse=True)
def silence(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Whatever happens, neither paramiko nor Fabric says a word."""
    yield
    assert capfd.readouterr() == ("", "")


@pytest.fixture(params=["ssh", "local"])
def reach(request: pytest.FixtureRequest, place: Place) -> Iterator[tuple[Transport, Node]]:
    """Both transports: what the seam promises holds for each."""
    if request.param == "ssh":
        yield place.transport(), place.sshd().node()
        return
    local = LocalTransport()
    yield local, Node("here", "localhost", transport="local")
    local.close()


# What the seam promises


def test_big_output_arrives_whole(reach: tuple[Transport, Node]) -> None:
    """What a command prints comes as it was written, and what it reads as it was sent."""
    transport, node = reach
    channel = transport.open(node, "head -n 1; head -c 40000000 /dev/zero")
    channel.send(b"hello\n")
    output = read_all(channel)
    assert output.strip(b"\0") == b"hello\n"
    assert len(output) == 40_000_000 + len(b"hello\n")


def test_close_wakes_a_reader(reach: tuple[Transport, Node]) -> None:
    """Who waits for output gets the end, and who waits for a reader an error; not after 900 s."""
    transport, node = reach
    read, written = (transport.open(node, "sleep 900") for _ in range(2))
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(read.recv)
        writing = pool.submit(written.send, bytes(50 * MEGABYTE))
        wait_until(lambda: reading.running() and writing.running(), "both threads")
        read.close()
        read.close()
        written.close()
        assert reading.result(60 * PATIENCE) == b""
        with pytest.raises(OSError):  # noqa: PT011 - which one is not promised
            writing.result(60 * PATIENCE)


# This machine


def test_local_child_is_gone_after_close(tmp_path: Path) -> None:
    """One that ends with its input does so by itself; one that does not is killed; none stays."""
    transport = LocalTransport()
    node = Node("here", "localhost", transport="local")
    polite = transport.open(node, f"cat; echo end >{tmp_path}/polite")
    deaf = transport.open(node, "trap '' TERM; echo $$; while :; do sleep 60; done")
    pid = int(deaf.recv())
    polite.close()
    transport.close()
    assert (tmp_path / "polite").read_text() == "end\n"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


# Connections


def test_channels_of_a_node_share_a_connection(place: Place) -> None:
    """Threads that come while the login is on wait for that one, and later ones need none."""
    sshd, transport = place.sshd(), place.transport()
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda _: read_all(transport.open(sshd.node(), "echo hi")), range(8))
        assert list(found) == [b"hi\n"] * 8
    assert read_all(transport.open(sshd.node(), "echo hi")) == b"hi\n"
    assert sshd.logins == 1


def test_lost_connection_ends_the_channel_and_is_replaced(place: Place) -> None:
    """Reader and writer learn of it; the next channel comes over a new connection."""
    sshd, transport = place.sshd(), place.transport()
    channel = transport.open(sshd.node(), "exec sleep 60")
    sshd.signal_sessions(signal.SIGKILL)
    assert channel.recv() == b""
    with pytest.raises(OSError):  # noqa: PT011 - which one is not promised
        channel.send(b"x")
    assert read_all(transport.open(sshd.node(), "echo back")) == b"back\n"
    assert sshd.logins == 2


@pytest.mark.all
def test_silent_connection_is_replaced(place: Place) -> None:
    """A connection whose other end froze is left after `connect_timeout` for a new one."""
    sshd, transport = place.sshd(), place.transport(connect_timeout=5)
    transport.open(sshd.node(), "exec sleep 900")
    sshd.signal_sessions(signal.SIGSTOP)
    assert read_all(transport.open(sshd.node(), "echo back")) == b"back\n"


@pytest.mark.all
def test_close_does_not_wait_for_a_frozen_host(place: Place) -> None:
    """Not even while writers have filled the connection to the brim."""
    sshd, transport = place.sshd(), place.transport()
    channels = [transport.open(sshd.node(), "cat >/dev/null") for _ in range(4)]
    sshd.signal_sessions(signal.SIGSTOP)
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(channel.send, bytes(9 * MEGABYTE)) for channel in channels]
        wait_until(lambda: all(each.running() for each in waiting), "the writers")
        pool.submit(channels[0].close).result(60 * PATIENCE)
        pool.submit(transport.close).result(60 * PATIENCE)
        for each in waiting:
            with pytest.raises(OSError):  # noqa: PT011 - which one is not promised
                each.result(60 * PATIENCE)


# Our keys


def test_refused_key_is_named(place: Place) -> None:
    """With its user, and a command to try the same by hand."""
    sshd = place.sshd()
    other = make_key(place.folder / "other")
    problem = place.problem(sshd.node(), key=str(other), user=USER)
    assert problem.message == (
        f"{sshd.address} port {sshd.port} refused every key offered for user {USER}: {other}"
    )
    assert f"~{USER}/.ssh/authorized_keys" in problem.hint
    by_hand = command_of(problem.hint, "ssh -v")
    assert f"-p {sshd.port} {USER}@{sshd.address}" in by_hand
    said = subprocess.run(
        [*shlex.split(by_hand), "-o", "BatchMode=yes"], check=False, capture_output=True, text=True
    )
    assert "Permission denied" in said.stderr


@pytest.mark.all
def test_agent_opens_an_encrypted_key(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent signs for it, and is not forwarded."""
    sshd = place.sshd("AllowAgentForwarding yes")
    with agent(place, monkeypatch, place.key):
        subprocess.run(
            ["ssh-keygen", "-q", "-p", "-N", "secret", "-f", place.key],
            check=True,
            capture_output=True,
        )
        channel = place.transport().open(sshd.node(), 'echo "<$SSH_AUTH_SOCK>"')
        assert read_all(channel) == b"<>\n"


@contextlib.contextmanager
def agent(place: Place, monkeypatch: pytest.MonkeyPatch, *keys: Path) -> Iterator[None]:
    path = place.folder / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        wait_until(path.exists, "the agent's socket")
        subprocess.run(["ssh-add", "-q", *keys], check=True, stderr=subprocess.DEVNULL)
        yield
    finally:
        process.kill()
        process.wait()


# The host's key


def test_unknown_host_key_is_refused_with_the_next_steps(place: Place) -> None:
    """The fingerprint is OpenSSH's, and what the message says to type cures it."""
    sshd = place.sshd(known=False)
    problem = place.problem(sshd.node())
    assert problem.message == (
        f"the host key of {sshd.address} port {sshd.port} is not known:"
        f" ssh-ed25519 {fingerprint(sshd.host_key)}"
    )
    assert "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub" in problem.hint
    assert "cluster.ssh.host_keys=accept-new" in problem.hint
    command = command_of(problem.hint, "ssh-keyscan")
    subprocess.run(["sh", "-c", command], check=True, capture_output=True)
    place.transport().open(sshd.node(), "true")


def test_changed_host_key_is_refused(place: Place) -> None:
    """Both fingerprints, the line that disagrees, and how to forget it."""
    sshd = place.sshd(known=False)
    old = make_key(place.folder / "old")
    place.known_hosts.write_text(f"# mine\n{sshd.name} {Path(f'{old}.pub').read_text()}")
    problem = place.problem(sshd.node(), host_keys="accept-new")
    assert "has CHANGED" in problem.message
    assert fingerprint(sshd.host_key) in problem.message
    assert f"({place.known_hosts}:2 says otherwise)" in problem.message
    assert f"known: ssh-ed25519 {fingerprint(old)} ({place.known_hosts}:2)" in problem.hint
    assert "someone may intercept the connection, or the machine was reinstalled" in problem.hint
    command = command_of(problem.hint, "ssh-keygen -R")
    subprocess.run(["sh", "-c", command], check=True, capture_output=True)
    assert "is not known" in place.problem(sshd.node()).message


def test_changed_key_of_a_jump_host_names_both(place: Place) -> None:
    """The problem stands at the node that needed it, and speaks of the jump host."""
    gate, sshd = place.sshd(known=False), place.sshd()
    old = make_key(place.folder / "old")
    place.known_hosts.write_text(f"{gate.name} {Path(f'{old}.pub').read_text()}{sshd.known}")
    problem = place.problem(sshd.node(), jump=(gate.hop,))
    assert (
        f"the host key of jump host {gate.address} port {gate.port} has CHANGED" in problem.message
    )
    assert sshd.logins == 0


# Jump hosts


def test_nodes_behind_a_jump_host_share_its_connection(place: Place) -> None:
    """One log-in at the bastion, however many nodes are opened at once."""
    gate, first, second = place.sshd(), place.sshd(), place.sshd()
    nodes = [first.node("gpu1"), second.node("gpu2"), first.node("gpu3"), second.node("gpu4")]
    transport = place.transport(jump=(gate.hop,))
    with ThreadPoolExecutor(4) as pool:
        channels = list(pool.map(lambda node: transport.open(node, f"echo {node.name}"), nodes))
    assert [read_all(each) for each in channels] == [b"gpu1\n", b"gpu2\n", b"gpu3\n", b"gpu4\n"]
    assert (gate.logins, first.logins, second.logins) == (1, 2, 2)


@pytest.mark.all
def test_several_hops_are_gone_through_in_order(place: Place) -> None:
    """Each is logged in to from the one before it."""
    outer, inner, sshd = place.sshd(), place.sshd(), place.sshd()
    channel = place.transport(jump=(f"{USER}@{outer.hop}", inner.hop)).open(
        sshd.node(), f"head -c {10 * MEGABYTE} /dev/zero"
    )
    assert len(read_all(channel)) == 10 * MEGABYTE
    assert (outer.logins, inner.logins, sshd.logins) == (1, 1, 1)


def test_proxy_command_carries_the_connection(place: Place) -> None:
    """Any program that joins its streams to the host; it ends with the transport."""
    sshd = place.sshd()
    pump = place.folder / "pump.py"
    pump.write_text(PUMP)
    config = place.folder / "proxied"
    command = f"{sys.executable} {pump} %h {sshd.port}"
    config.write_text(f"Host {sshd.address}\n Port 1\n ProxyCommand {command}\n")
    with place.known_hosts.open("a") as file:
        file.write(sshd.known.replace(str(sshd.port), "1"))
    transport = place.transport(config=str(config))
    node = Node("gpu1", sshd.address)
    before = set(children_of(os.getpid()))
    assert read_all(transport.open(node, "echo hi")) == b"hi\n"
    children = set(children_of(os.getpid())) - before
    assert children
    transport.close()
    assert not children & set(children_of(os.getpid()))


PUMP = """\
import os, socket, sys, threading
link = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def out():
    while data := link.recv(65536):
        os.write(1, data)
    os._exit(0)
threading.Thread(target=out, daemon=True).start()
while data := os.read(0, 65536):
    link.sendall(data)
"""


def children_of(pid: int) -> Iterable[int]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                yield int(stat.parent.name)


# The network


def test_host_that_does_not_answer_is_given_up(place: Place) -> None:
    """Packets that vanish cost `connect_timeout`, not the two minutes of TCP."""
    with socket.socket() as server, contextlib.ExitStack() as stack:
        server.bind(("127.0.0.1", 0))
        server.listen(0)  # and once its queue is full, Linux drops what comes
        for _ in range(3):
            link = stack.enter_context(socket.socket())
            link.setblocking(False)
            link.connect_ex(server.getsockname())
        port = server.getsockname()[1]
        problem = place.problem(Node("gpu1", "127.0.0.1", port=port), connect_timeout=2)
    assert problem.message == f"127.0.0.1 port {port} did not answer within 2 s"
    assert "cluster.ssh.connect_timeout" in problem.hint


def test_host_that_falls_silent_is_given_up(place: Place) -> None:
    """It takes the connection and sends nothing, or a banner and nothing more: both as soon."""
    spent_s = []
    for said, what in (
        (b"", "sent no SSH banner within 4 s"),
        (b"SSH-2.0-x\r\n", "began the SSH handshake but did not finish it within 4 s"),
    ):
        with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:

            def serve(server: socket.socket, said: bytes) -> socket.socket:
                link, _ = server.accept()
                link.sendall(said)
                return link

            serving = pool.submit(serve, server, said)
            node = Node("gpu1", "127.0.0.1", port=server.getsockname()[1])
            began = time.monotonic()
            problem = place.problem(node, connect_timeout=4)
            spent_s.append(time.monotonic() - began)
            serving.result().close()
        assert what in problem.message
    assert spent_s[1] < 1.6 * spent_s[0]


@contextlib.contextmanager
def unfinished_logins(sshd: Sshd, count: int) -> Iterator[contextlib.ExitStack]:
    """Keep so many logins in progress; closing what is returned ends them."""
    with contextlib.ExitStack() as logins:
        while count:
            link = socket.create_connection((sshd.address, sshd.port), timeout=5 * PATIENCE)
            logins.enter_context(link)
            count -= link.recv(4) == b"SSH-"  # not until our look whether it listens is over
        yield logins


@pytest.mark.parametrize("way", ["direct", "jump"])
def test_login_that_is_refused_for_now_is_tried_again(place: Place, way: str) -> None:
    """Until the sshd, of the host or before it, has room: sshd itself says which one it refused."""
    gate, sshd = place.sshd("MaxStartups 2:100:2"), place.sshd("MaxStartups 2:100:2")
    jump = (gate.hop,) if way == "jump" else ()
    busy = gate if way == "jump" else sshd
    transport = place.transport(jump=jump)
    with unfinished_logins(busy, 2) as logins, ThreadPoolExecutor(1) as pool:
        opening = pool.submit(transport.open, sshd.node(), "echo hi")
        wait_until(lambda: busy.logged("past MaxStartups"), "a refusal")
        logins.close()
        assert read_all(opening.result(60 * PATIENCE)) == b"hi\n"


@pytest.mark.promise(13)
def test_name_server_that_hangs_is_given_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up cannot be interrupted, so it is left behind."""
    over = threading.Event()
    monkeypatch.setattr(ssh_protocol, "resolve", lambda *_: over.wait())
    problem = place.problem(Node("gpu1", "gpu1"), connect_timeout=2)
    over.set()
    assert problem.message.startswith("the name 'gpu1' could not be looked up within 2 s")
