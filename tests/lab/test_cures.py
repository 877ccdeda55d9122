"""Cures of known failures, tried: the program fails, the cure is printed and applied, it runs."""

from __future__ import annotations

import pytest

from tests.lab.cures import CURES, Cure
from tests.lab.lab import Lab, LabFactory
from tests.lab.launching import PLAIN_ENTRY, Launcher, Result
from tests.lab.waiting import wait_until

pytestmark = [pytest.mark.all, pytest.mark.promise(8)]

ON_ONE = ("cluster=lab", "cluster.only=[node1]", PLAIN_ENTRY)


def printed_cure(done: Result) -> str:
    """What is said to do, its line breaks left out."""
    return " ".join(done.err.partition("cure: ")[2].split())


@pytest.mark.parametrize("cure", [pytest.param(cure, id=cure.cause) for cure in CURES])
def test_a_cure_cures(launcher: Launcher, cure: Cure) -> None:
    """On this machine alone, as it is printed."""
    for name, text in {"fail.py": cure.program, **cure.files}.items():
        path = launcher.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    program = f"task.module={cure.module}" if cure.module else "task.script=fail.py"
    is_other = any(word.startswith("task.command=") for word in cure.failing)
    typed = ("cluster=local", *([] if is_other else [program]), *cure.failing)
    words = {word.partition("=")[0]: word for word in typed}

    failed = launcher(*words.values())
    assert failed.code == 1, failed
    assert failed.result["diagnosis"]["cause"] == cure.cause, failed
    assert cure.remedy in printed_cure(failed), failed

    for word in cure.cured:
        key = word.partition("=")[0]
        words.pop("task.command" if key == "task.script" else key.lstrip("~"), None)
        words |= {} if key.startswith("~") else {key: word}
    cured = launcher(*words.values())
    assert cured.code == 0, cured


@pytest.mark.timing
def test_a_detached_run_needs_no_controller(launcher: Launcher) -> None:
    """Its hosts stop a run whose controller is gone, and let one go on that is detached."""
    (launcher.folder / "wait.py").write_text(
        "import os, time\nprint('on', flush=True)\n"
        "while not os.path.exists('go'): time.sleep(0.05)\n"
    )
    words = ("cluster=local", PLAIN_ENTRY, "task.script=wait.py", "disconnect_s=5")
    going = launcher.start(*words)
    going.until_printed("on")
    going.kill()
    run = going.run_id

    def why() -> str:
        done = launcher("why", "--run", run)
        return done.out + done.err

    wait_until(lambda: "no controller was attached" in why(), "its stop")
    assert "detach=true" in why()
    left = launcher(*words, "detach=true")
    assert left.code == 0, left
    (launcher.folder / "go").touch()
    ended = launcher("attach", "--run", left.folder.name)
    assert ended.code == 0, ended


def test_a_full_shared_memory_has_a_cure(lab: Lab, on_lab: Launcher) -> None:
    """More of it."""
    program = "import torch\ntorch.zeros(1 << 23).share_memory_()"
    (on_lab.folder / "write.py").write_text(program)
    host = lab["node1"]
    host.sh("mount -t tmpfs -o size=1M,mode=1777 tmpfs /dev/shm", user="root")
    try:
        failed = on_lab(*ON_ONE, "task.script=write.py")
        assert failed.code == 1, failed
        assert failed.result["diagnosis"]["cause"] == "shared_memory", failed
        remedy = "mount -o remount,size=16G /dev/shm"
        assert remedy in printed_cure(failed), failed
        host.sh(remedy, user="root")
        done = on_lab(*ON_ONE, "task.script=write.py")
        assert done.code == 0, done
    finally:
        host.sh("umount /dev/shm", user="root")


def test_a_start_that_failed_has_a_cure(lab: Lab, on_lab: Launcher) -> None:
    """A work folder elsewhere, where the usual one may not be written to."""
    lab["node1"].sh("mkdir -p ~/.runner/runs && chmod a-w ~/.runner/runs")
    words = (*ON_ONE, *on_lab.rank_overrides("print=up"))
    failed = on_lab(*words)
    done = on_lab(*words, "cluster.workdir=~/elsewhere")
    lab["node1"].sh("chmod u+w ~/.runner/runs")
    assert failed.code == 3, failed
    assert failed.result["diagnosis"]["cause"] == "start_not_permitted", failed
    assert "cluster.workdir" in printed_cure(failed), failed
    assert done.code == 0, done


def test_a_loopback_address_has_a_cure(lab_factory: LabFactory, launcher: Launcher) -> None:
    """Of hosts that know their own name as 127.0.1.1, as Debian's do."""
    lab_factory(2, own_name="loopback").write_cluster(launcher.conf)
    words = ("cluster=lab", "task=collectives", "task.args.mode=smoke", "task.args.seconds=0.5")
    failed = launcher(*words, "task.env.GLOO_SOCKET_IFNAME=null", seconds=150)
    assert failed.code == 1, failed
    assert failed.result["diagnosis"]["cause"] == "gloo_loopback", failed
    assert "GLOO_SOCKET_IFNAME) to the one the nodes share" in printed_cure(failed), failed
    done = launcher(*words, "task.env.GLOO_SOCKET_IFNAME=eth0", seconds=150)
    assert done.code == 0, done
