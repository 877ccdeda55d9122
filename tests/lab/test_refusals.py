"""Refusals before a start: one clear message, the right exit code, nothing started.

Each case is a table row; every one is checked for a traceback, for its time, and for hosts that
are as they were.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.lab.lab import LOGIN_USER, Lab
from tests.lab.launching import Launcher

pytestmark = [pytest.mark.promise(8)]


@dataclass(frozen=True)
class Case:
    """What is asked, and what must be answered.

    `{node2}` and the like in overrides and texts become addresses; `{key}`, `{wrong_key}` paths.
    """

    overrides: tuple[str, ...]
    code: int
    says: tuple[str, ...]
    cluster: dict[str, Any] = field(default_factory=dict)
    seconds: float = 15


HOST = "cluster.nodes.node2.host"
CASES = {
    "wrong key": Case(("cluster.ssh.key={wrong_key}",), 3, (LOGIN_USER, "ssh -v")),
    "refused port": Case(("cluster.nodes.node2.port=23",), 3, ("node2: ", "23", "refused")),
    "unroutable": Case(
        (f"{HOST}={{nobody}}", "cluster.ssh.connect_timeout=2"), 3, ("node2: ", "{nobody}", "2 s")
    ),
    "unknown name": Case((f"{HOST}=no-such-host.invalid",), 3, ("node2: ", "no-such-host.invalid")),
    "no python": Case(
        ("cluster.host_python=/no/such/python",),
        3,
        ("node[1-4]: there is no /no/such/python", "cluster.host_python"),
    ),
    "python too old": Case(
        (f"cluster.host_python={Path.home()}/.pyenv/versions/3.7.16/bin/python",),
        3,
        ("node[1-4]: ", "is Python 3.7; the agent needs 3.8 or newer", "cluster.host_python"),
    ),
    "no task python": Case(
        ("cluster.python=/no/such/python", f"cluster.host_python={sys.executable}"),
        3,
        ("node[1-4]: ", "/no/such/python", "set cluster.python"),
    ),
    "torch missing": Case(
        ("cluster.python=/usr/bin/python3",),
        3,
        ("node[1-4]: no torch in /usr/bin/python3", "pip install"),
    ),
    "unwritable workdir": Case(
        ("cluster.workdir=/proc/here",), 3, ("node[1-4]: cluster.workdir:", "/proc")
    ),
    "failing setup": Case(
        ('cluster.setup=["echo loading","no-such-command --flag"]',),
        3,
        ("node[1-4]: cluster.setup", "127", "no-such-command"),
    ),
    "no project": Case(
        ("task.script=train.py", "cluster.project=/no/such/folder"),
        3,
        ("node[1-4]: cluster.project: there is no folder /no/such/folder",),
    ),
    "no script": Case(
        ("task.script=/no/such.py",), 3, ("node[1-4]: task.script: there is no file /no/such.py",)
    ),
    "too many gpus": Case(
        ("cluster.nodes.node2.gpus=2",),
        3,
        ("node2: cluster.nodes.node2.gpus: asked for 2", "legal"),
    ),
    "no such interface": Case(
        ("cluster.nodes.node2.interface=ib0",),
        3,
        ("node2: cluster.nodes.node2.interface: there is no interface ib0", "legal here: eth0"),
    ),
    "nccl without gpus": Case(("cluster.backend=nccl",), 3, ("cluster.backend: nccl needs a GPU",)),
    "no shared network": Case(("cluster.nodes.node1.addr=",), 2, ("cluster.nodes.node1.addr",)),
    "misspelt key": Case(("cluster.backnd=gloo",), 2, ("backnd", "backend")),
    "unknown node": Case(("cluster.nodes.gpux.gpus=1",), 2, ("gpux", "node1")),
    "unknown option": Case(("task=resnet19",), 2, ("resnet19", "resnet18")),
    "bad port rule": Case(("cluster.master_port=99999",), 2, ("cluster.master_port", "99999")),
    "bad run folder": Case(("run_dir=/proc/x",), 2, ("run_dir", "/proc")),
    "secret that is not set": Case(("cluster.secrets=[NO_SUCH]",), 2, ("NO_SUCH",)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_refusal_is_one_clear_message(name: str, lab: Lab, launcher: Launcher) -> None:
    """It names the key or the host and the next step, in bounded time; nothing is started."""
    case = CASES[name]
    words = {
        "key": str(lab.key),
        "wrong_key": str(lab.wrong_key),
        "nobody": lab.address.rpartition(".")[0] + ".250",
    }
    lab.write_cluster(launcher.conf, **case.cluster)
    overrides = [
        override.format(**words) if "{" in override and "[" not in override else override
        for override in case.overrides
    ]
    task = [] if any(word.startswith("task") for word in overrides) else ["task=env"]
    done = launcher("cluster=lab", *task, *overrides, seconds=60)
    assert done.code == case.code, done
    for text in case.says:
        assert text.format(**words) in done.err, done
    assert "Traceback" not in done.err + done.out
    assert done.out == ""
    assert done.seconds < case.seconds
    assert not (launcher.folder / "runs").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("defaults: [base]\nnodes: {a: {}\n", ("broken.yaml",), id="syntax"),
        pytest.param("defaults: [base]\nnodez: {a: {}}\n", ("nodez", "nodes"), id="key"),
        pytest.param("defaults: [base]\nnodes: {a: {gpuz: 1}}\n", ("gpuz", "gpus"), id="node key"),
        pytest.param("defaults: [base]\nnodes: {}\n", ("nodes",), id="empty"),
    ],
)
def test_a_users_own_yaml_is_checked(text: str, says: tuple[str, ...], launcher: Launcher) -> None:
    """A fault in it is named with file or key, exit 2, before anything is contacted."""
    (launcher.conf / "cluster" / "broken.yaml").write_text(text)
    done = launcher("cluster=broken", "task=env")
    assert done.code == 2, done
    for word in says:
        assert word in done.err, done
    assert "Traceback" not in done.err


def test_a_changed_host_key_is_refused(lab: Lab, launcher: Launcher) -> None:
    """The fingerprints and the exact next step are there; `accept-new` refuses it as well."""
    lab.write_cluster(launcher.conf)
    lab["node2"].change_host_key()
    for policy in ("strict", "accept-new"):
        done = launcher("cluster=lab", "task=env", f"cluster.ssh.host_keys={policy}")
        assert done.code == 3, done
        assert "node2: " in done.err
        assert "SHA256:" in done.err
        assert "ssh-keygen -R" in done.err
        assert "node1: " not in done.err


def test_a_changed_host_key_of_the_jump_host_is_refused(lab: Lab, launcher: Launcher) -> None:
    """Every hop has the same policy."""
    lab.write_cluster(
        launcher.conf, names=["node3"], ssh={"jump": f"{LOGIN_USER}@{lab['node2'].address}"}
    )
    lab["node2"].change_host_key()
    done = launcher("cluster=lab", "task=env")
    assert done.code == 3, done
    assert lab["node2"].address in done.err
    assert "ssh-keygen -R" in done.err


def test_unknown_host_keys(lab: Lab, launcher: Launcher, tmp_path: Path) -> None:
    """`strict` refuses them with fingerprint and next step; `accept-new` learns them once."""
    known = tmp_path / "known"
    lab.write_cluster(launcher.conf, names=["node1", "node2"], ssh={"known_hosts": str(known)})
    done = launcher("cluster=lab", "task=env", "dry_run=true")
    assert done.code == 3, done
    assert done.err.count("SHA256:") == 2
    assert "node[1-2]: the host keys are not known" in done.err
    assert done.err.count("accept-new") == 1
    done = launcher("cluster=lab", "task=env", "dry_run=true", "cluster.ssh.host_keys=accept-new")
    assert done.code == 0, done
    assert len(known.read_text().splitlines()) == 2
    assert launcher("cluster=lab", "task=env", "dry_run=true").code == 0


def test_a_full_disk_is_refused(lab: Lab, launcher: Launcher) -> None:
    """A run that could not even keep its record does not start."""
    lab.write_cluster(launcher.conf)
    lab["node3"].fill_disk()
    done = launcher("cluster=lab", "task=env")
    assert done.code == 3, done
    assert "node3: cluster.workdir" in done.err


def test_every_problem_of_every_host_is_told_at_once(lab: Lab, launcher: Launcher) -> None:
    """Not only the first."""
    lab.write_cluster(launcher.conf)
    done = launcher(
        *("cluster=lab", "task.script=/no/such.py", "cluster.nodes.node3.port=23"),
        "cluster.nodes.node2.port=24",
    )
    assert done.code == 3, done
    assert "node2: " in done.err
    assert "node3: " in done.err
    assert "node[1,4]: task.script: there is no file /no/such.py" in done.err


def test_a_silent_sshd_is_bounded(lab: Lab, launcher: Launcher) -> None:
    """A port that accepts and says nothing costs the time-out, not a minute."""
    lab.write_cluster(launcher.conf)
    script = "import socket,time; s=socket.create_server(('', 2222)); time.sleep(60)"
    mute = lab["node2"].popen([sys.executable, "-c", script])
    try:
        began = time.monotonic()
        done = launcher(
            *("cluster=lab", "task=env", "cluster.nodes.node2.port=2222"),
            "cluster.ssh.connect_timeout=2",
        )
        assert done.code == 3, done
        assert "node2: " in done.err
        assert time.monotonic() - began < 12
    finally:
        mute.kill()
        mute.wait()


def test_standing_in_a_folder_with_anothers_hydra_conf(launcher: Launcher) -> None:
    """A training project's own conf/config.yaml is not taken for ours."""
    (launcher.conf / "config.yaml").write_text("lr: 0.1\n")
    done = launcher("task=env", "dry_run=offline")
    assert done.code == 0, done
