"""The page on other launchers: each of its commands of ours is planned as it is printed."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from runner.cli.main import main
from tests.golden.here import write
from tests.lab.launching import ROOT

PAGE = (ROOT / "docs" / "command-lines.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^```yaml\n# (conf/\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
LINES = [line.split(" | ")[1].strip("` |") for line in PAGE.splitlines() if line.startswith("| `")]


@pytest.mark.all
@pytest.mark.promise(14)
def test_each_of_ours_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the arguments that stand in it, on every node."""
    write(tmp_path, {**FILES, **dict.fromkeys(("train.py", "spawn.py", "package/train.py"), "")})
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.chdir(tmp_path)
    assert len(LINES) > 1
    for line in LINES:
        _, *words = shlex.split(line)
        assert main(["dry_run=[offline,json]", *words]) == 0, capsys.readouterr().err
        plan = capsys.readouterr().out
        args = words[words.index("--") + 1 :] if "--" in words else []
        given = [word for word in args if "$" not in word]
        for node in json.loads(plan)["nodes"]:
            assert [word for word in node["command"] if word in given][-len(given) :] == given, line
