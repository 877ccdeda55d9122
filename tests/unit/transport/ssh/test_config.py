"""The user's ssh configuration, and the YAML's settings over it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.core.spec import Node, Ssh
from runner.transport.ssh.config import (
    Endpoint,
    Hop,
    Resolver,
    expand_tokens,
    parse_jump,
)
from runner.transport.ssh.deadline import LoginFailure

Resolve = Callable[..., tuple[Endpoint, ...]]

ANSWER = """\
host gpu1
user train
hostname gpu1.lab
port 2222
identitiesonly yes
identityagent none
identityfile ~/.ssh/lab-%r
identityfile {here}/key-%h
globalknownhostsfile /etc/known /etc/known2
userknownhostsfile {here}/mine
hostkeyalias cluster
proxycommand nc -x %%h %h %p
"""


@pytest.fixture
def fake_client(tmp_path: Path) -> Callable[[str], str]:
    """Make an ssh client that prints what it is given, and notes how it was called."""

    def make(answer: str, then: str = "") -> str:
        (tmp_path / "answer").write_text(answer)
        client = tmp_path / "ssh"
        calls = tmp_path / "calls"
        client.write_text(f'#!/bin/sh\necho "$@" >>{calls}\ncat {tmp_path}/answer\n{then}\n')
        client.chmod(0o755)
        return str(client)

    return make


@pytest.fixture
def resolve(tmp_path: Path) -> Resolve:
    """Resolve a host by a text of configuration, with the real client."""
    if shutil.which("ssh") is None:
        pytest.skip("no ssh client here")

    def run(text: str, host: str = "gpu1", **ssh: object) -> tuple[Endpoint, ...]:
        config = tmp_path / "config"
        config.write_text(text)
        made = Ssh(config=str(config), **ssh)  # type: ignore[arg-type]
        return Resolver(made).route(Node("n", host))

    return run


def test_answer_of_the_client_is_read(fake_client: Callable[[str], str], tmp_path: Path) -> None:
    """Every setting we honour, with the tokens that ssh leaves to us."""
    (tmp_path / "key-gpu1.lab").touch()
    client = fake_client(ANSWER.format(here=tmp_path))
    (found,) = Resolver(Ssh(), client=client).route(Node("n", "gpu1"))
    assert found == Endpoint(
        name="gpu1",
        host="gpu1.lab",
        port=2222,
        user="train",
        key_files=(f"{tmp_path}/key-gpu1.lab",),
        identities_only=True,
        agent_socket="",
        proxy_command="nc -x %h gpu1.lab 2222",
        proxy_template="nc -x %%h %h %p",
        host_key_alias="cluster",
        known_hosts_files=(
            f"{tmp_path}/mine",
            str(Path("~/.ssh/known_hosts").expanduser()),
            "/etc/known",
            "/etc/known2",
        ),
        manual_command="ssh -v gpu1",
    )


def test_client_is_told_what_the_yaml_says(
    fake_client: Callable[[str], str], tmp_path: Path
) -> None:
    """So that `Match user` and `%r` see it; and each host is asked about once."""
    client = fake_client("hostname 10.0.0.1\nuser alice\nport 77\n")
    ssh = Ssh(user="bob", port=77, config=str(tmp_path / "c"))
    resolver = Resolver(ssh, client=client)
    for _ in range(2):
        resolver.route(Node("n", "gpu1", user="alice"))
    (found,) = resolver.route(Node("m", "gpu2"))
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == [
        f"-G -F {tmp_path}/c -l alice -p 77 -- gpu1",
        f"-G -F {tmp_path}/c -l bob -p 77 -- gpu2",
    ]
    assert (found.user, found.port) == ("bob", 77)


def test_yaml_wins_over_the_config(resolve: Resolve, tmp_path: Path) -> None:
    """User, port, key, jump and known hosts of the YAML beat those of the file."""
    (hop, found) = resolve(
        "Host gpu1\n User a\n Port 1\n ProxyJump other\n UserKnownHostsFile /x\n",
        user="b",
        port=2,
        key="/k",
        jump=("c@gate:3",),
        known_hosts=str(tmp_path / "kh"),
    )
    assert (hop.host, hop.user, hop.port) == ("gate", "c", 3)
    assert (found.user, found.port, found.chosen_key) == ("b", 2, "/k")
    assert found.known_hosts_files[0] == str(tmp_path / "kh")
    assert "/x" not in found.known_hosts_files
    assert found.manual_command == (
        f"ssh -v -F {tmp_path}/config -i /k -o UserKnownHostsFile={tmp_path}/kh"
        " -J c@gate:3 -p 2 b@gpu1"
    )


def test_proxy_jump_of_the_config_is_followed(resolve: Resolve) -> None:
    """Hops in order, each with its own settings; the first one's own jump comes before it."""
    route = resolve(
        "Host gpu1\n ProxyJump first,me@second:2200\n"
        "Host first\n HostName 10.0.0.1\n ProxyJump door\n"
        "Host second\n User ignored\n ProxyJump not-asked\n"
    )
    assert [(hop.name, hop.host, hop.port) for hop in route] == [
        ("door", "door", 22),
        ("first", "10.0.0.1", 22),
        ("second", "second", 2200),
        ("gpu1", "gpu1", 22),
    ]
    assert route[2].user == "me"


def test_circle_of_jump_hosts_is_an_error(resolve: Resolve) -> None:
    """Two hosts that each wait behind the other are named, not followed for ever."""
    with pytest.raises(LoginFailure, match="form a circle"):
        resolve("Host gpu1\n ProxyJump b\nHost b\n ProxyJump c\nHost c\n ProxyJump b\n")


def test_proxy_command_counts_where_no_jump_is_given(resolve: Resolve) -> None:
    """The YAML's jump takes its place; "none" is none."""
    text = "Host gpu1\n ProxyCommand nc %h %p\nHost gpu2\n ProxyCommand none\n"
    assert resolve(text)[0].proxy_command == "nc gpu1 22"
    assert resolve(text, "gpu2")[0].proxy_command == ""
    assert [hop.proxy_command for hop in resolve(text, jump=("gate",))] == ["", ""]


@pytest.mark.parametrize(
    ("text", "hops"),
    [
        ("", ()),
        ("me@gate:2200", (Hop("gate", "me", 2200),)),
        ("a, b@c", (Hop("a"), Hop("c", "b"))),
        ("me@[fe80::1]:2200", (Hop("fe80::1", "me", 2200),)),
        ("me@lab@gate", (Hop("gate", "me@lab"),)),
    ],
)
def test_jump_hosts_are_read(text: str, hops: tuple[Hop, ...]) -> None:
    """The forms of ProxyJump."""
    assert parse_jump(text) == hops
    assert parse_jump(",".join(map(str, hops))) == hops


@pytest.mark.parametrize("text", ["a,,b", "gate:ssh", "[gate", "me@"])
def test_bad_jump_host_names_the_key(text: str) -> None:
    """What cannot be read is quoted, with the form it should have."""
    with pytest.raises(LoginFailure, match=r"\[user@\]host\[:port\]") as caught:
        parse_jump(text)
    assert "cluster.ssh.jump" in caught.value.hint


def test_tokens_and_variables_are_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown ones stay; a command keeps its ~ and $ for its shell."""
    monkeypatch.setenv("KEYS", "keys")
    monkeypatch.setenv("HOME", "/home/me")
    tokens = {"h": "gpu1", "%": "%"}
    assert (
        expand_tokens("~/${KEYS}/%h-%%h-%Z-${GONE_X}", tokens)
        == "/home/me/keys/gpu1-%h-%Z-${GONE_X}"
    )
    assert expand_tokens("~/nc ${KEYS} %h", tokens, home=False) == "~/nc ${KEYS} gpu1"
