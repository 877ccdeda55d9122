"""Unit tests for configurations of OpenSSH that say the same of every host."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.core.spec import Node, Ssh
from runner.transport.ssh.config import Resolver
from runner.transport.ssh.config_files import is_plain_name, treat_all_alike


@pytest.mark.parametrize(
    "text",
    [
        "# Host gpu1\n\nUser ada\n  IdentityFile=~/.ssh/lab\n",
        "Host *\n  SendEnv LANG LC_*\n  ServerAliveInterval 5\n",
        "Include /nowhere/*.conf\n",
    ],
)
def test_all_hosts_are_treated_alike(text: str, tmp_path: Path) -> None:
    """By settings for all; a file that is not there says nothing."""
    (tmp_path / "config").write_text(text)
    assert treat_all_alike([str(tmp_path / "config"), str(tmp_path / "absent")])


@pytest.mark.parametrize(
    "text",
    [
        "Host gpu*\n  User ada\n",
        "host * !gpu1\n",
        "Match host gpu1\n",
        "HostName 10.0.0.%n\n",
        "HostKeyAlias lab\n",
        "ProxyCommand ssh -W %h:%p gate\n",
        "Include INCLUDED\n",
    ],
)
def test_hosts_are_told_apart(text: str, tmp_path: Path) -> None:
    """By patterns, names, tokens, and files that cannot be followed, or do so themselves."""
    (tmp_path / "included").write_text("Host gpu1\n")
    (tmp_path / "config").write_text(text.replace("INCLUDED", str(tmp_path / "included")))
    assert not treat_all_alike([str(tmp_path / "config")])
    assert not treat_all_alike([str(tmp_path)])


def test_a_file_that_includes_itself(tmp_path: Path) -> None:
    """It has an end."""
    (tmp_path / "config").write_text(f"Include {tmp_path}/config\n")
    assert not treat_all_alike([str(tmp_path / "config")])


def test_names_that_openssh_takes_as_they_are() -> None:
    """Others are asked about one by one: they are changed, or refused."""
    assert all(map(is_plain_name, ("gpu1", "10.0.0.1", "a.b-c", "2001:db8::1")))
    assert not any(map(is_plain_name, ("GPU1", "-x", "", "a b", "ada@gpu1")))


def test_one_query_tells_about_all_hosts(tmp_path: Path) -> None:
    """Each has its own name in what it says; another user or port is another query."""
    (tmp_path / "config").write_text("Host *\n  User ada\n")
    client = tmp_path / "ssh"
    client.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/asked\nexec /usr/bin/ssh "$@"\n')
    client.chmod(0o755)
    resolver = Resolver(Ssh(config=str(tmp_path / "config")), client=str(client))
    for host in ("gpu1", "gpu2", "GPU3"):
        (endpoint,) = resolver.route(Node("n", host))
        assert (endpoint.host.lower(), endpoint.user, endpoint.name) == (host.lower(), "ada", host)
    assert resolver.route(Node("n", "gpu4", port=2222))[0].port == 2222
    asked = (tmp_path / "asked").read_text().splitlines()
    assert [line.split()[-1] for line in asked] == ["gpu1", "GPU3", "gpu4"]
