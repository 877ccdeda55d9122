"""Folders of a task that outlive its runs: `task.keep`."""

from __future__ import annotations

import json

import pytest

from tests.lab.lab import Lab
from tests.lab.launching import PLAIN_ENTRY, Launcher

pytestmark = [pytest.mark.promise(12)]

PROGRAM = """\
import os, sys, time
before = sorted(os.listdir("checkpoints"))
print("found", *before, flush=True)
open(f"checkpoints/{len(before)}.pt", "w").write(str(len(before)))
while len(sys.argv) > 2 and not os.path.exists(sys.argv[2]):
    time.sleep(0.05)
"""


def test_checkpoints_outlive_a_run(lab: Lab, on_lab: Launcher) -> None:
    """Runs, reruns and sweeps find them; `pull` follows the link, `clean` spares what is behind."""
    (on_lab.folder / "train.py").write_text(PROGRAM)
    (on_lab.folder / "checkpoints").mkdir()
    (on_lab.folder / "checkpoints" / ".gitkeep").touch()
    words = ("cluster=lab", "cluster.only=[node1]", PLAIN_ENTRY, "task.script=train.py")
    keep = "task.keep=[checkpoints]"

    told = on_lab(
        "cluster=lab", "dry_run=offline", PLAIN_ENTRY, "task.script=train.py", "--", "--resume"
    )
    assert "--resume: each run has a fresh copy of the code" in told.err, told
    first = on_lab.succeed(*words, keep)
    assert first.log("node1", 0) == "found\n"
    again = on_lab.succeed("rerun=latest")
    assert again.log("node1", 0) == "found 0.pt\n"
    place = json.loads((again.folder / "plan.json").read_text())["keep_place"]
    kept = lab["node1"].home / ".runner" / "keep" / place
    assert {path.name for path in (kept / "checkpoints").iterdir()} == {"0.pt", "1.pt"}

    running = on_lab.start(*words, keep, "task.args.wait=/dev/shm/end")
    running.until_printed("found", 1)
    refused = on_lab(*words, keep)
    assert refused.code == 3, refused
    assert f"task.keep: run {running.folder.name} writes to the folders of this task" in refused.err
    lab["node1"].sh("touch /dev/shm/end")
    assert running.wait().code == 0

    pulled = on_lab.succeed("pull", "latest", "checkpoints/*.pt")
    outputs = running.folder / "outputs" / "node1" / "checkpoints"
    assert {path.name for path in outputs.iterdir()} == {"0.pt", "1.pt", "2.pt"}, pulled
    on_lab.succeed("clean", "lab", "--older-than", "0s", "--yes")
    assert (kept / "checkpoints" / "0.pt").exists()
    cleaned = on_lab.succeed("clean", "lab", "--older-than", "0s", "--yes", "--keep")
    assert "what 1 task kept removed" in cleaned.out
    assert not kept.exists()
