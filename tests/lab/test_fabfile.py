"""A project's fabfile on real hosts: our verbs among its tasks, and its own tasks on our hosts."""

from __future__ import annotations

import re
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.lab.lab import Lab
from tests.lab.launching import ROOT, Controller, Launcher, Result

FAB = str(Path(sys.executable).with_name("fab"))
TOUCH = ["exec", "cluster=lab", "--", "touch", "/tmp/was-here"]
OWN_TASK = """
from fabric.exceptions import GroupException

@task
def versions(_context, cluster):
    from runner.fabric import group
    hosts = group(cluster, "cluster.only=[node1,node2]")
    hosts.put("fabfile.py", "copied.py")
    try:
        hosts.run("test $(hostname) = node1; wc -c < copied.py", hide=True, warn=False)
        hosts.run("test $(hostname) = node1", hide=True)
    except GroupException as error:
        print("reached", *sorted(c.node for c in error.result.succeeded))
    hosts.run("echo no >&2; test $(hostname) = node1", hide=True)
"""


@pytest.fixture
def project(on_lab: Launcher) -> Launcher:
    """A user whose fabfile is the one of the documentation."""
    page = (ROOT / "docs" / "commands.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    fabfile = next(block for block in blocks if "@task" in block)
    (on_lab.folder / "fabfile.py").write_text(fabfile + OWN_TASK)
    return on_lab


def fab(user: Launcher, *words: str) -> Result:
    """Run `fab WORDS` where the user stands."""
    with closing(Controller([FAB, *words], user.folder, user.env)) as controller:
        return controller.wait(60)


@pytest.mark.parametrize(
    "words", [("-H", "node1", *TOUCH), ("--dry", *TOUCH), (TOUCH[0], "-H", "node1", *TOUCH[1:])]
)
def test_flags_of_fabric_that_would_be_ignored_are_refused(
    lab: Lab, project: Launcher, words: tuple[str, ...]
) -> None:
    """Exit 2 with the words to use instead, and nothing is done on any host."""
    done = fab(project, *words)
    assert (done.code, done.out) == (2, ""), done
    assert re.match(r"error: fab (-H|--dry)", done.err), done
    assert ("cluster.only=" if "-H" in words else "leave it out") in done.err
    assert not [name for name, host in lab.hosts.items() if host.sh("ls /tmp/was-here || true")]


@pytest.mark.parametrize(
    ("flags", "hint"),
    [
        (("-i", "key"), "cluster.ssh.key=FILE"),
        (("--ssh-config=file",), "cluster.ssh.config=FILE"),
        (("--prompt-for-login-password",), "ssh-copy-id"),
        pytest.param(("-t", "3"), "cluster.ssh.connect_timeout=SECONDS", marks=pytest.mark.all),
        pytest.param(("-w",), "tasks with `run`", marks=pytest.mark.all),
    ],
)
def test_flags_of_fabric_about_connections_name_the_key(
    project: Launcher, flags: tuple[str, ...], hint: str
) -> None:
    """Before and after the verb; nobody is asked for a password first."""
    for words in ((*flags, "disks", "lab", "config", "lost_s"), ("config", *flags, "lost_s")):
        done = fab(project, *words)
        assert (done.code, done.out) == (2, ""), done
        assert re.fullmatch(
            rf"error: fab --?[\w-]+: config would ignore it.*\n.*{hint}.*\n", done.err
        )


def test_words_are_those_of_the_verb(project: Launcher) -> None:
    """KEY=VALUE, flags and the subject in any order, and further tasks in the same line."""
    words = ["cluster=lab", "lost_s=9"]
    once = project("config", "lost_s", *words)
    assert once.out == "9.0\n", once
    chain = fab(project, "config", *words, "--key=lost_s", "disks", "lab", "config", "lost_s")
    assert chain.code == 0, chain
    lines = chain.out.splitlines()
    assert (lines[0], lines[-1]) == ("9.0", "15.0"), chain
    assert sorted(line.split()[0] for line in lines[1:-1]) == [f"node{n}" for n in (1, 2, 3, 4)]
    listed = fab(project, "status", "lab", "ps", "lab")
    assert (listed.code, listed.out.count("nothing is running")) == (0, 2), listed
    words = ["cluster=lab", "task=env", "dry_run=offline"]
    launch = fab(project, "run", *words)
    said = f"error: fab run: fab has no launch\n    runner {' '.join(words)}\n"
    assert (launch.code, launch.err) == (2, said)
    assert project(*words).code == 0
    deployed = fab(project, "deploy", "lab")
    assert (deployed.code, "node[1-4]  stored" in deployed.out) == (0, True), deployed


def test_a_group_logs_in_as_a_launch_does(lab: Lab, project: Launcher) -> None:
    """With the cluster's keys and known hosts: Fabric's own methods work, failures are named."""
    done = fab(project, "versions", "lab")
    assert (done.code, done.out) == (1, "reached node1\n"), done
    assert done.err == "error: node2: the command ended with exit code 1\n    no\n", done
    assert lab["node2"].sh("ls ~/copied.py").endswith("copied.py\n")
    (project.folder / "data.tar").touch()
    done = fab(project, "upload", "lab", "data.tar")
    assert (done.code, done.out, done.err) == (0, "", ""), done
    assert all(host.sh("ls ~/data.tar").endswith("data.tar\n") for host in lab.hosts.values())
    cluster = project.conf / "cluster" / "lab.yaml"
    cluster.write_text(cluster.read_text().replace("known_hosts:", "known_hosts: /dev/null #"))
    done = fab(project, "disks", "lab")
    assert (done.code, done.out) == (3, ""), done
    assert "the host keys are not known" in done.err
    assert "Traceback" not in done.err
