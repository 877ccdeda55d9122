"""Refusals before a start: one clear message, the right exit code, nothing started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.lab.lab import LOGIN_USER, Lab
from tests.lab.launching import Launcher
from tests.lab.waiting import wait_until

pytestmark = [pytest.mark.promise(8)]

OLD_PYTHON = Path.home() / ".pyenv/versions/3.7.16/bin/python"
CASES: dict[str, tuple[tuple[str, ...], int, tuple[str, ...]]] = {
    "wrong key": (("cluster.ssh.key={wrong_key}",), 3, (LOGIN_USER, "ssh -v")),
    "unroutable": (
        ("cluster.nodes.node2.host={nobody}",),
        3,
        ("node2: {nobody} port 22 ",),
    ),
    "python too old": (
        (f"cluster.host_python={OLD_PYTHON}",),
        3,
        ("node[1-2]: ", "is Python 3.7; the agent needs 3.8 or newer", "cluster.host_python"),
    ),
    "torch missing": (
        ("cluster.python=/usr/bin/python3",),
        3,
        ("node[1-2]: no torch in /usr/bin/python3", "pip install"),
    ),
    "failing setup": (
        ('cluster.setup=["echo loading","no-such-command --flag"]',),
        3,
        ("node[1-2]: cluster.setup", "127", "no-such-command"),
    ),
    "unwritable workdir": (
        ("cluster.workdir=/proc/here",),
        3,
        ("node[1-2]: cluster.workdir:", "/proc"),
    ),
    "too many gpus": (
        ("cluster.nodes.node2.gpus=2",),
        3,
        ("node2: cluster.nodes.node2.gpus: asked for 2", "legal"),
    ),
    "misspelt key": (("cluster.backnd=gloo",), 2, ("backnd", "backend")),
}
"""What is asked, the exit code, and what must be answered; `{nobody}` is an address."""


@pytest.mark.parametrize("name", CASES)
def test_a_refusal_is_one_clear_message(name: str, lab: Lab, on_lab: Launcher) -> None:
    """It names the key or the host and the next step; nothing is started."""
    overrides, code, texts = CASES[name]
    words = {"wrong_key": str(lab.wrong_key), "nobody": lab.address.rpartition(".")[0] + ".250"}
    asked = [each.format(**words) if "{" in each else each for each in overrides]
    done = on_lab("cluster=lab", "task=env", *asked)
    assert done.code == code, done
    for text in texts:
        assert text.format(**words) in done.err, done
    assert "Traceback" not in done.err + done.out
    assert done.out == ""
    assert not (on_lab.folder / "runs").exists()


def test_a_users_own_yaml_is_checked(launcher: Launcher) -> None:
    """A fault in it is named with file and key, exit 2, before anything is contacted."""
    broken = launcher.conf / "cluster" / "broken.yaml"
    for text, word in {"nodes: {a: {}\n": "broken.yaml", "nodes: {a: {gpuz: 1}}\n": "gpuz"}.items():
        broken.write_text(f"defaults: [base]\n{text}")
        done = launcher("cluster=broken", "task=env")
        assert done.code == 2, done
        assert word in done.err, done
        assert "Traceback" not in done.err


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


def test_every_problem_of_every_host_is_told_at_once(on_lab: Launcher) -> None:
    """Not only the first."""
    script, port = "task.script=/no/such.py", "cluster.nodes.node2.port=24"
    done = on_lab("cluster=lab", script, port)
    assert done.code == 3, done
    assert "node2: " in done.err
    assert "node1: task.script: there is no file /no/such.py" in done.err


@pytest.mark.promise(4)
def test_a_silent_sshd_is_bounded(lab: Lab, on_lab: Launcher) -> None:
    """A port that accepts and says nothing costs the limit; the refusal comes while it listens."""
    script = "import socket,time; s=socket.create_server(('', 2222)); time.sleep(900)"
    mute = lab["node2"].popen([sys.executable, "-c", script])
    try:
        wait_until(lambda: ":2222 " in lab["node2"].sh("ss -ltn"), "the mute server")
        done = on_lab("cluster=lab", "task=env", "cluster.nodes.node2.port=2222")
        assert done.code == 3, done
        assert "node2: " in done.err
        assert "sent no SSH banner within 10 s" in done.err
    finally:
        mute.kill()
        mute.wait()
