"""Sshds on the loopback, each with a host key, an address and a port: they start at once."""

from __future__ import annotations

import contextlib
import functools
import getpass
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from runner.core.spec import Node, Ssh
from runner.transport.base import Channel, Connection, Transport
from runner.transport.endpoint import LoginFailed
from runner.transport.fabric import HostConnection
from runner.transport.logins import Make, SshTransport
from runner.transport.process import OpensshConnection
from tests.lab.waiting import wait_until

MakePlace = Callable[[str], "Place"]

USER = getpass.getuser()


class Sshd:
    """One of them."""

    def __init__(self, folder: Path, number: int, authorized: Path, *options: str) -> None:
        folder.mkdir()
        self.address = f"127.0.0.{number}"
        with socket.socket() as server:
            server.bind((self.address, 0))
            self.port = int(server.getsockname()[1])
        self.folder = folder
        self.log = folder / "log"
        self.host_key = make_key(folder / "host_key")
        self.name = f"[{self.address}]:{self.port}"
        self.hop = f"{self.address}:{self.port}"
        settings = [
            *options,  # of most options the first value counts
            "MaxStartups 200",
            f"Port {self.port}",
            f"ListenAddress {self.address}",
            f"HostKey {self.host_key}",
            f"AuthorizedKeysFile {authorized}",
            "PidFile none",
            "UsePAM no",
            "StrictModes no",
            "UseDNS no",
            "PasswordAuthentication no",
            "MaxSessions 200",
            "LogLevel VERBOSE",
            f"SetEnv HOME={folder}",  # bash reads ~/.bashrc under sshd, and that may do anything
        ]
        if any(option.startswith("MaxStartups") for option in options):
            settings.remove("MaxStartups 200")  # the last value of this one counts
        (folder / "config").write_text("\n".join(settings) + "\n")
        argv = ["/usr/sbin/sshd", "-D", "-E", str(self.log), "-f", str(folder / "config")]
        self.process = subprocess.Popen(argv, start_new_session=True)
        wait_until(self._listens, "the start of sshd")

    @property
    def public(self) -> str:
        return Path(f"{self.host_key}.pub").read_text().strip()

    @property
    def known(self) -> str:
        return f"{self.name} {self.public}\n"

    def node(self, name: str = "gpu1") -> Node:
        return Node(name, self.address, port=self.port)

    def logged(self, words: str) -> int:
        return self.log.read_text().count(words)

    @property
    def logins(self) -> int:
        return self.logged("Accepted publickey")

    def _listens(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        with socket.socket() as probe:
            return probe.connect_ex((self.address, self.port)) == 0

    def signal_sessions(self, number: signal.Signals) -> None:
        """Signal the processes that serve connections, with what they have started."""
        pids = list(children_of(self.process.pid))
        for pid in pids:
            pids.extend(children_of(pid))
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)  # no new sessions meanwhile
        self.signal_sessions(signal.SIGKILL)
        self.process.kill()
        self.process.wait()


class Place:
    """A folder with a key, a known-hosts file, and the sshds and transports of a test."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self.kind = kind
        self.known_hosts = folder / "known_hosts"
        self.known_hosts.touch()
        self.config = folder / "config"
        self.config.touch()
        self.key = folder / "id"
        if not self.key.exists():
            make_key(self.key)
        self.notes: list[str] = []
        self.sshds: list[Sshd] = []
        self.transports: list[Transport] = []

    def sshd(self, *options: str, known: bool = True) -> Sshd:
        number = len(self.sshds) + 2
        authorized = Path(f"{self.key}.pub")
        sshd = Sshd(self.folder / f"sshd{number}", number, authorized, *options)
        self.sshds.append(sshd)
        if known:
            self.know(sshd.known)
        return sshd

    def know(self, line: str) -> None:
        with self.known_hosts.open("a") as file:
            file.write(line)

    def ssh(self, config: str = "", **settings: Any) -> Ssh:
        """Settings that read nothing of the user's but what a test writes."""
        self.config.write_text(config)
        usual = {
            "key": str(self.key),
            "known_hosts": str(self.known_hosts),
            "config": str(self.config),
            "connect_timeout": 60.0,
        }
        return Ssh(**{**usual, **settings})

    def transport(self, config: str = "", **settings: Any) -> Transport:
        ssh = self.ssh(config, **settings)
        make: Make = functools.partial(OpensshConnection, ssh)
        if self.kind == "ssh":
            make = functools.partial(HostConnection, ssh, self.notes.append)
        transport = SshTransport(ssh, make)
        self.transports.append(transport)
        return transport

    def said(self, node: Node, command: str = "echo hi", config: str = "", **settings: Any) -> str:
        """Log in, and return what a command prints."""
        connection = self.transport(config, **settings).connect(node)
        return read_all(start(connection, command)).decode()

    def failure(self, node: Node, config: str = "", **settings: Any) -> LoginFailed:
        with pytest.raises(LoginFailed) as caught:
            self.transport(config, **settings).connect(node)
        (problem,) = caught.value.problems
        assert problem.subject == node.name
        return caught.value

    def close(self) -> None:
        for transport in self.transports:
            transport.close()
        for sshd in self.sshds:
            sshd.stop()


def start(connection: Connection, command: str) -> Channel:
    return connection.start(["/bin/sh", "-c", command])


def read_all(channel: Channel) -> bytes:
    """Read to the end, and close."""
    data = b"".join(iter(channel.read, b""))
    channel.close()
    return data


def make_key(path: Path, passphrase: str = "") -> Path:
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(path)]
    subprocess.run(argv, check=True)
    return path


def sign(authority: Path, public: Path, *words: str) -> None:
    """Make a certificate beside a public key."""
    argv = ["ssh-keygen", "-q", "-s", str(authority), "-I", "x", *words, str(public)]
    subprocess.run(argv, check=True)


def children_of(pid: int) -> Iterable[int]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                yield int(stat.parent.name)
