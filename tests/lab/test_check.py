"""`check` and the part of it in every launch, on hosts with something wrong."""

from __future__ import annotations

import json
from typing import Any

from tests.lab.lab import Lab
from tests.lab.launching import Launcher, Result

SETUP = "cluster.setup=['if [ -d /dev/shm/other ]; then export PYTHONPATH=/dev/shm/other; fi']"


def found(done: Result, **of: str) -> list[dict[str, Any]]:
    """The findings of a check that are so."""
    rows: list[dict[str, Any]] = json.loads(done.out)
    return [row for row in rows if all(row[name] == value for name, value in of.items())]


def test_a_cluster_that_is_well(lab: Lab, on_lab: Launcher) -> None:
    """Every host is judged; nothing is started there, and nothing stays."""
    done = on_lab("check", "--cluster", "lab", "--json")
    assert done.code == 0, done
    for check in ("reach", "python", "torch", "network"):
        assert [row["node"] for row in found(done, check=check, level="fine")] == list(lab.hosts)
    assert found(done, level="error") == []
    shown = on_lab("check", "--cluster", "lab", "--skip", "limits", "--skip", "storage")
    assert shown.code == 0, shown
    assert "torch    fine  node[1-4]  2." in shown.out, shown
    assert shown.out.endswith("lab: all is well\n"), shown
    assert lab.leftovers() == {}


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
        launch = ("cluster=lab", SETUP, *on_lab.rank_words("print=up"))
        refused = on_lab(*launch)
        assert refused.code == 3, refused
        assert "node3: torch 2.1.0, most have 2." in refused.err
        assert "pip install torch==2." in refused.err
        assert on_lab(*launch, "check.skip=[torch]", "dry_run=true").code == 0
    finally:
        lab["node3"].sh("rm -rf /dev/shm/other")
    assert lab.leftovers() == {}


def test_a_check_that_does_not_exist(on_lab: Launcher) -> None:
    """What there is, is named; nobody is contacted."""
    done = on_lab("check", "--cluster", "lab", "--skip", "nonsense")
    assert (done.code, "there are reach, setup, python" in done.err) == (2, True), done
    done = on_lab("cluster=lab", "check.skip=[nonsense]")
    assert (done.code, "check.skip: 'nonsense' is not legal" in done.err) == (2, True), done
