"""Logins that `ssh HOST` makes, on real sshds: they work, or the refusal says what to do.

Over `transport: ssh` a login that Fabric cannot make names `cluster.transport=openssh`, over which
it works.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runner.core.spec import Node
from runner.transport.endpoint import Kind, LoginFailed
from tests.lab.lab import LabFactory
from tests.lab.sshds import USER, MakePlace, Place, make_key, sign, start
from tests.lab.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.promise(7)]

BY_OPENSSH = "cluster.transport=openssh"
AUTHORIZED_KEYS = "authorized_keys"


@pytest.fixture(autouse=True)
def silence(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Whatever happens, nothing is printed."""
    yield
    assert capfd.readouterr() == ("", "")


def hint_of(failure: LoginFailed) -> str:
    return failure.problems[0].hint


def message_of(failure: LoginFailed) -> str:
    return failure.problems[0].message


# Our keys


def test_refused_key_is_named(place: Place) -> None:
    """With its user, and a command to try the same by hand."""
    sshd = place.sshd()
    other = make_key(place.folder / "other")
    failure = place.failure(sshd.node(), key=str(other))
    assert failure.kind is Kind.DENIED
    if place.kind == "ssh":
        refused = f"refused every key offered for user {USER}: {other}"
        assert message_of(failure) == f"{sshd.address} port {sshd.port} {refused}"
    else:
        assert "Permission denied (publickey" in message_of(failure)
    assert f"~{USER}/.ssh/authorized_keys" in hint_of(failure)
    (by_hand,) = [line for line in hint_of(failure).splitlines() if "ssh -v" in line]
    argv = [*shlex.split(by_hand.partition(": ")[2]), "-o", "BatchMode=yes"]
    said = subprocess.run(argv, check=False, capture_output=True, text=True).stderr
    assert "Permission denied" in said


@pytest.mark.parametrize("what", ["public", "putty", "open", "encrypted", "missing"])
def test_unusable_key_is_explained(make_place: MakePlace, what: str) -> None:
    """What it is, and what to do."""
    place = make_place("ssh")
    sshd = place.sshd()
    path = place.folder / "k"
    expected = {
        "public": f"it is a public key; name the private one, such as {path}",
        "putty": f"it is a key of PuTTY's; convert it: puttygen {path}",
        "open": f"other users may read it: chmod 600 {path}",
        "encrypted": f"it is encrypted and the ssh agent does not hold it: ssh-add {path}",
        "missing": "it cannot be read (No such file or directory); see IdentityFile",
    }[what]
    make_key(path, "secret" if what == "encrypted" else "")
    named = path
    if what == "public":
        named = Path(f"{path}.pub")
    elif what == "putty":
        path.write_text("PuTTY-User-Key-File-3: ssh-ed25519\n")
    elif what == "open":
        path.chmod(0o644)
    elif what == "missing":
        path.unlink()
    failure = place.failure(sshd.node(), f"IdentityFile {named}\n", key=None)
    assert failure.kind is Kind.DENIED
    assert message_of(failure).endswith("there is no key to offer")
    assert f"not offered: {named}: {expected}" in hint_of(failure)


def test_certificate_file_beside_its_key(place: Place) -> None:
    """A server that knows the authority alone, and a certificate with a name of its own."""
    authority = make_key(place.folder / "authority")
    key = make_key(place.folder / "k")
    sign(authority, Path(f"{key}.pub"), "-n", USER)
    (place.folder / "k-cert.pub").rename(place.folder / "short.pub")
    sshd = place.sshd(f"TrustedUserCAKeys {authority}.pub", "AuthorizedKeysFile none")
    config = f"CertificateFile {place.folder}/short.pub\nIdentityFile {key}\nIdentitiesOnly yes\n"
    assert place.said(sshd.node(), config=config, key=None) == "hi\n"


@contextlib.contextmanager
def agent(place: Place, monkeypatch: pytest.MonkeyPatch, *keys: Path) -> Iterator[int]:
    path = place.folder / "agent"
    process = subprocess.Popen(
        ["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))

        def has_keys() -> bool:
            return not subprocess.run(
                ["ssh-add", "-q", *keys], check=False, stderr=subprocess.DEVNULL
            ).returncode

        wait_until(has_keys, "the agent")
        yield process.pid
    finally:
        process.kill()
        process.wait()


def test_agent_opens_an_encrypted_key(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with its certificate; the agent signs for it, and is not forwarded."""
    authority = make_key(place.folder / "authority")
    plain = place.sshd("AllowAgentForwarding yes")
    by_authority = place.sshd(f"TrustedUserCAKeys {authority}.pub", "AuthorizedKeysFile none")
    with agent(place, monkeypatch, place.key):
        argv = ["ssh-keygen", "-q", "-p", "-N", "secret", "-f", str(place.key)]
        subprocess.run(argv, check=True, capture_output=True)
        asked = 'echo "<$SSH_AUTH_SOCK>"'
        assert place.said(plain.node(), asked, "ForwardAgent yes\n") == "<>\n"
        other = f"IdentityFile {place.key}.pub\nIdentitiesOnly yes\n"
        assert place.said(plain.node(), config=other, key=None) == "hi\n"
        sign(authority, Path(f"{place.key}.pub"), "-n", USER)
        assert place.said(by_authority.node()) == "hi\n"


def test_silent_agent_is_given_up(make_place: MakePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forwarded one whose connection is gone."""
    place = make_place("ssh")
    sshd = place.sshd()
    with agent(place, monkeypatch, place.key) as pid:
        os.kill(pid, signal.SIGSTOP)
        failure = place.failure(sshd.node(), connect_timeout=2.0)
        os.kill(pid, signal.SIGCONT)
    assert failure.kind is Kind.SILENT
    assert "unset SSH_AUTH_SOCK" in hint_of(failure)


# What the server takes


@pytest.mark.parametrize(
    ("methods", "options"),
    [
        ("password", ["PasswordAuthentication yes"]),
        ("hostbased", ["HostbasedAuthentication yes"]),
        ("gssapi-with-mic", ["GSSAPIAuthentication yes"]),
        ("publickey,keyboard-interactive", []),
    ],
)
def test_no_advice_about_keys_that_are_not_taken(
    place: Place, methods: str, options: list[str]
) -> None:
    """The methods are named, and the way: the user's own client, and a connection that he opens."""
    sshd = place.sshd(*options, f"AuthenticationMethods {methods}")
    failure = place.failure(sshd.node(), f"ControlPath {place.folder}/%C\n")
    assert failure.kind is Kind.DENIED
    assert methods.rpartition(",")[2] in message_of(failure)
    assert AUTHORIZED_KEYS not in hint_of(failure)
    assert all(hint_of(failure).splitlines())
    assert (BY_OPENSSH in hint_of(failure)) == (place.kind == "ssh")
    is_interactive = methods.endswith(("password", "interactive"))
    assert ("ssh -fNM -F" in hint_of(failure)) == is_interactive


def test_open_connection_is_gone_through(make_place: MakePlace) -> None:
    """The user's own to the jump host and to the host, where a login of ours is denied."""
    place = make_place("openssh")
    gate, sshd, behind = (place.sshd() for _ in range(3))
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # short, for the path of a socket
        config = f"ControlPath {folder}/%C\n"
        place.config.write_text(config)
        known = f"UserKnownHostsFile={place.known_hosts}"
        common = ["-F", str(place.config), "-i", str(place.key), "-o", known]
        masters = []
        for each in (gate, sshd):
            argv = ["ssh", "-NM", *common, "-p", str(each.port), each.address]
            masters.append(subprocess.Popen(argv))
        wait_until(lambda: len([*Path(folder).iterdir()]) == len(masters), "the logins by hand")
        authorized = Path(f"{place.key}.pub")
        text = authorized.read_text()
        authorized.write_text("")
        assert place.failure(behind.node(), config).kind is Kind.DENIED
        assert place.said(sshd.node(), config=config) == "hi\n"
        authorized.write_text(text)
        assert place.said(behind.node(), config=config, jump=(gate.hop,)) == "hi\n"
        assert (gate.logins, sshd.logins) == (1, 1)
        for master in masters:
            assert master.poll() is None
            master.terminate()
            master.wait()


def test_options_in_the_way_are_switched_off(make_place: MakePlace) -> None:
    """Of the user's own client: those for a terminal, for the background, and forwardings."""
    place = make_place("openssh")
    sshd = place.sshd()
    config = """
        RequestTTY force
        RemoteCommand echo other
        ForkAfterAuthentication yes
        StdinNull yes
        SessionType none
        LogLevel QUIET
        LocalForward 127.0.0.1:1 127.0.0.1:1
        ExitOnForwardFailure yes
        PermitLocalCommand yes
        LocalCommand echo local
        ControlMaster auto
        ControlPersist yes
        ControlPath /nowhere/%C
        Compression yes
    """
    connection = place.transport(config).connect(sshd.node())
    channel = start(connection, "cat; tty")
    channel.write(b"hi\n")
    assert channel.read() == b"hi\n"
    channel.close()


# On the way


def test_addresses_are_those_of_ssh(place: Place) -> None:
    """AddressFamily and BindAddress, also where a name has a dead address of the other family."""
    sshd = place.sshd()
    config = "AddressFamily inet\nBindAddress 127.0.0.77\n"
    said = place.said(sshd.node(), "echo $SSH_CONNECTION", config)
    assert said.split()[0] == "127.0.0.77"
    failure = place.failure(sshd.node(), "AddressFamily inet6\n")
    assert "Address family for hostname not supported" in message_of(failure)


def test_what_a_jump_host_does_not_reach(place: Place) -> None:
    """Told from what it does not allow, and from a jump host that is not what it was.

    The problem stands at the node that needed it, and speaks of the jump host.
    """
    gate = place.sshd(known=False)
    failure = place.failure(Node("gpu1", "127.0.0.99", port=9), jump=(gate.hop,))
    assert failure.kind is Kind.HOST_KEY_UNKNOWN
    assert message_of(failure).startswith(f"jump host {gate.address} ")
    place.know(gate.known)
    failure = place.failure(Node("gpu1", "127.0.0.99", port=9), jump=(gate.hop,))
    assert failure.kind is Kind.UNREACHED
    closed = place.sshd("AllowTcpForwarding no")
    failure = place.failure(gate.node(), jump=(closed.hop,))
    assert failure.kind is Kind.UNREACHED
    assert "AllowTcpForwarding" in hint_of(failure)


def test_proxy_command_is_for_openssh(make_place: MakePlace) -> None:
    """Which the refusal names."""
    failure = make_place("ssh").failure(Node("gpu1", "127.0.0.1"), "ProxyCommand nc %h %p\n")
    assert "cluster.transport=openssh" in hint_of(failure)


@pytest.mark.parametrize(
    ("node", "kind"),
    [
        (Node("gpu1", "nowhere.invalid"), Kind.NAME),
        (Node("gpu1", "127.0.0.99", port=9), Kind.UNREACHED),
    ],
)
def test_host_that_is_not_there(place: Place, node: Node, kind: Kind) -> None:
    """By its name, or by its port."""
    failure = place.failure(node)
    assert failure.kind is kind
    key = "host" if kind is Kind.NAME else "port"
    assert f"cluster.nodes.gpu1.{key}" in hint_of(failure)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (None, Kind.SILENT),  # packets that vanish
        (b"", Kind.SILENT),
        (b"SSH-2.0-x\r\n", Kind.SILENT),
        (b"\0HTTP\r\n" * 2000, Kind.NOT_SSH),
    ],
    ids=["lost packets", "no banner", "no handshake", "no ssh"],
)
def test_host_that_falls_silent_is_given_up(place: Place, said: bytes | None, kind: Kind) -> None:
    """In the middle of a login as well, not after the two minutes of TCP."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        if said is None:  # once its queue is full, Linux drops what comes
            for _ in range(3):
                link = stack.enter_context(socket.socket())
                link.setblocking(False)
                link.connect_ex(server.getsockname())
        else:

            def serve(said: bytes = said) -> None:
                link, _ = server.accept()
                stack.enter_context(link)
                link.sendall(said)

            threading.Thread(target=serve, daemon=True).start()
        node = Node("gpu1", "127.0.0.1", port=server.getsockname()[1])
        failure = place.failure(node, connect_timeout=2.0)
    assert failure.kind is kind
    assert ("cluster.ssh.connect_timeout" in hint_of(failure)) == (kind is Kind.SILENT)


@pytest.mark.parametrize("way", ["direct", "jump"])
def test_login_that_is_refused_for_now_is_tried_again(place: Place, way: str) -> None:
    """Until the sshd, of the host or before it, has room: sshd itself says which one it refused."""
    gate = place.sshd("MaxStartups 2:100:2")
    sshd = place.sshd("MaxStartups 2:100:2")
    jump = (gate.hop,) if way == "jump" else ()
    busy = gate if way == "jump" else sshd
    with contextlib.ExitStack() as logins, ThreadPoolExecutor(1) as pool:
        unfinished = 0
        while unfinished < 2:
            link = socket.create_connection((busy.address, busy.port), timeout=5 * PATIENCE)
            logins.enter_context(link)
            unfinished += link.recv(4) == b"SSH-"  # not until our look whether it listens is over
        opening = pool.submit(place.said, sshd.node(), jump=jump)
        wait_until(lambda: busy.logged("past MaxStartups"), "a refusal")
        logins.close()
        assert opening.result(60 * PATIENCE) == "hi\n"


@pytest.mark.promise(13)
def test_name_server_that_hangs_is_given_up(
    make_place: MakePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look-up cannot be interrupted, so it is left behind."""
    over = threading.Event()

    def look_up(*_: object) -> list[object]:
        over.wait()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    failure = make_place("ssh").failure(Node("gpu1", "gpu1"), connect_timeout=2.0)
    over.set()
    assert failure.kind is Kind.NAME
    assert "could not resolve its name within 2 s" in message_of(failure)


def test_account_that_starts_nothing(place: Place) -> None:
    """The login succeeds, and no session is opened."""
    sshd = place.sshd("MaxSessions 0")
    connection = place.transport().connect(sshd.node())
    if place.kind == "ssh":
        with pytest.raises(LoginFailed, match="MaxSessions") as caught:
            connection.start(["true"])
        assert caught.value.kind is Kind.NO_SESSION
        return
    channel = connection.start(["true"])
    assert channel.read() == b""
    assert channel.ended
    assert channel.ended.status is None
    assert "no session was opened" in channel.ended.reason
    channel.close()


def test_server_that_wants_no_key(lab_factory: LabFactory, make_place: MakePlace) -> None:
    """It lets an account without a password in, whatever keys there are here."""
    options = ["PermitEmptyPasswords yes", "PasswordAuthentication yes", "AuthorizedKeysFile none"]
    with lab_factory(n=1, sshd_options=options) as lab:
        host = lab["node1"]
        shadow = "sed 's/^alice:[^:]*/alice:/' /etc/shadow >/tmp/s; cat /tmp/s >/etc/shadow"
        host.sh(shadow, user="root")
        for kind in ("ssh", "openssh"):
            place = make_place(kind)
            place.know(lab.known_hosts.read_text())
            node = Node("node1", host.address, user="alice")
            assert place.said(node, key=str(make_key(place.folder / f"other-{kind}"))) == "hi\n"
