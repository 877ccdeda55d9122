"""Logins by Fabric at a server that is not OpenSSH."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Iterator
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
def port(tmp_path: Path) -> Iterator[int]:
    """The port of a server that ends a connection which asks for its service of logins twice."""
    for name in ("host_key", "wrong_key", "key"):
        key = asyncssh.generate_private_key("ssh-ed25519")
        key.write_private_key(str(tmp_path / name))
        key.write_public_key(str(tmp_path / f"{name}.pub"))
        (tmp_path / name).chmod(0o600)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def listen() -> asyncssh.SSHAcceptor:
        return await asyncssh.listen(
            "127.0.0.1",
            0,
            server_host_keys=[str(tmp_path / "host_key")],
            authorized_client_keys=str(tmp_path / "key.pub"),
            process_factory=say_hello,
            encoding=None,
        )

    async def end() -> None:
        server.close()
        await server.wait_closed()

    server = asyncio.run_coroutine_threadsafe(listen(), loop).result(60)
    yield server.get_port()
    asyncio.run_coroutine_threadsafe(end(), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(60)
    loop.close()


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
