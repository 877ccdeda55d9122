"""The page on command lines from elsewhere: each of ours is planned, and one is launched."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from runner.cli.main import main
from tests.lab.lab import Lab
from tests.lab.launching import ROOT, Launcher

PAGE = (ROOT / "docs" / "command-lines.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^```yaml\n# (conf/\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
MORE_PROGRAMS = {"fairseq_cli/train.py"}
"""What our lines name by module."""

STUB = """\
import json, os, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
told = {name: os.environ[name] for name in names if name in os.environ}
print(json.dumps({"argv": sys.argv[1:], "env": told}))
"""


class Row(NamedTuple):
    """One row of the page's tables."""

    theirs: str
    ours: str

    @property
    def words(self) -> list[str]:
        """Ours, less the name of the program."""
        return shlex.split(self.ours)[1:]

    @property
    def args(self) -> tuple[str, ...]:
        """What the program is given."""
        words = self.words
        return tuple(words[words.index("--") + 1 :]) if "--" in words else ()


def rows() -> list[Row]:
    """Return the rows of the page."""
    found = []
    for line in PAGE.splitlines():
        if line.startswith("| `"):
            theirs, ours, *_ = line.split(" | ")
            found.append(Row(theirs.split("`")[1], ours.strip("` |")))
    return found


ROWS = rows()


def write_project(folder: Path) -> None:
    """Write the files of the page, and every program that its lines name."""
    programs = set(re.findall(r"[\w./-]+\.py", " ".join(row.ours for row in ROWS)))
    programs |= set(re.findall(r"script: (\S+)", " ".join(FILES.values())))
    texts = dict.fromkeys(programs | MORE_PROGRAMS, STUB)
    for name, text in {**FILES, **texts}.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    subprocess.run(["git", "init", "-q", str(folder)], check=True)


@pytest.mark.all
def test_each_of_ours_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the arguments that stand in it, on every node; one for Slurm is a batch script."""
    write_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert len(ROWS) == PAGE.count("\n| `")
    for row in ROWS:
        submits = row.words[0] == "cluster=hpc"
        mode = "dry_run=offline" if submits else "dry_run=[offline,json]"
        assert main([mode, *row.words]) == 0, capsys.readouterr().err
        plan = capsys.readouterr().out
        if submits:
            assert "#SBATCH --nodes=" in plan
            continue
        given = [word for word in row.args if "$" not in word]
        for node in json.loads(plan)["nodes"]:
            assert [word for word in node["command"] if word in given][-len(given) :] == given, row


@pytest.mark.promise(14)
def test_a_script_that_starts_its_own_workers_runs(lab: Lab, on_lab: Launcher) -> None:
    """Each node has its place in the arguments, which a person would have typed on each."""
    write_project(on_lab.folder)
    lab.write_cluster(on_lab.conf, "mine", ["node1", "node2"])
    (row,) = (row for row in ROWS if "--multiprocessing-distributed --world-size 2" in row.theirs)
    done = on_lab(*row.words)
    assert done.code == 0, done
    plan = json.loads((done.folder / "plan.json").read_text())
    place = {"$MASTER_ADDR": plan["master_addr"], "$MASTER_PORT": str(plan["master_port"])}
    for rank, node in enumerate(("node1", "node2")):
        said = json.loads(done.log(node, rank).splitlines()[-1])
        assert (said["env"]["RANK"], said["env"]["WORLD_SIZE"]) == (str(rank), "2")
        wanted = " ".join(row.args)
        for name, value in {**place, "$WORLD_SIZE": "2", "$NODE_RANK": str(rank)}.items():
            wanted = wanted.replace(name, value)
        assert " ".join(said["argv"]) == wanted
