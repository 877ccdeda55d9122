"""A project's fabfile on real hosts: our verbs among its tasks, and its own tasks on our hosts."""

from __future__ import annotations

import re

import pytest

from tests.lab.lab import Lab
from tests.lab.launching import ROOT, Launcher

TOUCH = ["exec", "--cluster=lab", "--command", "touch /tmp/was-here"]
OWN_TASK = """
from fabric.exceptions import GroupException

@task
def logs(_context, day): print("my logs of", day)

@task
def versions(_context, cluster):
    from runner.fabric import group
    hosts = group(cluster)
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


@pytest.mark.all
def test_flags_of_fabric_that_would_mislead_are_refused(lab: Lab, project: Launcher) -> None:
    """With -H a verb would run once for each host, and --dry would not keep it from running."""
    for flags in (("-H", "node1"), ("--dry",)):
        done = project.fab(*flags, *TOUCH)
        assert (done.code, done.out) == (2, ""), done
        assert done.err.startswith("error: fab exec: connects to the nodes of a cluster by itself")
    assert not [name for name, host in lab.hosts.items() if host.sh("ls /tmp/was-here || true")]


def test_a_verb_is_a_task_with_its_flags(project: Launcher) -> None:
    """Several in a line, with tasks of one's own between them; a failure has the verb's code.

    An own task called like a verb stays what it is.
    """
    words = "config --cluster lab --set lost_s=9 --set grace_s=1 --key lost_s disks lab"
    chain = project.fab(*words.split(), "logs", "monday", "config", "--key=lost_s")
    assert chain.code == 0, chain
    first, *disks, own, last = chain.out.splitlines()
    assert (first, own, last) == ("9", "my logs of monday", "15.0"), chain
    assert sorted(line.split()[0] for line in disks) == ["node1", "node2"]
    listed = project.fab("ps", "--cluster", "lab", "deploy", "--cluster", "lab")
    assert (listed.code, listed.out.count("nothing is running")) == (0, 1), listed
    assert "node[1-2]  stored" in listed.out
    planned = project.fab("launch", "--cluster=lab", "--set", "task=env", "--set=dry_run=offline")
    assert planned.code == 0, planned
    cut = project.fab("exec", "--cluster", "lab", "--", "true")
    assert (cut.code, cut.err) == (
        2,
        "error: fab exec: takes no words after `--`; use --command\n",
    )
    refused = project.fab("stop")
    assert (refused.code, refused.err.splitlines()[0]) == (2, "error: --run: no run is given")


@pytest.mark.all
def test_a_group_logs_in_as_a_launch_does(lab: Lab, project: Launcher) -> None:
    """With the cluster's keys and known hosts: Fabric's own methods work, failures are named."""
    done = project.fab("versions", "lab")
    assert (done.code, done.out) == (1, "reached node1\n"), done
    assert done.err == "error: node2: the command ended with exit code 1\n    no\n", done
    assert lab["node2"].sh("ls ~/copied.py").endswith("copied.py\n")
    cluster = project.conf / "cluster" / "lab.yaml"
    cluster.write_text(cluster.read_text().replace("known_hosts:", "known_hosts: /dev/null #"))
    done = project.fab("disks", "lab")
    assert (done.code, done.out) == (3, ""), done
    assert "shows a host key that is not known" in done.err
    assert "Traceback" not in done.err
