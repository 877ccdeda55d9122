"""One node decides the end: the others serve, as a parameter server or a Ray worker does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.lab.inspecting import proven_nodes
from tests.lab.lab import Lab
from tests.lab.launching import Controller, Launcher
from tests.lab.waiting import wait_until, wait_until_ended, wait_until_idle

SCRIPT = """
if [ "$NODE_RANK" != "$DRIVER" ]; then
    echo serving
    exec python3 -m http.server --bind 127.0.0.1 0
fi
(exec -a left-over sleep 600) &
echo driving
until [ -e /dev/shm/go ]; do sleep 0.1; done
"""


def words(on_lab: Launcher, driver: int) -> list[str]:
    (on_lab.folder / "node.sh").write_text(SCRIPT)
    script = ("task.command=[bash, node.sh]", "task.entry=plain")
    return ["cluster=lab", *script, f"task.env.DRIVER={driver}"]


def begin(on_lab: Launcher, *more: str) -> Controller:
    controller = on_lab.start(*words(on_lab, driver=0), "task.decides=master", *more)
    controller.until_printed("] serving")
    controller.until_printed("] driving")
    controller.until_joined()
    return controller


@pytest.mark.promise(2, 4)
def test_its_success_is_that_of_the_run(lab: Lab, on_lab: Launcher) -> None:
    """The server on the other node is stopped, and has not failed; nothing starts again."""
    controller = begin(on_lab, "relaunch.max=1")
    lab["node1"].sh("touch /dev/shm/go")
    done = controller.wait()
    assert done.code == 0, done
    assert "node1, which decides, has succeeded; stopping the rest" in done.err
    assert "  node2  rank 1 was stopped; 0 processes left" in done.err
    assert f"run {controller.run_id} succeeded" in done.err
    assert proven_nodes(done.err) == 2
    assert "first failure" not in on_lab("why").out


@pytest.mark.promise(4)
def test_the_failure_of_a_server_is_that_of_the_run(lab: Lab, on_lab: Launcher) -> None:
    """A server that dies before the end is missed; its killer is not the node that decides."""
    controller = begin(on_lab)
    processes = lab["node2"].processes()
    (server,) = (each for each in processes if each.cmdline.startswith("python3 -m http"))
    lab["node2"].kill(server.pid)
    done = controller.wait()
    assert done.code == 1, done
    assert "first failure: rank 1 on node2 was killed by SIGKILL" in done.err


@pytest.mark.promise(2, 4)
def test_it_decides_without_a_controller(lab: Lab, on_lab: Launcher, steps: Path) -> None:
    """The hosts tell each other; the first node, which was stopped, tells of the success."""
    told = steps / "told"
    notify = f"notify=['cat > {told}.part; mv {told}.part {told}']"
    more = ("task.decides=node2", "relaunch.max=1", notify, "detach=true")
    run_id = on_lab.succeed(*words(on_lab, driver=1), *more).folder.name
    lab["node2"].sh("touch /dev/shm/go")
    for name, record in wait_until_ended(lab, run_id, ("node1", "node2")):
        (stopping,) = [event for event in record if event["kind"] == "stopping"]
        assert "decided" in str(stopping["reason"]), name
        assert (record[-1]["kind"], record[-1]["state"]) == ("ended", "succeeded"), name
    wait_until(told.exists, "the message", 40)
    message = json.loads(told.read_text())
    assert (message["told_by"], message["state"]) == ("node1", "succeeded")
    wait_until_idle(lab)
    on_lab.succeed("attach", "--run", run_id)
