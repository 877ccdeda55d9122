"""Hosts that are not what they say, and other users of a host: nothing of theirs is believed."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runner.transport.endpoint import Kind
from tests.lab.lab import Lab, LabFactory
from tests.lab.launching import PLAIN_ENTRY, PROGRAMS, Launcher, Result
from tests.lab.sshds import Place, make_key, sign
from tests.lab.test_logins import BY_OPENSSH, hint_of, message_of

STRANGER = "nobody"
SLEEP, BECOME = "/home/set-uid-sleep", "/home/set-uid-setpriv"
"""Programs of a host where /proc hides the processes of others (hidepid=2)."""


@pytest.mark.promise(3)
def test_a_launch_needs_nothing_of_tmp(lab: Lab, on_lab: Launcher) -> None:
    """Not read-only and noexec on one host, not with a stranger's folders on the other."""
    squatted = " ".join(f"/tmp/runner-2001{ending}" for ending in ("", "-a", "-b", "-c"))
    mount = "mount -o remount,bind,{} /tmp"
    with (
        lab["node1"].changed(mount.format("ro,noexec"), mount.format("rw,exec")),
        lab["node2"].changed(f"mkdir {squatted}", f"rmdir {squatted}"),
    ):
        launch = ("cluster=lab", *on_lab.rank_overrides("print=up"))
        on_lab.succeed("check", *launch)
        done = on_lab(*launch)
    assert done.code == 0, done
    assert done.out.count("] up") == 2


@pytest.mark.promise(12)
def test_a_folder_that_a_stranger_made_runs_nothing(lab: Lab, on_lab: Launcher) -> None:
    """Not even with our tasks in it, since he could change them: refused before anything runs."""
    plant = "mkdir -m 777 /tmp/x && mkdir -m 777 /tmp/x/tasks"
    with lab["node2"].changed(f"setpriv --reuid={STRANGER} sh -c '{plant}'", "rm -rf /tmp/x"):
        words = ("cluster.workdir=/tmp/x", *on_lab.rank_overrides("print=up"))
        done = on_lab("cluster=lab", *words)
        checked = on_lab("check", "cluster=lab", *words)
    for refused in (done, checked):
        assert refused.code == 3, refused
    assert f"node2: cluster.workdir: /tmp/x belongs to the user {STRANGER}\n" in done.err
    assert "cluster.workdir=/tmp/x-${oc.env:USER}" in done.err
    assert f"/tmp/x belongs to the user {STRANGER}" in checked.out
    assert lab["node1"].sh("ls /tmp/x", check=False) == ""


@pytest.mark.promise(2, 12, 13)
def test_no_host_proves_that_nothing_is_left_on_another(
    lab: Lab, on_lab: Launcher, tmp_path: Path
) -> None:
    """node2 says that it is node1, to which no packet goes: node1 is named, by code 5."""
    ranks = on_lab.rank_overrides("print=up", "wait=/tmp/go")
    assert on_lab("cluster=lab", "run_id=liars", "detach=true", *ranks).code == 0
    liar = tmp_path / "python"
    liar.write_text(f'#!/bin/sh\nexec {sys.executable} {PROGRAMS}/liar.py node2 "$@"\n')
    liar.chmod(0o755)
    stop = ("stop", "--run", "liars")
    lab["node1"].unplug()
    try:
        told = on_lab(*stop, "--cluster", "lab", f"cluster.host_python={liar}")
    finally:
        lab["node1"].plug()
    assert told.code == 5, told
    assert "node1" in told.out + told.err, told
    assert on_lab(*stop).code == 0


@pytest.fixture(scope="module")
def hiding(lab_factory: LabFactory) -> Iterator[Lab]:
    """A host with two set-uid programs; one becomes root for good."""
    with lab_factory(n=1) as lab:
        lab["node1"].sh("mount -o remount,hidepid=2 /proc; chmod 755 /home", user="root")
        for name, copy in (("sleep", SLEEP), ("setpriv", BECOME)):
            lab["node1"].sh(f"install -m 4755 $(command -v {name}) {copy}", user="root")
        yield lab


@pytest.fixture
def leave(hiding: Lab, launcher: Launcher) -> Iterator[Callable[[str], Result]]:
    """Run, as an ordinary user, a rank that leaves a process behind."""
    hiding.write_cluster(launcher.conf)

    def run(left_behind: str) -> Result:
        command = f"task.command=[sh,-c,'{left_behind} >/dev/null 2>&1 & sleep 1; echo up']"
        return launcher("cluster=lab", PLAIN_ENTRY, "grace_s=0.3", command)

    yield run
    hiding.kill_all()


@pytest.mark.promise(2, 13)
def test_a_hidden_process_is_ended(hiding: Lab, leave: Callable[[str], Result]) -> None:
    """The kernel names it and lets us signal it: its real user is ours."""
    done = leave(f"{SLEEP} 600")
    assert done.code == 0, done
    assert "0 processes left" in done.err
    assert hiding["node1"].processes(SLEEP) == []


@pytest.mark.promise(2, 13)
def test_what_cannot_be_ended_is_named(hiding: Lab, leave: Callable[[str], Result]) -> None:
    """A program that became another user: nothing is proven, and that is said."""
    done = leave(f"{BECOME} --reuid=0 --clear-groups sleep 601")
    assert done.code == 5, done
    (left,) = (each for each in hiding["node1"].processes() if each.cmdline == "sleep 601")
    assert str(left.pid) in done.err
    assert "0 processes left" not in done.err


# Host keys


@pytest.mark.promise(7)
def test_unknown_host_key_is_refused_with_the_next_steps(place: Place) -> None:
    """What the message says cures it: the login by hand, or the word that learns it."""
    sshd = place.sshd(known=False)
    failure = place.failure(sshd.node())
    assert failure.kind is Kind.HOST_KEY_UNKNOWN
    if place.kind == "ssh":
        argv = ["ssh-keygen", "-lf", f"{sshd.host_key}.pub"]
        said = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
        assert f"is not known: ssh-ed25519 {said.split()[1]}" in message_of(failure)
    (line,) = [line for line in hint_of(failure).splitlines() if line.startswith("log in by hand")]
    argv = [*shlex.split(line.rpartition("): ")[2]), "-oStrictHostKeyChecking=accept-new", "true"]
    subprocess.run(argv, check=True, capture_output=True)
    assert place.said(sshd.node()) == "hi\n"


@pytest.mark.promise(7)
def test_lines_that_are_not_followed_are_named(place: Place) -> None:
    """With the word that allows it for this cluster."""
    sshd = place.sshd(known=False)
    config = "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n"
    failure = place.failure(sshd.node(), config, known_hosts="~/.ssh/known_hosts")
    assert failure.kind is Kind.HOST_KEY_UNKNOWN
    assert "`StrictHostKeyChecking no` and `UserKnownHostsFile /dev/null`" in hint_of(failure)
    assert "cluster.ssh.host_keys=accept-new" in hint_of(failure)


@pytest.mark.promise(7)
def test_changed_host_key_is_refused(place: Place) -> None:
    """Also where keys are learnt; and how to forget the old one."""
    sshd = place.sshd(known=False)
    old = make_key(place.folder / "old")
    place.know(f"# mine\n{sshd.name} {Path(f'{old}.pub').read_text()}")
    failure = place.failure(sshd.node(), host_keys="accept-new")
    assert failure.kind is Kind.HOST_KEY_CHANGED
    if place.kind == "ssh":
        assert f"{place.known_hosts}:2" in message_of(failure)
    (line,) = [line for line in hint_of(failure).splitlines() if "ssh-keygen -R" in line]
    command = line.partition(": ")[2]
    subprocess.run(["sh", "-c", command], check=True, capture_output=True)
    assert place.failure(sshd.node()).kind is Kind.HOST_KEY_UNKNOWN


@pytest.mark.promise(7)
def test_revoked_host_key_is_refused(place: Place) -> None:
    """Whatever else is known of it."""
    sshd = place.sshd()
    place.know(f"@revoked * {sshd.public}\n")
    failure = place.failure(sshd.node(), host_keys="accept-new")
    assert failure.kind is Kind.HOST_KEY_CHANGED
    assert "give the machine a new host key" in hint_of(failure)


@pytest.mark.promise(7)
@pytest.mark.parametrize("what", ["valid", "expired", "of another name"])
def test_host_certificates(place: Place, what: str) -> None:
    """The valid one is let in by the user's own client, the others are refused with the reason."""
    authority = make_key(place.folder / "authority")
    host_key = make_key(place.folder / "hk")
    words = {
        "valid": ["-n", "127.0.0.2", "-V", "+1d"],
        "expired": ["-n", "127.0.0.2", "-V", "-2d:-1d"],
        "of another name": ["-n", "elsewhere", "-V", "+1d"],
    }[what]
    sign(authority, Path(f"{host_key}.pub"), "-h", *words)
    sshd = place.sshd(f"HostKey {host_key}", f"HostCertificate {host_key}-cert.pub", known=False)
    place.know(f"@cert-authority * {Path(f'{authority}.pub').read_text()}")
    if place.kind == "openssh" and what == "valid":
        assert place.said(sshd.node()) == "hi\n"
        return
    failure = place.failure(sshd.node())
    assert failure.kind is Kind.HOST_KEY_UNKNOWN
    if place.kind == "ssh":
        assert BY_OPENSSH in hint_of(failure)
    elif what == "expired":
        assert "Certificate invalid: expired" in message_of(failure)
    else:
        assert "Certificate invalid: name is not a listed principal" in message_of(failure)
