"""`clean` on real hosts: ended runs are removed, and nothing that is in use."""

from __future__ import annotations

import json

import pytest

from tests.lab.lab import Lab
from tests.lab.launching import Launcher, Result

pytestmark = [pytest.mark.promise(10)]

NOW = ("--older-than", "0")
NODES = ("node1", "node2")


def runs(lab: Lab, node: str) -> set[str]:
    return set(lab[node].sh("ls ~/.runner/runs 2>/dev/null || true").split())


def clean(launcher: Launcher, *words: str) -> Result:
    return launcher.succeed("clean", "--cluster", "lab", *words)


def test_ended_runs_go_and_what_is_in_use_stays(lab: Lab, on_lab: Launcher) -> None:
    """However old it is said to be: a run that is on, and the release it works with."""
    user = on_lab
    (user.folder / "frozen").mkdir()
    (user.folder / "frozen" / "file").write_text("x" * 100_000)
    (user.folder / "frozen").chmod(0o555)
    ended = [user.run_ranks("print=hi", "cluster=lab") for _ in range(2)]
    assert [done.code for done in ended] == [0, 0], ended
    gone = {done.folder.name for done in ended}
    (user.folder / "new").write_text("another release")
    words = user.rank_overrides("print=up", "wait=/dev/shm/go", "print=done")
    running = user.start("cluster=lab", *words)
    running.until_printed("up", times=2)
    kept = running.run_id
    used = json.loads((running.folder / "plan.json").read_text())["release"]

    assert "nothing removed" in clean(user).out
    shown = clean(user, *NOW, "--dry-run")
    assert shown.out.startswith("node[1-2]: 2 runs and 1 release would be removed, ")
    assert f"in use: {kept}" in shown.out
    assert runs(lab, "node1") == gone | {kept}
    told = json.loads(clean(user, *NOW, "--json").out)

    for name in NODES:
        assert set(told[name]["runs"]) == gone
        assert told[name]["size"] > 200_000
        assert runs(lab, name) == {kept}
        assert lab[name].sh("ls ~/.runner/releases").split() == [used]
        lab[name].sh("touch /dev/shm/go")
    done = running.wait()
    assert done.code == 0, done
    assert done.out.count("done") == 2
    assert "1 run and 1 release removed" in clean(user, *NOW).out
    assert all(runs(lab, name) == set() for name in NODES)
    (user.folder / "frozen").chmod(0o755)


def test_a_run_that_died_without_a_word_goes_when_it_is_old(lab: Lab, on_lab: Launcher) -> None:
    """After a power cut no record has an end; a young one may be about to start."""
    running = on_lab.start(
        "cluster=lab", "cluster.only=[node1]", *on_lab.rank_overrides("print=up", "sleep=600")
    )
    running.until_printed("up")
    lab["node1"].power_off()
    running.kill()
    lab["node1"].power_on()
    assert f"in use: {running.run_id}" in clean(on_lab, *NOW).out
    folder = f"~/.runner/runs/{running.run_id}/node1"
    lab["node1"].sh(f"touch -d '2 hours ago' {folder} {folder}/events.jsonl")
    assert "node1: 1 run " in clean(on_lab, *NOW).out
    assert runs(lab, "node1") == set()
