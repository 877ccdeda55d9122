"""Refusals before a start: one clear message, the right exit code, nothing started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.lab import Lab
from tests.lab.launching import Launcher

pytestmark = [pytest.mark.promise(8)]

OLD_PYTHON = Path.home() / ".pyenv/versions/3.7.16/bin/python"
CASES = {
    "unroutable": ("cluster.nodes.node2.host={nobody}", "node2: {nobody} port 22 "),
    "python too old": (
        f"cluster.host_python={OLD_PYTHON}",
        "node[1-2]: ",
        "is Python 3.7; the agent needs 3.8 or newer",
        "cluster.host_python",
    ),
    "torch missing": (
        "cluster.python=/usr/bin/python3",
        "node[1-2]: no torch in /usr/bin/python3",
        "pip install",
    ),
    "failing setup": (
        'cluster.setup=["echo loading","no-such-command --flag"]',
        "node[1-2]: cluster.setup",
        "127",
        "no-such-command",
    ),
    "unwritable workdir": (
        "cluster.workdir=/var/lib/x",
        "node[1-2]: cluster.workdir: no permission to write in /var/lib",
    ),
    "too many gpus": (
        "cluster.nodes.node2.gpus=2",
        "node2: cluster.nodes.node2.gpus: asked for 2",
        "only NVIDIA's are counted",
    ),
}
"""What is asked, and what must be answered; `{nobody}` is an address."""


@pytest.mark.parametrize("name", CASES)
def test_a_refusal_is_one_clear_message(name: str, lab: Lab, on_lab: Launcher) -> None:
    """It names the key or the host and the next step; nothing is started."""
    nobody = lab.address.rpartition(".")[0] + ".250"
    asked, *texts = (text.replace("{nobody}", nobody) for text in CASES[name])
    done = on_lab("cluster=lab", "task=env", asked)
    assert done.code == 3, done
    for text in texts:
        assert text in done.err, done
    assert "Traceback" not in done.err + done.out
    assert done.out == ""
    assert not (on_lab.folder / "runs").exists()


def test_unknown_host_keys(lab: Lab, launcher: Launcher, tmp_path: Path) -> None:
    """`strict` refuses them with fingerprint and next step; `accept-new` learns them once."""
    known = tmp_path / "known"
    lab.write_cluster(launcher.conf, names=["node1", "node2"], ssh={"known_hosts": str(known)})
    done = launcher("cluster=lab", "task=env", "dry_run=true")
    assert done.code == 3, done
    assert done.err.count("SHA256:") == 2
    assert "node[1-2]: its port 22 shows a host key that is not known" in done.err
    assert done.err.count("accept-new") == 1
    done = launcher("cluster=lab", "task=env", "dry_run=true", "cluster.ssh.host_keys=accept-new")
    assert done.code == 0, done
    assert len(known.read_text().splitlines()) == 2
    assert launcher("cluster=lab", "task=env", "dry_run=true").code == 0


def test_a_start_that_failed_names_what_there_is(lab: Lab, on_lab: Launcher) -> None:
    """No files of ranks that never ran, nothing to pull, and a cure."""
    ranks = on_lab.rank_overrides("print=up")
    lab["node2"].sh("mkdir -p ~/.runner/runs && touch ~/.runner/runs/no-room")

    done = on_lab("cluster=lab", "run_id=no-room", "task.outputs=[out/**]", *ranks)
    lab["node2"].sh("rm ~/.runner/runs/no-room")

    assert done.code == 3, done
    assert "first failure: node2: could not start: " in done.err
    assert "cure: " in done.err
    assert "record: runs/no-room" in done.err
    for wrong in ("working folder on each host", "pull", "logs:"):
        assert wrong not in done.err
