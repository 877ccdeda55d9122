"""Logins by Fabric at a server that is not OpenSSH."""

from __future__ import annotations

import asyncio
import functools
import queue
import threading
from pathlib import Path

import asyncssh
import pytest

from runner.core.spec import Node, Ssh
from runner.transport.fabric import HostConnection
from runner.transport.logins import SshTransport


async def say_hello(process: asyncssh.SSHServerProcess[bytes]) -> None:
    process.stdout.write(b"hello\n")
    process.exit(0)


@pytest.fixture
def port(tmp_path: Path) -> int:
    """The port of a server that ends a connection which asks for its service of logins twice."""
    for name in ("host_key", "wrong_key", "key"):
        key = asyncssh.generate_private_key("ssh-ed25519")
        key.write_private_key(str(tmp_path / name))
        key.write_public_key(str(tmp_path / f"{name}.pub"))
        (tmp_path / name).chmod(0o600)
    ports: queue.SimpleQueue[int] = queue.SimpleQueue()

    async def serve() -> None:
        server = await asyncssh.listen(
            "127.0.0.1",
            0,
            server_host_keys=[str(tmp_path / "host_key")],
            authorized_client_keys=str(tmp_path / "key.pub"),
            process_factory=say_hello,
            encoding=None,
        )
        ports.put(server.get_port())
        await server.wait_closed()

    threading.Thread(target=lambda: asyncio.run(serve()), daemon=True).start()
    return ports.get(timeout=60)


def test_the_service_of_logins_is_asked_for_once(tmp_path: Path, port: int) -> None:
    """After a method and a key that were refused, the connection is the same."""
    public_key = (tmp_path / "host_key.pub").read_text()
    (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{port} {public_key}")
    (tmp_path / "config").write_text(f"IdentityFile {tmp_path}/key\nIdentityAgent none\n")
    ssh = Ssh(
        user="ada",
        key=str(tmp_path / "wrong_key"),
        known_hosts=str(tmp_path / "known_hosts"),
        config=str(tmp_path / "config"),
    )
    transport = SshTransport(ssh, functools.partial(HostConnection, ssh, print))
    connection = transport.connect(Node("n1", "127.0.0.1", port=port))
    channel = connection.start(["true"])
    assert channel.read() == b"hello\n"
    connection.close()
    transport.close()
