"""Cures of known failures, tried: the program fails, the cure is printed and applied, it runs."""

from __future__ import annotations

import re

import pytest

from tests.lab.cures import CURES, Cure
from tests.lab.lab import LOGIN_USER, Lab, LabFactory
from tests.lab.launching import PLAIN_ENTRY, Launcher, Result
from tests.lab.waiting import wait_until

pytestmark = [pytest.mark.promise(8)]

ON_ONE = ("cluster=lab", "cluster.only=[node1]", PLAIN_ENTRY)


def printed_cure(done: Result) -> str:
    """What is said to do, its line breaks left out."""
    return " ".join(done.err.partition("cure: ")[2].split())


@pytest.mark.parametrize(
    "cure",
    [
        pytest.param(cure, id=f"{cure.cause}: {cure.id}", marks=[pytest.mark.all] * cure.all_only)
        for cure in CURES
    ],
)
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

    if cure.cured_program:
        (launcher.folder / "fail.py").write_text(cure.cured_program)
    for word in cure.cured:
        key = word.partition("=")[0]
        words.pop("task.command" if key == "task.script" else key.lstrip("~"), None)
        words |= {} if key.startswith("~") else {key: word}
    cured = launcher(*words.values())
    assert cured.code == 0, cured


def test_a_detached_run_needs_no_controller(launcher: Launcher) -> None:
    """Its hosts stop a run whose controller is gone, and let one go on that is detached."""
    (launcher.folder / "wait.py").write_text(
        "import os, time\nprint('on', flush=True)\n"
        "while not os.path.exists('go'): time.sleep(0.05)\n"
    )
    words = ("cluster=local", PLAIN_ENTRY, "task.script=wait.py", "disconnect_s=1")
    going = launcher.start(*words)
    going.until_printed("on")
    going.kill()
    run = going.run_id

    def why() -> Result:
        return launcher("why", "--run", run)

    wait_until(lambda: "no controller was attached" in (said := why()).out + said.err, "its stop")
    said = why()
    assert "detach=true" in printed_cure(Result(0, "", said.out + said.err, 0, launcher.folder))
    left = launcher(*words, "detach=true")
    assert left.code == 0, left
    run = left.folder.name
    (launcher.folder / "go").touch()
    ended = launcher("attach", "--run", run)
    assert ended.code == 0, ended


@pytest.mark.all
@pytest.mark.parametrize(
    ("cause", "folder", "program", "remedy"),
    [
        (
            *(
                "disk_full",
                "/mnt",
                "import tempfile\ntempfile.TemporaryFile().write(bytes(8 << 20))",
            ),
            "task.env.TMPDIR names another folder",
        ),
        (
            *("shared_memory", "/dev/shm", "import torch\ntorch.zeros(1 << 23).share_memory_()"),
            "mount -o remount,size=16G /dev/shm",
        ),
    ],
    ids=["temporary files", "shared memory"],
)
def test_a_full_disk_has_a_cure(
    cause: str, folder: str, program: str, remedy: str, lab: Lab, on_lab: Launcher
) -> None:
    """Another folder, or more of it."""
    (on_lab.folder / "write.py").write_text(program)
    words = [*ON_ONE, "task.script=write.py", f"task.env.TMPDIR={folder}"]
    host = lab["node1"]
    host.sh(f"mount -t tmpfs -o size=1M,mode=1777 tmpfs {folder}", user="root")
    try:
        failed = on_lab(*words)
        assert failed.code == 1, failed
        assert failed.result["diagnosis"]["cause"] == cause, failed
        assert remedy in printed_cure(failed), failed
        if cause == "shared_memory":
            host.sh(remedy, user="root")
        else:
            words[-1] = "task.env.TMPDIR=/tmp"
        done = on_lab(*words)
        assert done.code == 0, done
    finally:
        host.sh(f"umount {folder}", user="root")


@pytest.mark.all
@pytest.mark.parametrize(
    ("cause", "breaking"),
    [
        ("start_not_permitted", "mkdir -p ~/.runner/runs && chmod a-w ~/.runner/runs"),
        ("start_failed", "mkdir -p ~/.runner/runs && touch ~/.runner/runs/once"),
    ],
)
def test_a_start_that_failed_has_a_cure(
    cause: str, breaking: str, lab: Lab, on_lab: Launcher
) -> None:
    """A work folder elsewhere."""
    assert LOGIN_USER != "root"
    lab["node1"].sh(breaking)
    words = (*ON_ONE, "run_id=once", *on_lab.rank_overrides("print=up"))
    failed = on_lab(*words)
    lab["node1"].sh("chmod u+w ~/.runner/runs; rm -f ~/.runner/runs/once")
    assert failed.code == 3, failed
    assert failed.result["diagnosis"]["cause"] == cause, failed
    assert re.search(r"cluster\.workdir", printed_cure(failed)), failed
    lab["node1"].sh(breaking)
    other = (word for word in words if word != "run_id=once")
    done = on_lab(*other, "run_id=again", "cluster.workdir=~/elsewhere")
    lab["node1"].sh("chmod u+w ~/.runner/runs; rm -f ~/.runner/runs/once")
    assert done.code == 0, done


@pytest.mark.all
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
