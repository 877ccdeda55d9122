"""Files that a program may open and that stay here."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from runner.control.code.unpushed import ignored_folders, notes, relative_checkpoints
from runner.control.code.worktree import scan
from tests.unit.control.code.test_worktree import git, make, rules


@pytest.mark.parametrize("is_repository", [True, False], ids=["git", "no git"])
def test_ignored_folders_are_named(is_repository: bool, tmp_path: Path) -> None:
    """At the top and where the user stands, and links; no empty ones, caches or records."""
    root = make(tmp_path / "p", "a.py", "data/x", "code/b.py", "code/ckpt/1.pt", "code/sub/tmp/x")
    make(root, "empty/", "node_modules/x", "__pycache__/x", ".venv/x", ".cache/x", "my/pyvenv.cfg")
    make(tmp_path / "disk", "x")
    (root / "linked").symlink_to(tmp_path / "disk")
    record = {"plan.json": '{"run_id": "r"}', "config.yaml": "", "events.jsonl": ""}
    make(root, "runs/r/").joinpath("runs/latest").symlink_to("r")
    for name, text in record.items():
        (root / "runs" / "r" / name).write_text(text)
    rules(root, "data/\nlinked\nckpt/\ntmp/\nempty/\nruns/\nmy/\nnode_modules/\n.cache/\n")
    if is_repository:
        git(root, "init", "-q")
    assert ignored_folders(scan(root), root) == ["data", "linked"]
    if is_repository:
        standing_in = root / "code"
        assert ignored_folders(scan(standing_in), standing_in) == ["code/ckpt", "data", "linked"]


def test_folders_that_stay_are_one_note(tmp_path: Path) -> None:
    """However many they are."""
    root = make(tmp_path / "p", "a.py", *(f"data{number}/x" for number in range(9)))
    rules(root, "data*/\n")
    (note,) = notes(scan(root), root, ())
    assert note.startswith("ignored, so data0/, data1/, "), note
    assert "3 more stay here" in note, note
    assert not list(notes(scan(make(tmp_path / "q", "a.py")), tmp_path / "q", ()))


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("--resume ckpt/last.pt --lr 0.1", {"--resume ckpt/last.pt": "ckpt/last.pt"}),
        ("--resume=last.pt", {"--resume=last.pt": "last.pt"}),
        ("resume=last.pt +x=y", {"resume=last.pt": "last.pt"}),
        ("--resume --checkpoint_dir out/ckpt", {"--checkpoint_dir out/ckpt": "out/ckpt"}),
        ("trainer.resume=true ckpt_path=a/b", {"ckpt_path=a/b": "a/b"}),
        ("--init_from=resume --load ./x", {"--load ./x": "./x"}),
        ("--checkpoint_dir out/ckpt", {}),
        ("--resume=False --checkpoint_dir out/ckpt", {}),
        ("--restart-every 10 --snapshot-dir snap/x", {}),
        ("--continue-on-error --checkpoint_dir out/ckpt", {}),
        ("--resume /data/last.pt --output-checkpoint out/x", {}),
        ("--resume /data/last.pt", {}),
        ("--resume ~/last.pt", {}),
        ("--resume s3://bucket/last.pt", {}),
        ("--resume auto --lr 0.1", {}),
        ("train.py data/x", {}),
        ("--download data/mnist", {}),
        ("--dataloader_workers 4 --checkpoint_dir out/ckpt", {}),
        ("--load_best_model_at_end true --checkpoint_dir out/ckpt", {}),
        ("model.load_from=google/gemma-7b", {}),
        ("model.load_from=out/gemma.pt", {"model.load_from=out/gemma.pt": "out/gemma.pt"}),
        ("--resume runs/first", {"--resume runs/first": "runs/first"}),
    ],
)
def test_checkpoints_of_an_earlier_run(typed: str, found: dict[str, str]) -> None:
    """By a relative path, in arguments of any style, where the run resumes."""
    assert dict(relative_checkpoints(shlex.split(typed))) == found


def test_a_relative_checkpoint_is_noted_unless_it_is_pushed(tmp_path: Path) -> None:
    """What is pushed lies in the working copy of the run, too."""
    root = make(tmp_path / "p", "a.py", "start/base.pt", "ckpt/last.pt")
    rules(root, "ckpt/\n")
    resume = ("--resume", "ckpt/last.pt", "--load", "start/base.pt")
    ignored, checkpoint = notes(scan(root), root, resume)
    assert "ckpt/" in ignored
    assert checkpoint.startswith("--resume ckpt/last.pt is looked for in the working copy of")
