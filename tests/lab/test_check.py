"""`check` and the part of it in every launch, on hosts with something wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from runner.control.rpc.facts import FactsCollector
from runner.control.rpc.session import Connector, Inbox
from runner.core.spec import Cluster, Spec
from runner.core.wire.facts import FactsRequest
from tests.lab.lab import Lab
from tests.lab.launching import Launcher, Result
from tests.lab.sshds import Place

pytestmark = [pytest.mark.promise(8)]

SETUP = "cluster.setup=['if [ -d /dev/shm/other ]; then export PYTHONPATH=/dev/shm/other; fi']"


def found(done: Result, **of: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(done.out)
    return [row for row in rows if all(row[name] == value for name, value in of.items())]


def test_a_cluster_that_is_well(lab: Lab, on_lab: Launcher) -> None:
    """Every host is judged; nothing is started there, and nothing stays."""
    done = on_lab("check", "--cluster", "lab", "--json")
    assert found(done, level="error") == []
    assert done.code == 0, done
    for check in ("reach", "python", "torch", "network"):
        rows = found(done, check=check, level="fine")
        assert [row["node"] for row in rows] == ["node1", "node2"]
    skipped = "skip_checks=[limits,storage,system]"  # this machine's, not the lab's
    shown = on_lab.succeed("check", "--cluster", "lab", skipped)
    assert "torch    fine  node[1-2]  2." in shown.out, shown
    assert shown.out.endswith("lab: no problems found\n"), shown
    unknown = on_lab("check", "--cluster", "lab", "skip_checks=[nonsense]")
    assert unknown.code == 2, unknown
    assert "reach, setup, container, python" in unknown.err
    assert lab.wait_idle() == {}


def test_what_the_program_needs_there(lab: Lab, on_lab: Launcher) -> None:
    """What it imports first, but for its own modules, and the paths among its arguments."""
    (on_lab.folder / "own.py").touch()
    (on_lab.folder / "train.py").write_text(
        "import json, own\nimport torch\nfrom nowhere_x import y\n"
    )
    lab["node1"].sh("mkdir ~/data")
    words = ("task.script=train.py", "task.args={data: ~/data, lr: 1/2}")
    done = on_lab("check", "cluster=lab", *words, "--json")
    (missing,) = {row["message"] for row in found(done, check="imports")}
    assert "has no nowhere_x, which the program imports" in missing
    (row,) = found(done, check="paths")
    assert (row["node"], row["level"]) == ("node2", "warning")
    assert "what is not there: ~/data" in row["message"]
    assert lab.wait_idle() == {}


def test_a_host_that_does_not_answer(lab: Lab, on_lab: Launcher) -> None:
    """It is named with the reason and what to do; the other is judged."""
    lab["node2"].unplug()
    done = on_lab("check", "--cluster", "lab", "--json")
    lab["node2"].plug()
    assert done.code == 3, done
    (silent,) = found(done, level="error")
    assert (silent["check"], silent["node"], bool(silent["hint"])) == ("reach", "node2", True)
    assert [row["node"] for row in found(done, check="torch", level="fine")] == ["node1"]


def test_another_torch_on_one_host(lab: Lab, on_lab: Launcher) -> None:
    """An error of `check`; a launch refuses, with that host and the cure, unless it is skipped."""
    lab["node3"].sh(
        "mkdir -p /dev/shm/other/torch && cd /dev/shm/other/torch && touch __init__.py && "
        "echo \"__version__ = '2.1.0'\" >version.py"
    )
    on_lab.entry = "torchrun"
    three = ("cluster.only=[node1,node2,node3]", SETUP)  # of two, none is unlike most
    launch = ("cluster=lab4", *three, *on_lab.rank_overrides("print=up"))
    try:
        checked = on_lab("check", "--cluster", "lab4", *three)
        assert checked.code == 3, checked
        assert "torch 2.1.0, most have 2." in checked.out
        refused = on_lab(*launch)
        assert refused.code == 3, refused
        assert "node3: torch 2.1.0, most have 2." in refused.err
        assert "pip install torch==2." in refused.err
        assert on_lab(*launch, "skip_checks=[torch]", "dry_run=true").code == 0
    finally:
        lab["node3"].sh("rm -rf /dev/shm/other")
    assert lab.wait_idle() == {}


@pytest.mark.parametrize("then", ["exit 1", "exec sleep 900"], ids=["ends", "waits"])
def test_gateway_that_wants_a_terminal(place: Place, then: str) -> None:
    """What it printed is quoted within the time of a login, and what it means."""
    sshd = place.sshd(f"ForceCommand echo no terminal; {then}")
    ssh = place.ssh(connect_timeout=5.0)
    cluster = Cluster(name="lab", ssh=ssh)
    node = replace(sshd.node(), transport=place.kind)
    spec = Spec(run_id="0102-0304-x-abcd", cluster=cluster, nodes=(node,))
    connector = Connector(spec, place.notes.append)
    collector = FactsCollector(
        spec,
        connector,
        Inbox(),
        request=lambda node: FactsRequest(node.name),
        show=lambda *_: None,
    )
    problem = collector.collect()[1]["gpu1"]
    connector.close()
    assert problem.message.startswith("it lets us in, and starts no program: ")
    assert problem.hint.startswith("no terminal\n")
    assert "cluster.ssh.jump" in problem.hint
