"""`check` and the part of it in every launch, on hosts with something wrong."""

from __future__ import annotations

import json
import secrets
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.lab.lab import Lab
from tests.lab.launching import PLAIN_ENTRY, ROOT, Launcher, Result

pytestmark = [pytest.mark.promise(8)]

SETUP = "cluster.setup=['if [ -d /dev/shm/other ]; then export PYTHONPATH=/dev/shm/other; fi']"

MEMORY = Path("/sys/fs/cgroup/memory")


def found(done: Result, **of: str) -> list[dict[str, Any]]:
    """The findings of a check that are so."""
    rows: list[dict[str, Any]] = json.loads(done.out)
    return [row for row in rows if all(row[name] == value for name, value in of.items())]


def test_a_cluster_that_is_well(lab: Lab, on_lab: Launcher) -> None:
    """Every host is judged; nothing is started there, and nothing stays."""
    done = on_lab("check", "--cluster", "lab", "--json")
    assert found(done, level="error") == []
    assert done.code == 0, done
    for check in ("reach", "python", "torch", "network"):
        assert [row["node"] for row in found(done, check=check, level="fine")] == list(lab.hosts)
    skipped = ("--skip=limits", "--skip=storage", "--skip=system")  # this machine's, not the lab's
    shown = on_lab("check", "--cluster", "lab", *skipped)
    assert shown.code == 0, shown
    assert "torch    fine  node[1-4]  2." in shown.out, shown
    assert shown.out.endswith("lab: no problems found\n"), shown
    assert lab.wait_idle() == {}


def test_a_host_that_does_not_answer(lab: Lab, on_lab: Launcher) -> None:
    """It is named with the reason and what to do; the others are judged."""
    lab["node2"].unplug()
    done = on_lab("check", "--cluster", "lab", "--json", "cluster.ssh.connect_timeout=2")
    assert done.code == 3, done
    (silent,) = found(done, level="error")
    assert (silent["check"], silent["node"]) == ("reach", "node2")
    assert silent["hint"]
    assert len(found(done, check="torch", level="fine")) == 3
    lab["node2"].plug()


def test_another_torch_on_one_host(lab: Lab, on_lab: Launcher) -> None:
    """An error of `check`; a launch refuses, with that host and the cure, unless it is skipped."""
    lab["node3"].sh(
        "mkdir -p /dev/shm/other/torch && cd /dev/shm/other/torch && touch __init__.py && "
        "echo \"__version__ = '2.1.0'\" >version.py"
    )
    try:
        checked = on_lab("check", "--cluster", "lab", SETUP)
        assert checked.code == 3, checked
        assert "torch 2.1.0, most have 2." in checked.out
        launch = ("cluster=lab", SETUP, *on_lab.rank_overrides("print=up"))
        refused = on_lab(*launch)
        assert refused.code == 3, refused
        assert "node3: torch 2.1.0, most have 2." in refused.err
        assert "pip install torch==2." in refused.err
        assert on_lab(*launch, "skip_checks=[torch]", "dry_run=true").code == 0
    finally:
        lab["node3"].sh("rm -rf /dev/shm/other")
    assert lab.wait_idle() == {}


def test_a_host_whose_memory_is_limited(lab: Lab, on_lab: Launcher) -> None:
    """By a cgroup that its log-ins are in: both figures are named, and the launch goes on."""
    if not (MEMORY / "memory.limit_in_bytes").exists():
        pytest.skip("no memory controller of version 1 here")
    folder = MEMORY / f"runner-test-{secrets.token_hex(4)}"
    host = lab["node2"]
    before = host.sh("sed -n 's/^[0-9]*:memory://p' /proc/1/cgroup").strip()
    host.sh(f"mkdir {folder} && echo 2G > {folder}/memory.limit_in_bytes", user="root")
    try:
        # Its sshd, and so every log-in from now on.
        host.sh(f"echo 1 > {folder}/cgroup.procs", user="root")
        done = on_lab("check", "--cluster", "lab", "--json")
        assert done.code == 0, done
        (said,) = [row for row in found(done, check="system") if "cgroup" in row["message"]]
        assert (said["level"], said["node"]) == ("warning", "node2")
        assert said["message"].startswith("the cgroup of a run may use 2.0 GiB of the machine's ")
        assert "MemoryMax=" in said["hint"]
    finally:
        host.sh(f"echo 1 > {MEMORY}{before}/cgroup.procs", user="root", check=False)
        host.kill_all()
        host.sh(f"rmdir {folder}", user="root", check=False)


def test_a_check_that_does_not_exist(on_lab: Launcher) -> None:
    """What there is, is named; nobody is contacted."""
    done = on_lab("check", "--cluster", "lab", "--skip", "nonsense")
    assert (done.code, "there are reach, setup, container, python" in done.err) == (2, True), done
    done = on_lab("cluster=lab", "skip_checks=[nonsense]")
    assert (done.code, "skip_checks: 'nonsense' is not legal" in done.err) == (2, True), done


PACKAGES = "pathspec>=0.9\nno-such-thing-of-ours; sys_platform == 'win32'\n"
"""Of these the lab's hosts have what they need."""


def test_a_package_that_is_missing_on_one_host(lab: Lab, on_lab: Launcher) -> None:
    """An error of `check`; a launch refuses, with that host, the file and the cure."""
    (on_lab.folder / "requirements.txt").write_text(f"{PACKAGES}of-the-others==1.0\n")
    for name in ("node1", "node2", "node4"):
        lab[name].sh(
            "mkdir -p /dev/shm/other/of_the_others-1.0.dist-info && "
            "touch /dev/shm/other/of_the_others-1.0.dist-info/METADATA"
        )
    launch = ("cluster=lab", SETUP, *on_lab.rank_overrides("print=up"))
    try:
        checked = on_lab("check", "--cluster", "lab", "--json", *launch[1:])
        assert checked.code == 3, checked
        (missing,) = found(checked, check="packages", level="error")
        assert missing["node"] == "node3"
        assert missing["message"] == "of-the-others is missing, and named in requirements.txt"
        assert f"{sys.executable} -m pip install of-the-others==1.0" in missing["hint"]
        assert len(found(checked, check="packages", level="fine")) == 3
        refused = on_lab(*launch)
        assert refused.code == 3, refused
        assert "node3: of-the-others is missing, and named in requirements.txt" in refused.err
        assert on_lab(*launch, "skip_checks=[packages]", "dry_run=true").code == 0
        ours = on_lab("cluster=lab", SETUP, "task=resnet18", "dry_run=true")
        assert ours.code == 0, "our task needs none"
        cluster_alone = on_lab("check", "--cluster", "lab", "cluster.project=/", SETUP)
        assert "packages" not in cluster_alone.out, cluster_alone
        assert "resnet18" not in cluster_alone.out + cluster_alone.err, cluster_alone
    finally:
        for name in ("node1", "node2", "node4"):
            lab[name].sh("rm -rf /dev/shm/other")
    assert lab.wait_idle() == {}


def test_another_python_in_the_login_shell_of_one_host(lab: Lab, on_lab: Launcher) -> None:
    """Only where the name is a bare one; a start-up file that hangs costs a few seconds."""
    here = Path(sys.executable).parent
    profile = lab["node2"].home / ".bash_profile"
    profile.write_text(f"echo Welcome!\nexport PATH={here}:$PATH\n")
    (lab["node4"].home / ".bash_profile").write_text("sleep 100\n")
    done = on_lab("check", "--cluster", "lab", "--json", "cluster.python=python3")
    (other,) = found(done, check="python", level="warning")
    assert other["node"] == "node2"
    assert other["message"].startswith(f"a login shell finds python3 at {here}/python"), other
    assert f"cluster.python={here}/python" in other["hint"]
    assert done.seconds < 30
    named = on_lab("check", "--cluster", "lab", "--json")
    assert found(named, check="python", level="warning") == []
    assert lab.wait_idle() == {}


def test_the_release_that_a_launch_would_push(lab: Lab, on_lab: Launcher) -> None:
    """Not there, there, and damaged on one host, with its seal or without; nothing is changed."""
    (on_lab.folder / "train.py").write_text("print('hello')\n")

    def levels() -> tuple[dict[str, str], str]:
        done = on_lab("check", "cluster=lab", "task.script=train.py", "--json")
        assert done.code == 0, done
        rows = found(done, check="code")
        return {row["node"]: row["level"] for row in rows}, rows[1]["message"]

    fine = dict.fromkeys(lab.hosts, "fine")
    assert levels() == (fine, mock.ANY)
    assert levels()[1].endswith("is not there yet; a launch pushes it")
    assert on_lab("deploy", "--cluster", "lab").code == 0
    assert levels()[1].endswith("is there and intact")
    file = lab["node2"].sh("ls ~/.runner/releases/*/code/train.py").strip()
    lab["node2"].sh(f"chmod u+w {file}; sed -i s/hello/jello/ {file}; chmod u-w {file}")
    lab["node2"].sh(f"touch -d @1000000000 {file}")
    for _ in range(2):
        found_levels, what = levels()
        assert found_levels == {**fine, "node2": "warning"}
        assert what.endswith("a launch is refused")
    assert on_lab("cluster=lab", PLAIN_ENTRY, "task.script=train.py").code == 3
    assert levels()[1].endswith("a launch sends them again")
    assert on_lab("deploy", "--cluster", "lab").code == 0
    assert levels() == (fine, mock.ANY)
    assert lab.wait_idle() == {}


def test_smoke_and_bandwidth_are_real_runs(lab: Lab, on_lab: Launcher) -> None:
    """On the nodes that were chosen, whatever the task; not where something is wrong already."""
    shipped = (ROOT / "conf" / "task" / "collectives.yaml").read_text()
    (on_lab.conf / "task").mkdir()
    (on_lab.conf / "task" / "collectives.yaml").write_text(
        shipped.replace("seconds: 20 ", "seconds: 1 ").replace("iters: 20 ", "iters: 3 ")
    )
    words = ("cluster.only=[node1,node2,node3]", "task.script=no_such.py", "task.nnodes=2")
    done = on_lab("check", "--cluster", "lab", "--smoke", "--skip", "code", *words)
    assert done.code == 0, done
    assert "collectives on lab, 2 nodes, 2 ranks, gloo" in done.err
    assert "smoke: " in done.out, done
    two = "cluster.only=[node1,node2]"
    done = on_lab("check", "--cluster", "lab", "--bandwidth", "--skip", "storage", two)
    assert done.code == 0, done
    assert "pairs: bandwidth in GB/s" in done.out, done
    refused = on_lab("check", "--cluster", "lab", "--smoke", "cluster.python=/no/such/python")
    assert refused.code == 3, refused
    assert "run " not in refused.err
    assert "lab: --smoke was not started: the errors above come first\n" in refused.err
    (on_lab.conf / "task" / "collectives.yaml").write_text('command: "false"\nargs: {mode: x}\n')
    failed = on_lab("check", "--cluster", "lab", "--smoke", "cluster.only=[node1]")
    assert failed.code == 1, failed
    last = failed.err.splitlines()[-1]
    assert last.startswith("lab: --smoke failed, as a launch would: mend")
    assert "(`python -m runner why` says it again)" in last
    assert "run 1" in on_lab("why").out
    assert on_lab("check", "--cluster", "lab", "--smoke", "--json").code == 2
    assert lab.wait_idle() == {}
