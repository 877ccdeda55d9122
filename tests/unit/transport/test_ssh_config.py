"""The user's ssh configuration, and the YAML's settings over it, as OpenSSH itself reads both."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.core.spec import Node, Ssh
from runner.transport.endpoint import Endpoint, Kind, LoginFailed
from runner.transport.keys import HostKey, add_known_key, known_keys
from runner.transport.logins import Login, SshTransport

pytestmark = pytest.mark.skipif(not shutil.which("ssh"), reason="no ssh client here")

Resolve = Callable[..., tuple[Endpoint, ...]]


def unused(*_: object) -> Login:
    raise AssertionError


@pytest.fixture
def resolve(tmp_path: Path) -> Resolve:
    """Resolve a host by a text of configuration."""

    def run(text: str, host: str = "gpu1", **ssh: object) -> tuple[Endpoint, ...]:
        config = tmp_path / "config"
        config.write_text(text)
        made = Ssh(config=str(config), **ssh)  # type: ignore[arg-type]
        return SshTransport(made, unused).route(Node("n", host))

    return run


def test_yaml_wins_over_the_config(resolve: Resolve, tmp_path: Path) -> None:
    """User, port, key, jump, known hosts; they stand in the line by which a user does the same."""
    (tmp_path / "k").touch()
    hop, found = resolve(
        "Host gpu1\n User a\n Port 1\n ProxyJump other\n ProxyCommand nc\n UserKnownHostsFile /x\n",
        user="b",
        port=2,
        key=str(tmp_path / "k"),
        jump=("c@gate:3",),
        known_hosts=str(tmp_path / "kh"),
    )
    assert (hop.host, hop.user, hop.port, hop.first("proxycommand")) == ("gate", "c", 3, "")
    assert (found.user, found.port, found.first("proxycommand")) == ("b", 2, "")
    assert found.settings["identityfile"][0] == str(tmp_path / "k")
    assert found.known_hosts_files[0] == str(tmp_path / "kh")
    assert "/x" not in found.known_hosts_files
    common = f"-F {tmp_path}/config -i {tmp_path}/k -o UserKnownHostsFile={tmp_path}/kh"
    assert " ".join(found.words) == f"{common} -l b -p 2 -J c@gate:3 gpu1"
    assert " ".join(hop.words) == f"{common} -l c -p 3 gate"


def test_proxy_jump_of_the_config_is_followed(resolve: Resolve) -> None:
    """Hops in order, each with its own settings; the first one's own jump comes before it."""
    route = resolve(
        "Host gpu1\n ProxyJump first,me@second:2200\n"
        "Host first\n HostName 10.0.0.1\n ProxyJump door\n"
        "Host second\n User ignored\n ProxyJump not-asked\n"
    )
    assert [(hop.host, hop.port, hop.is_jump) for hop in route] == [
        ("door", 22, True),
        ("10.0.0.1", 22, True),
        ("second", 2200, True),
        ("gpu1", 22, False),
    ]
    assert route[2].user == "me"


@pytest.mark.parametrize(
    ("jump", "expected"),
    [
        ("ssh://me@gate:2200", ("gate", "me", 2200)),
        ("me@[fe80::1]:2200", ("fe80::1", "me", 2200)),
        ("[fe80::1]", ("fe80::1", "u", 22)),
        ("me@lab@gate", ("gate", "me@lab", 22)),
    ],
)
def test_jump_hosts_are_read(resolve: Resolve, jump: str, expected: tuple[str, str, int]) -> None:
    """The forms of ProxyJump."""
    hop, _ = resolve("User u\n", jump=(jump,))
    assert (hop.host, hop.user, hop.port) == expected


def test_jump_host_that_is_a_node_is_reached_directly(resolve: Resolve) -> None:
    """Under `Host *`, and with cluster.ssh.jump for all nodes."""
    assert len(resolve("Host *\n ProxyJump gate\n", "gate")) == 1
    assert len(resolve("", "gate", jump=("gate",))) == 1
    assert [hop.host for hop in resolve("", "b", jump=("a", "b"))] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ProxyJump b\nHost b\n ProxyJump c\nHost c\n ProxyJump b\n", "form a circle"),
        ("ProxyJump a,,b\n", "Invalid"),
        ("Bogus yes\n", "Bad configuration option: bogus"),
    ],
)
def test_bad_configuration_is_quoted(resolve: Resolve, text: str, said: str) -> None:
    """In OpenSSH's words."""
    with pytest.raises(LoginFailed, match=said) as caught:
        resolve(f"Host gpu1\n {text}")
    assert caught.value.kind is Kind.CONFIG


def test_slow_configuration_is_given_up(resolve: Resolve) -> None:
    """After the time of a login."""
    with pytest.raises(LoginFailed, match="no answer within 1 s"):
        resolve('Match exec "sleep 60"\n User u\n', connect_timeout=1.0)


def test_what_ssh_leaves_is_expanded(resolve: Resolve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens, variables and the home."""
    monkeypatch.setenv("KEYS", "keys")
    (found,) = resolve("IdentityFile ~/${KEYS}/%h-%r-%%\nUser u\n")
    (path,) = found.settings["identityfile"]
    assert found.expand(path) == str(Path("~/keys/gpu1-u-%").expanduser())


def test_known_hosts_are_those_of_ssh(resolve: Resolve) -> None:
    """Several files, blanks in a path, none; what is thrown away is not where keys are kept."""
    (found,) = resolve('UserKnownHostsFile "/a b/k" /c\nGlobalKnownHostsFile none\n')
    assert found.known_hosts_files == ("/a b/k", "/c")
    (found,) = resolve("UserKnownHostsFile /dev/null\nGlobalKnownHostsFile none\n")
    assert found.known_hosts_files == (str(Path("~/.ssh/known_hosts").expanduser()),)


@pytest.mark.parametrize("is_hashed", ["yes", "no"])
def test_key_is_added_as_ssh_adds_it(resolve: Resolve, tmp_path: Path, is_hashed: str) -> None:
    """On a line of its own, hashed where ssh would; we find it again, as ssh-keygen does."""
    known = tmp_path / "new" / "known"
    text = f"HashKnownHosts {is_hashed}\nPort 2222\nGlobalKnownHostsFile none\n"
    (found,) = resolve(text, known_hosts=str(known))
    key = HostKey("ssh-ed25519", _blob("a"))
    other = HostKey("ssh-ed25519", _blob("b"))
    add_known_key(found, key)
    known.write_text(known.read_text().rstrip("\n"))
    add_known_key(found, other)
    lines = known.read_text().splitlines()
    assert [line.startswith("|1|") for line in lines] == [is_hashed == "yes"] * 2
    assert [(each.blob, each.location) for each in known_keys(found, 60.0)] == [
        (key.blob, f"{known}:1"),
        (other.blob, f"{known}:2"),
    ]


def test_keys_are_found_as_ssh_finds_them(resolve: Resolve, tmp_path: Path) -> None:
    """With their markers, by the alias, and without the port where there is none with it."""
    known = tmp_path / "known"
    lines = [f"gpu*,!gpu9 {_line('a')}", f"  @revoked *  {_line('b')} comment", f"box {_line('e')}"]
    known.write_text("\n".join([*lines, "gpu1 ssh-ed25519 bad"]))
    for host, text, expected in (
        ("gpu1", "", ["a", "@revokedb"]),
        ("gpu9", "", ["@revokedb"]),
        ("gpu8", "Port 2222\n", ["@revokedb", "a", "@revokedb"]),
        ("gpu1", "HostKeyAlias box\n", ["@revokedb", "e"]),
    ):
        config = f"{text}GlobalKnownHostsFile none\n"
        (endpoint,) = resolve(config, host=host, known_hosts=str(known))
        found = [f"{key.marker}{chr(key.blob[-1])}" for key in known_keys(endpoint, 60.0)]
        assert found == expected, (host, text)


def _blob(mark: str) -> bytes:
    kind = b"ssh-ed25519"
    return len(kind).to_bytes(4, "big") + kind + (32).to_bytes(4, "big") + mark.encode() * 32


def _line(mark: str) -> str:
    line = base64.b64encode(_blob(mark)).decode()
    return f"ssh-ed25519 {line}"
