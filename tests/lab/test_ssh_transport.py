"""Both transports against real processes: sshds on the loopback, and children of this one.

The lab's hosts are not needed here: an sshd per address 127.0.0.x starts in milliseconds.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.core.errors import NotReady, Problem
from runner.core.model.spec import Node, Ssh
from runner.transport.base import Channel, PortRefused, Transport
from runner.transport.local import LocalTransport
from runner.transport.ssh import login_budget
from runner.transport.ssh import protocol as ssh_protocol
from runner.transport.ssh import transport as ssh_transport
from runner.transport.ssh.transport import SshTransport
from tests.lab.waiting import wait_until

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
        """The name its key is filed under."""
        return f"[{self.address}]:{self.port}"

    @property
    def known(self) -> str:
        """The line for a known-hosts file."""
        return f"{self.name} {Path(f'{self.host_key}.pub').read_text().strip()}\n"

    @property
    def hop(self) -> str:
        """How to name it as a jump host."""
        return f"{self.address}:{self.port}"

    def node(self, name: str = "gpu1") -> Node:
        """Return a node that is this sshd."""
        return Node(name, self.address, port=self.port)

    def logged(self, words: str) -> int:
        """Count the lines of the log with these words."""
        return self.log.read_text().count(words)

    @property
    def logins(self) -> int:
        """How often somebody has logged in."""
        return self.logged("Accepted publickey")

    def wait(self) -> None:
        """Wait until it listens."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()
            with contextlib.suppress(OSError):
                socket.create_connection((self.address, self.port), timeout=1).close()
                return
            time.sleep(0.01)
        pytest.fail("sshd did not start")

    def sessions(self) -> list[int]:
        """Return the processes that serve connections, with what they have started."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                text = stat.read_text()
                found.append((int(stat.parent.name), int(text.rpartition(")")[2].split()[1])))
        mine = {self.process.pid}
        while more := {pid for pid, parent in found if parent in mine} - mine:
            mine |= more
        return sorted(mine - {self.process.pid})

    def signal_sessions(self, number: signal.Signals) -> None:
        """Send a signal to all of them."""
        for pid in self.sessions():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self) -> None:
        """End it and its sessions."""
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
        """Start an sshd on the next address."""
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
                "connect_timeout": 5.0,
                **settings,
            }
        )
        transport = SshTransport(ssh, on_note=self.notes.append)
        self.transports.append(transport)
        return transport

    def problem(self, node: Node, **settings: Any) -> Problem:
        """Return the one problem of a log-in that must fail."""
        with pytest.raises(NotReady) as caught:
            self.transport(**settings).open(node, "true")
        (problem,) = caught.value.problems
        assert problem.subject == node.name
        return problem

    def close(self) -> None:
        """End everything."""
        for transport in self.transports:
            transport.close()
        for sshd in self.sshds:
            sshd.stop()


def make_key(path: Path, *options: str) -> Path:
    """Make a key pair."""
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", *options, "-f", str(path)]
    subprocess.run(argv, check=True)
    return path


def fingerprint(path: Path) -> str:
    """Return what OpenSSH calls a key."""
    argv = ["ssh-keygen", "-lf", f"{path}.pub"]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split()[1]


def free_port(address: str) -> int:
    """Return a port nobody uses on an address."""
    with socket.socket() as server:
        server.bind((address, 0))
        return int(server.getsockname()[1])


def read_all(channel: Channel) -> bytes:
    """Read a channel to its end."""
    return b"".join(iter(channel.recv, b""))


def command_of(hint: str, start: str) -> str:
    """Cut the command that begins with `start` out of a hint."""
    (found,) = re.findall(rf"{re.escape(start)}.*", hint)
    return str(found)


@contextlib.contextmanager
def listener(handle: Callable[[socket.socket], object]) -> Iterator[Node]:
    """Listen on the loopback and give every connection to `handle`."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                link, _ = server.accept()
                links.append(link)
                handle(link)

    links: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield Node("gpu1", "127.0.0.1", port=server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)
        for link in links:
            link.close()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A place without an ssh agent."""
    if not Path("/usr/sbin/sshd").exists():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("no sshd here")
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


def test_command_gets_its_streams(reach: tuple[Transport, Node]) -> None:
    """What is sent is its input, what it prints is read, in order, errors among it."""
    transport, node = reach
    channel = transport.open(node, 'echo "it\'s $((1 + 1))"; head -n 1; echo bad >&2; exit 3')
    channel.send(b"hello\n")
    assert read_all(channel) == b"it's 2\nhello\nbad\n"
    assert channel.recv() == b""


def test_a_port_is_connected_to_from_there(reach: tuple[Transport, Node]) -> None:
    """What one side has ended is no end of the other; a port without a listener says so."""
    transport, node = reach

    def answer(link: socket.socket) -> None:
        received = b"".join(iter(lambda: link.recv(4096), b""))
        link.sendall(received.upper())
        link.shutdown(socket.SHUT_WR)

    with listener(answer) as served:
        channel = transport.connect_port(node, "127.0.0.1", served.port or 0)
        channel.send(b"hello")
        channel.end_sending()
        assert read_all(channel) == b"HELLO"
        channel.close()
    with pytest.raises(PortRefused, match="refused"):
        transport.connect_port(node, "127.0.0.1", served.port or 0)
    assert transport.is_connected(node, 5)


def test_an_sshd_that_forwards_no_port_is_named(place: Place) -> None:
    """With the settings to look at; the connection stays."""
    transport, node = place.transport(), place.sshd("AllowTcpForwarding no").node()
    with pytest.raises(NotReady, match=r"does not allow to forward the port[\s\S]*AllowTcpForward"):
        transport.connect_port(node, "127.0.0.1", 9)
    assert transport.is_connected(node)


def test_big_output_arrives_whole(
    reach: tuple[Transport, Node], record_property: Callable[[str, object], None]
) -> None:
    """80 MB come as they were written; the speed is on record."""
    transport, node = reach
    channel = transport.open(node, f"head -c {80 * MEGABYTE} /dev/zero")
    start, count = time.monotonic(), 0
    while data := channel.recv():
        count += len(data)
        assert not data.strip(b"\0")
    assert count == 80 * MEGABYTE
    record_property("MB/s", round(80 / (time.monotonic() - start)))


def test_big_input_arrives_whole(reach: tuple[Transport, Node]) -> None:
    """20 MB in one call, while the program is slow to begin reading."""
    transport, node = reach
    channel = transport.open(node, f"sleep 0.2; head -c {20 * MEGABYTE} | sha256sum")
    channel.send(bytes(20 * MEGABYTE))
    digest = hashlib.sha256(bytes(20 * MEGABYTE)).hexdigest()
    assert read_all(channel).decode().split()[0] == digest


def test_reader_and_writer_do_not_wait_for_each_other(reach: tuple[Transport, Node]) -> None:
    """One thread reads what another one sends, more than any buffer holds."""
    transport, node = reach
    channel = transport.open(node, f"head -c {10 * MEGABYTE} | cat")
    writer = threading.Thread(target=channel.send, args=(b"x" * 10 * MEGABYTE,))
    writer.start()
    assert len(read_all(channel)) == 10 * MEGABYTE
    writer.join()


def test_close_wakes_a_reader(reach: tuple[Transport, Node]) -> None:
    """A thread that waits for output gets the end at once."""
    transport, node = reach
    channel = transport.open(node, "sleep 60")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(channel.recv)
        time.sleep(0.1)
        start = time.monotonic()
        channel.close()
        channel.close()
        assert waiting.result(1) == b""
        assert time.monotonic() - start < 1.5


def test_close_wakes_a_writer(reach: tuple[Transport, Node]) -> None:
    """A thread that waits for a program to read its input gets an error at once."""
    transport, node = reach
    channel = transport.open(node, "sleep 60")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(channel.send, bytes(50 * MEGABYTE))
        time.sleep(0.2)
        channel.close()
        with pytest.raises(OSError):  # noqa: PT011 - which one is not promised
            waiting.result(2)


def test_send_to_a_program_that_ended_is_an_error(reach: tuple[Transport, Node]) -> None:
    """The end is seen by the reader, and by the writer from then on."""
    transport, node = reach
    channel = transport.open(node, "true")
    assert channel.recv() == b""
    deadline = time.monotonic() + 5
    with pytest.raises(OSError):  # noqa: PT011, PT012 - which one, and when, is not promised
        while time.monotonic() < deadline:
            channel.send(b"x" * 1000)


def test_close_of_the_transport_ends_its_channels(reach: tuple[Transport, Node]) -> None:
    """Whoever reads one of them gets the end."""
    transport, node = reach
    channels = [transport.open(node, "sleep 60") for _ in range(2)]
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(channel.recv) for channel in channels]
        time.sleep(0.1)
        transport.close()
        assert [each.result(2) for each in waiting] == [b"", b""]


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
    """The second channel costs no log-in."""
    sshd, transport = place.sshd(), place.transport()
    for _ in range(3):
        assert read_all(transport.open(sshd.node(), "echo hi")) == b"hi\n"
    assert sshd.logins == 1


def test_channels_opened_at_once_share_a_connection(place: Place) -> None:
    """Threads that come while the log-in is on wait for that one."""
    sshd, transport = place.sshd(), place.transport()
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda _: read_all(transport.open(sshd.node(), "echo hi")), range(8))
        assert list(found) == [b"hi\n"] * 8
    assert sshd.logins == 1


def test_many_nodes_open_in_parallel(
    place: Place, record_property: Callable[[str, object], None]
) -> None:
    """32 log-ins at once, a connection each; the time is on record."""
    sshd, transport = place.sshd(), place.transport()
    nodes = [sshd.node(f"gpu{number}") for number in range(32)]
    start = time.monotonic()
    with ThreadPoolExecutor(32) as pool:
        channels = list(pool.map(lambda node: transport.open(node, f"echo {node.name}"), nodes))
    record_property("seconds", round(time.monotonic() - start, 2))
    assert [read_all(each) for each in channels] == [f"{n.name}\n".encode() for n in nodes]
    assert sshd.logins == 32


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


def test_silent_connection_is_replaced(place: Place) -> None:
    """A connection whose other end froze is left after `connect_timeout` for a new one."""
    sshd, transport = place.sshd(), place.transport(connect_timeout=1)
    transport.open(sshd.node(), "exec sleep 60")
    sshd.signal_sessions(signal.SIGSTOP)
    assert read_all(transport.open(sshd.node(), "echo back")) == b"back\n"


def test_abandoned_connection_is_not_tried_again(place: Place) -> None:
    """Who has waited for it long enough gets a new one at once."""
    sshd, transport = place.sshd(), place.transport(connect_timeout=30)
    channel = transport.open(sshd.node(), "exec sleep 60")
    sshd.signal_sessions(signal.SIGSTOP)
    start = time.monotonic()
    channel.abandon()
    assert channel.recv() == b""
    assert read_all(transport.open(sshd.node(), "echo back")) == b"back\n"
    assert time.monotonic() - start < 10
    assert sshd.logins == 2


def test_close_does_not_wait_for_a_frozen_host(place: Place) -> None:
    """Not even while writers have filled the connection to the brim."""
    sshd, transport = place.sshd(), place.transport()
    channels = [transport.open(sshd.node(), "cat >/dev/null") for _ in range(8)]
    sshd.signal_sessions(signal.SIGSTOP)
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(channel.send, bytes(3 * MEGABYTE)) for channel in channels]
        time.sleep(0.5)
        assert not any(each.done() for each in waiting)
        start = time.monotonic()
        channels[0].close()
        transport.close()
        assert time.monotonic() - start < 4
        for each in waiting:
            with pytest.raises(OSError):  # noqa: PT011 - which one is not promised
                each.result(2)


def test_closed_transport_opens_nothing(place: Place) -> None:
    """And says so, for a node that is new and for one that was open."""
    sshd, transport = place.sshd(), place.transport()
    transport.open(sshd.node(), "true")
    transport.close()
    for name in ("gpu1", "gpu2"):
        with pytest.raises(NotReady, match="closed"):
            transport.open(sshd.node(name), "true")


def test_nothing_of_a_connection_stays_behind(place: Place) -> None:
    """After close no thread is left that would keep this process alive or busy."""
    before = set(threading.enumerate())
    sshd, transport = place.sshd(), place.transport()
    transport.open(sshd.node(), "sleep 60")
    with contextlib.suppress(NotReady):
        transport.open(Node("gpu2", "127.0.0.1", port=free_port("127.0.0.1")), "true")
    with listener(lambda link: link.sendall(b"SSH-2.0-x\r\n")) as node, pytest.raises(NotReady):
        place.transport(connect_timeout=0.3).open(node, "true")
    transport.close()
    wait_until(lambda: set(threading.enumerate()) <= before, "the end of the threads", 3)


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


def test_encrypted_key_asks_for_the_agent(place: Place) -> None:
    """Nobody is prompted; the message says what to type."""
    sshd = place.sshd()
    subprocess.run(
        ["ssh-keygen", "-q", "-p", "-N", "secret", "-f", place.key], check=True, capture_output=True
    )
    problem = place.problem(sshd.node())
    assert problem.message == (
        f"the key {place.key} cannot be used: it is encrypted and the ssh agent does not hold it"
    )
    assert f"ssh-add {place.key}" in problem.hint.splitlines()


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


def test_agent_alone_will_do(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """No key file is needed where the agent has one."""
    sshd = place.sshd()
    with agent(place, monkeypatch, place.key):
        place.transport(key=None).open(sshd.node(), "true")


def test_hung_agent_is_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that a lost forwarding left behind does not hang the run."""
    sshd = place.sshd()
    path = str(place.folder / "agent")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        monkeypatch.setenv("SSH_AUTH_SOCK", path)
        problem = place.problem(sshd.node(), connect_timeout=0.5)
    assert problem.message == f"the ssh agent at {path} did not answer within 0.5 s"


@contextlib.contextmanager
def agent(place: Place, monkeypatch: pytest.MonkeyPatch, *keys: Path) -> Iterator[None]:
    """Run an ssh agent that holds some keys."""
    path = place.folder / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        wait_until(path.exists, "the agent's socket", 5)
        subprocess.run(["ssh-add", "-q", *keys], check=True, stderr=subprocess.DEVNULL)
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda key: key.unlink(), "it cannot be read (No such file or directory)"),
        (lambda key: key.chmod(0o644), "other users may read it (mode 0644)"),
        (lambda key: key.write_text("nonsense\n"), "it holds no supported private key"),
    ],
)
def test_useless_key_of_the_yaml_is_told_first(
    place: Place, spoil: Callable[[Path], object], why: str
) -> None:
    """A key that was asked for by name and cannot be used is an error of its own."""
    sshd = place.sshd()
    spoil(place.key)
    problem = place.problem(sshd.node())
    assert problem.message.startswith(
        f"the key {place.key} of cluster.ssh.key cannot be used: {why}"
    )
    assert sshd.logins == 0


def test_no_key_at_all_is_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what the host would take instead."""
    monkeypatch.setenv("HOME", str(place.folder))
    sshd = place.sshd("PubkeyAuthentication no", "KbdInteractiveAuthentication yes")
    config = place.folder / "no-keys"
    config.write_text("IdentityFile none\n")
    problem = place.problem(sshd.node(), key=None, config=str(config))
    assert "there is no key to log in to" in problem.message


def test_second_factor_cannot_be_asked(place: Place) -> None:
    """The key was right; what else the host wants is named."""
    sshd = place.sshd("AuthenticationMethods publickey,password", "PasswordAuthentication yes")
    assert "requires password as well" in place.problem(sshd.node()).message


def test_too_many_keys_are_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that hangs up before the right key had its turn is not just "lost"."""
    sshd = place.sshd("MaxAuthTries 2")
    keys = [make_key(place.folder / f"key{number}") for number in range(3)]
    with agent(place, monkeypatch, *keys):
        problem = place.problem(sshd.node(), key=None)
    assert "closed the connection while keys were offered" in problem.message
    assert "MaxAuthTries" in problem.hint
    assert "IdentitiesOnly" in problem.hint


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


def test_accept_new_learns_a_key_once(place: Place) -> None:
    """32 threads at once leave one line; from then on the key is known."""
    sshd = place.sshd(known=False)
    transport = place.transport(host_keys="accept-new")
    with ThreadPoolExecutor(32) as pool:
        list(pool.map(lambda n: transport.open(sshd.node(f"gpu{n}"), "true"), range(32)))
    assert place.known_hosts.read_text() == " ".join(sshd.known.split()[:3]) + "\n"
    assert place.notes[0] == (
        f"{place.known_hosts}: added {sshd.name} ssh-ed25519 {fingerprint(sshd.host_key)}"
    )
    place.transport().open(sshd.node(), "true")


@pytest.mark.parametrize("host_keys", ["strict", "accept-new"])
def test_changed_host_key_is_refused(place: Place, host_keys: str) -> None:
    """Both fingerprints, the line that disagrees, and how to forget it."""
    sshd = place.sshd(known=False)
    old = make_key(place.folder / "old")
    place.known_hosts.write_text(f"# mine\n{sshd.name} {Path(f'{old}.pub').read_text()}")
    problem = place.problem(sshd.node(), host_keys=host_keys)
    assert "has CHANGED" in problem.message
    assert fingerprint(sshd.host_key) in problem.message
    assert f"({place.known_hosts}:2 says otherwise)" in problem.message
    assert f"known: ssh-ed25519 {fingerprint(old)} ({place.known_hosts}:2)" in problem.hint
    assert "someone may intercept the connection, or the machine was reinstalled" in problem.hint
    command = command_of(problem.hint, "ssh-keygen -R")
    subprocess.run(["sh", "-c", command], check=True, capture_output=True)
    assert "is not known" in place.problem(sshd.node()).message


def test_revoked_host_key_is_refused(place: Place) -> None:
    """Even where another line knows it."""
    sshd = place.sshd()
    with place.known_hosts.open("a") as file:
        file.write(f"@revoked * {sshd.known.partition(' ')[2]}")
    assert f"is REVOKED by {place.known_hosts}:2" in place.problem(sshd.node()).message


def test_host_is_asked_for_the_key_that_is_known(place: Place) -> None:
    """An ssh-rsa line is enough for a host that would rather show its ed25519 key."""
    rsa = make_key(place.folder / "rsa", "-t", "rsa", "-b", "2048")
    sshd = place.sshd(f"HostKey {rsa}", known=False)
    place.known_hosts.write_text(f"{sshd.name} {Path(f'{rsa}.pub').read_text()}")
    place.transport().open(sshd.node(), "true")


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


def test_unknown_key_behind_a_jump_host_is_recorded_by_ssh(place: Place) -> None:
    """ssh-keyscan does not get there; the command through the jump host does."""
    gate, sshd = place.sshd(), place.sshd(known=False)
    problem = place.problem(sshd.node(), jump=(gate.hop,))
    assert "ssh-keyscan" not in problem.hint
    assert f"-J {gate.hop} -p {sshd.port} {sshd.address}" in command_of(problem.hint, "if they")


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


def test_several_hops_are_gone_through_in_order(place: Place) -> None:
    """Each is logged in to from the one before it."""
    outer, inner, sshd = place.sshd(), place.sshd(), place.sshd()
    channel = place.transport(jump=(f"{USER}@{outer.hop}", inner.hop)).open(
        sshd.node(), f"head -c {10 * MEGABYTE} /dev/zero"
    )
    assert len(read_all(channel)) == 10 * MEGABYTE
    assert (outer.logins, inner.logins, sshd.logins) == (1, 1, 1)


def test_jump_host_of_the_ssh_config_is_used(place: Place) -> None:
    """With the settings it has there."""
    gate, sshd = place.sshd(), place.sshd()
    config = place.folder / "jumping"
    config.write_text(
        f"Host gate\n HostName {gate.address}\n Port {gate.port}\n"
        f"Host gpu\n HostName {sshd.address}\n Port {sshd.port}\n ProxyJump gate\n"
    )
    channel = place.transport(config=str(config)).open(Node("gpu1", "gpu"), "echo hi")
    assert read_all(channel) == b"hi\n"
    assert gate.logins == 1


def test_failed_jump_host_tells_all_nodes_the_same(place: Place) -> None:
    """It is tried once; every node behind it hears why."""
    gate = place.sshd()
    gate.stop()
    transport = place.transport(jump=(gate.hop,))

    def fail(number: int) -> str:
        with pytest.raises(NotReady) as caught:
            transport.open(Node(f"gpu{number}", "10.0.0.1"), "true")
        (problem,) = caught.value.problems
        assert problem.subject == f"gpu{number}"
        return problem.message

    with ThreadPoolExecutor(8) as pool:
        told = set(pool.map(fail, range(8)))
    assert told == {f"jump host {gate.address} port {gate.port} refused the connection"}


def test_frozen_jump_host_is_replaced(place: Place) -> None:
    """The node that met it first is told; those that come later get a new connection."""
    gate, first, second = place.sshd(), place.sshd(), place.sshd()
    transport = place.transport(jump=(gate.hop,), connect_timeout=1)
    transport.open(first.node("gpu1"), "exec sleep 60")
    gate.signal_sessions(signal.SIGSTOP)
    with pytest.raises(NotReady, match=f"did not answer jump host {gate.address}"):
        transport.open(second.node("gpu2"), "true")
    time.sleep(1.2)
    assert read_all(transport.open(second.node("gpu2"), "echo hi")) == b"hi\n"


def test_jump_host_that_refuses_our_key_is_named(place: Place) -> None:
    """Not the node behind it."""
    gate = place.sshd("AuthorizedKeysFile none")
    gate_config = gate.folder / "config"
    assert "AuthorizedKeysFile none" in gate_config.read_text()
    gate.stop()
    gate_config.write_text(re.sub(r"AuthorizedKeysFile /.*\n", "", gate_config.read_text()))
    argv = ["/usr/sbin/sshd", "-D", "-E", str(gate.log), "-f", str(gate_config)]
    gate.process = subprocess.Popen(argv, start_new_session=True)
    gate.wait()
    problem = place.problem(Node("gpu1", "10.0.0.1"), jump=(gate.hop,))
    assert problem.message.startswith(
        f"jump host {gate.address} port {gate.port} refused every key offered for user {USER}"
    )


@pytest.mark.parametrize(
    ("host", "what"),
    [
        ("127.0.0.9", "127.0.0.9 port 9 cannot be reached from jump host"),
        ("gone.invalid", "the name 'gone.invalid' is not known to jump host"),
    ],
)
def test_node_beyond_a_jump_host_that_cannot_be_reached(place: Place, host: str, what: str) -> None:
    """The jump host's own words tell a refused port from an unknown name."""
    gate = place.sshd()
    problem = place.problem(Node("gpu1", host, port=9), jump=(gate.hop,), connect_timeout=10)
    assert problem.message.startswith(what)
    assert gate.address in problem.message


def test_refusals_beyond_a_jump_host_are_not_mixed_up(place: Place) -> None:
    """Paramiko keeps one exception per connection; each thread gets its own here."""
    gate = place.sshd()
    transport = place.transport(jump=(gate.hop,), connect_timeout=10)
    nodes = [
        Node(f"n{number}", ("127.0.0.9", "gone.invalid")[number % 2], port=9)
        for number in range(16)
    ]

    def told(node: Node) -> bool:
        with pytest.raises(NotReady) as caught:
            transport.open(node, "true")
        refused = "(Connection refused)" in str(caught.value)
        return refused is (node.host == "127.0.0.9")

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(told, nodes))
    assert gate.logins == 1


def test_jump_host_that_does_not_forward_is_named(place: Place) -> None:
    """With the settings of its sshd to look at."""
    gate, sshd = place.sshd("AllowTcpForwarding no"), place.sshd()
    problem = place.problem(sshd.node(), jump=(gate.hop,))
    assert problem.message.startswith(f"jump host {gate.address} does not allow forwarding to")
    assert "AllowTcpForwarding" in problem.hint


def test_proxy_command_carries_the_connection(place: Place) -> None:
    """Any program that joins its streams to the host; it ends with the transport."""
    sshd = place.sshd()
    pump = place.folder / "pump.py"
    pump.write_text(PUMP)
    config = place.folder / "proxied"
    config.write_text(f"Host gpu*\n Port 1\n ProxyCommand {sys.executable} {pump} %h {sshd.port}\n")
    with place.known_hosts.open("a") as file:
        file.write(sshd.known.replace(str(sshd.port), "1"))
    transport = place.transport(config=str(config))
    node = Node("gpu1", sshd.address)
    config.write_text(config.read_text().replace("gpu*", sshd.address))
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
    """Yield the children of a process, zombies too."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                yield int(stat.parent.name)


def test_failed_proxy_command_is_quoted(place: Place) -> None:
    """With the last thing it said."""
    config = place.folder / "proxied"
    config.write_text("Host gpu1\n ProxyCommand echo no way >&2; exit 1\n")
    before = set(children_of(os.getpid()))
    problem = place.problem(Node("gpu1", "gpu1"), config=str(config))
    assert problem.message == (
        "no SSH came through the ProxyCommand of gpu1 port 22: echo no way >&2; exit 1"
    )
    assert problem.hint.startswith("no way")
    assert set(children_of(os.getpid())) == before


# The network


def test_refused_port_is_told(place: Place) -> None:
    """With the key of the YAML to change."""
    port = free_port("127.0.0.1")
    problem = place.problem(Node("gpu1", "127.0.0.1", port=port))
    assert problem.message == f"127.0.0.1 port {port} refused the connection"
    assert "cluster.nodes.gpu1.port" in problem.hint


def test_every_address_of_a_host_is_tried() -> None:
    """A name with an address that refuses, as ::1 often does, is reached by the next one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        good = ssh_protocol.resolve(*server.getsockname())
        bad = ssh_protocol.resolve("127.0.0.1", free_port("127.0.0.1"))
        with ssh_protocol.connect(bad + good, timeout=1) as link:
            assert link.getpeername() == server.getsockname()
    with pytest.raises(ConnectionRefusedError):
        ssh_protocol.connect(bad + good, timeout=1)


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
        start = time.monotonic()
        problem = place.problem(Node("gpu1", "127.0.0.1", port=port), connect_timeout=0.5)
    assert time.monotonic() - start < 2.5
    assert problem.message == f"127.0.0.1 port {port} did not answer within 0.5 s"
    assert "cluster.ssh.connect_timeout" in problem.hint


def test_host_that_never_speaks_is_given_up(place: Place) -> None:
    """It takes the connection and sends no banner."""
    with listener(lambda _: None) as node:
        start = time.monotonic()
        problem = place.problem(node, connect_timeout=0.5)
    assert time.monotonic() - start < 2.5
    assert "sent no SSH banner within 0.5 s" in problem.message
    assert "MaxStartups" in problem.hint


def test_host_that_stops_in_the_handshake_is_given_up(place: Place) -> None:
    """It sends a banner and nothing more."""
    with listener(lambda link: link.sendall(b"SSH-2.0-x\r\n")) as node:
        start = time.monotonic()
        problem = place.problem(node, connect_timeout=0.3)
    assert time.monotonic() - start < 2.5
    assert "began the SSH handshake but did not finish it within 0.3 s" in problem.message


@pytest.mark.parametrize("line", [b"", b"Not allowed at this time\r\n", b"SSH-2.0-x\r\n"])
def test_host_that_hangs_up_is_told(place: Place, line: bytes) -> None:
    """As sshd does with more log-ins than MaxStartups and with penalties, also after its banner."""

    def hang_up(link: socket.socket) -> None:
        link.sendall(line)
        link.close()

    with listener(hang_up) as node:
        problem = place.problem(node, connect_timeout=0.5)
    assert "answers but refuses logins for now" in problem.message
    assert "MaxStartups" in problem.hint
    assert ("it said: Not allowed at this time\n" in problem.hint) is line.startswith(b"Not")


def test_login_whose_turn_does_not_come_is_given_up(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever those before it do."""
    monkeypatch.setattr(login_budget, "FIRST_LOGINS", 1)
    monkeypatch.setattr(ssh_transport, "MAX_WAIT_S", 0.3)
    with ThreadPoolExecutor(1) as pool, listener(lambda _: None) as node:
        transport = place.transport()
        pool.submit(transport.open, replace(node, name="gpu0"), "true")
        time.sleep(0.1)
        with pytest.raises(NotReady, match="had to wait") as caught:
            transport.open(node, "true")
    assert "cluster.ssh.jump" in str(caught.value)


@contextlib.contextmanager
def unfinished_logins(sshd: Sshd, count: int) -> Iterator[contextlib.ExitStack]:
    """Keep so many logins in progress; closing what is returned ends them."""
    with contextlib.ExitStack() as logins:
        while count:
            link = socket.create_connection((sshd.address, sshd.port), timeout=5)
            logins.enter_context(link)
            count -= link.recv(4) == b"SSH-"  # not until our look whether it listens is over
        yield logins


def proxied_by(place: Place, gate: Sshd) -> str:
    """Return an ssh configuration by which each host is reached through an ssh to a jump host."""
    config = place.folder / "proxied_by"
    options = ("BatchMode=yes", f"UserKnownHostsFile={place.known_hosts}", "LogLevel=INFO")
    words = ["ssh", "-F", "/dev/null", "-i", str(place.key), *(f"-o{each}" for each in options)]
    command = f"{shlex.join(words)} -W %h:%p -p {gate.port} {USER}@{gate.address}"
    config.write_text(f"Host *\n ProxyCommand {command}\n")
    return str(config)


@pytest.mark.parametrize("way", ["direct", "jump", "beyond a jump", "proxy", "beyond a proxy"])
def test_login_that_is_refused_for_now_is_tried_again(place: Place, way: str) -> None:
    """Until the sshd, of the host or before it, has room: sshd itself says which one it refused."""
    gate, sshd = place.sshd("MaxStartups 2:100:2"), place.sshd("MaxStartups 2:100:2")
    settings: dict[str, Any] = {}
    if "jump" in way:
        settings["jump"] = (gate.hop,)
    if "proxy" in way:
        settings["config"] = proxied_by(place, gate)
    busy = gate if way in ("jump", "proxy") else sshd
    with unfinished_logins(busy, 2) as logins:
        threading.Timer(1, logins.close).start()
        channel = place.transport(**settings).open(sshd.node(), "echo hi")
        assert read_all(channel) == b"hi\n"
    assert busy.logged("past MaxStartups") >= 1


@pytest.mark.parametrize("way", ["direct", "jump", "beyond a jump", "proxy", "beyond a proxy"])
def test_login_that_stays_refused_is_told(place: Place, way: str) -> None:
    """Who answers and refuses, and what to do."""
    gate, sshd = place.sshd("MaxStartups 2:100:2"), place.sshd("MaxStartups 2:100:2")
    settings: dict[str, Any] = {"connect_timeout": 1}
    if "jump" in way:
        settings["jump"] = (gate.hop,)
    if "proxy" in way:
        settings["config"] = proxied_by(place, gate)
    with unfinished_logins(gate if way in ("jump", "proxy") else sshd, 2):
        start = time.monotonic()
        problem = place.problem(sshd.node(), **settings)
    assert time.monotonic() - start < 5
    host, hop = (f"{each.address} port {each.port}" for each in (sshd, gate))
    if way == "proxy":
        assert problem.message.startswith("the jump host of the ProxyCommand `ssh -F /dev/null ")
        assert f"-W %h:%p -p {gate.port} {USER}@{gate.address}` of {host}" in problem.message
    else:
        answers = {
            "direct": f"{host} answers",
            "jump": f"jump host {hop} answers",
            "beyond a jump": f"{host} answers through jump host {gate.address}",
            "beyond a proxy": f"{host} answers through its proxy",
        }
        assert problem.message == f"{answers[way]} but refuses logins for now"
    assert "MaxStartups" in problem.hint
    assert "PerSourcePenalties" in problem.hint
    assert "cluster.ssh.connect_timeout" in problem.hint


@pytest.mark.parametrize("way", ["direct", "jump", "beyond a jump", "proxy", "beyond a proxy"])
def test_host_that_is_down_is_told_at_once(place: Place, way: str) -> None:
    """It is not tried again."""
    gate, sshd = place.sshd(), place.sshd()
    settings: dict[str, Any] = {"connect_timeout": 10}
    if "jump" in way:
        settings["jump"] = (gate.hop,)
    if "proxy" in way:
        settings["config"] = proxied_by(place, gate)
    (gate if way in ("jump", "proxy") else sshd).stop()
    start = time.monotonic()
    problem = place.problem(sshd.node(), **settings)
    assert time.monotonic() - start < 2
    assert "for now" not in problem.message


@pytest.mark.parametrize("way", ["direct", "proxy"])
def test_many_logins_at_one_sshd_all_succeed(place: Place, way: str) -> None:
    """Nodes at one address, and those behind one ProxyCommand, take turns."""
    gate, sshd = place.sshd("MaxStartups 3:100:3"), place.sshd()
    transport = (
        place.transport(config=proxied_by(place, gate)) if way == "proxy" else (place.transport())
    )
    busy = sshd if way == "proxy" else gate

    def answer(number: int) -> bytes:
        return read_all(transport.open(busy.node(f"gpu{number}"), "echo hi"))

    with ThreadPoolExecutor(24) as pool:
        assert list(pool.map(answer, range(24))) == [b"hi\n"] * 24
    assert gate.logins == 24


def test_server_that_is_no_sshd_is_told(place: Place) -> None:
    """It answers, in another language."""

    def answer(link: socket.socket) -> None:
        link.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 60)

    with listener(answer) as node:
        problem = place.problem(node, connect_timeout=1)
    assert "is not an SSH server" in problem.message
    assert "cluster.nodes.gpu1.port" in problem.hint


def test_unknown_name_is_told(place: Place) -> None:
    """By whatever the name server here makes of it, in bounded time."""
    start = time.monotonic()
    problem = place.problem(Node("gpu1", "gone.invalid"), connect_timeout=1)
    assert time.monotonic() - start < 2.5
    assert "the name 'gone.invalid'" in problem.message


def test_name_server_that_hangs_is_given_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up cannot be interrupted, so it is left behind."""
    monkeypatch.setattr(ssh_protocol, "resolve", lambda *_: time.sleep(3))
    start = time.monotonic()
    problem = place.problem(Node("gpu1", "gpu1"), connect_timeout=0.5)
    assert time.monotonic() - start < 1.5
    assert "the name 'gpu1' could not be looked up within 0.5 s" in problem.message


def test_too_few_sessions_are_told(place: Place) -> None:
    """The log-in works, the second channel does not."""
    sshd = place.sshd("MaxSessions 1")
    transport = place.transport()
    transport.open(sshd.node(), "sleep 60")
    with pytest.raises(NotReady, match="accepted the login but refused a session") as caught:
        transport.open(sshd.node(), "true")
    assert "MaxSessions" in str(caught.value)


def test_broken_ssh_config_is_told(place: Place) -> None:
    """In ssh's own words, for the node that was asked for."""
    config = place.folder / "broken"
    config.write_text("Hots x\n")
    problem = place.problem(Node("gpu1", "gpu1"), config=str(config))
    assert problem.message.startswith("your ssh config cannot be read: ")
    assert "line 1" in problem.message
