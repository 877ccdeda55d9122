"""Code of a past run: the hosts' release, the same code here, or none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runner.control.code.code_store import STORE, CodeStore
from runner.control.code.snapshot import Snapshot
from runner.control.code.source import RerunCode, shipped_tasks
from runner.core.errors import ConfigError, NotReady
from runner.core.model.facts import Facts
from runner.core.model.release import CodeRef, release_hash
from runner.core.model.spec import Deploy, RecordedCode, Spec
from tests.golden.builders import SHIPPED, facts, spec

HELD = {name: replace(facts(name), has_release=name != "gpu2") for name in ("gpu1", "gpu2")}


@pytest.fixture
def train(tmp_path: Path) -> Spec:
    """A run that pushes a folder with one script in it."""
    (tmp_path / "train.py").write_text("print(1)")
    return spec(deploy=Deploy(enabled=True))


def again(train: Spec, here: Path, code: CodeRef) -> RerunCode:
    """What becomes of recorded code."""
    return RerunCode(RecordedCode("first", code, (here / "runs",)), train, here, here / "runs")


def refusal(made: RerunCode, told: dict[str, Facts]) -> str:
    """Why nothing can be started."""
    with pytest.raises(NotReady) as caught:
        made.snapshot_if_needed(told)
    return str(caught.value)


def test_what_hosts_hold_is_not_pushed(train: Spec, tmp_path: Path) -> None:
    """Whatever is here: even what nobody could push."""
    code = CodeRef(release="0123", subdirectory="exp", script="../t.py")
    everywhere = {"gpu1": HELD["gpu1"]}
    assert again(train, tmp_path, code).snapshot_if_needed(everywhere) is None
    (tmp_path / "train.py").unlink()
    made = again(train, tmp_path, code)
    assert made.snapshot_if_needed(everywhere) is None
    assert made.code == code


def test_another_tree_is_named(train: Spec, tmp_path: Path) -> None:
    """What differs in it from the recorded code, where that is kept here; the same tree is not."""
    snapshot = Snapshot.take(train, tmp_path, tmp_path / "runs")
    code = snapshot.code
    assert again(train, tmp_path, code).notes == ()
    (tmp_path / "train.py").write_text("print(2)")
    (tmp_path / "new.py").touch()
    note = f"the recorded code runs; that in {tmp_path} differs from it"
    assert again(train, tmp_path, code).notes == (note,)
    (tmp_path / "train.py").write_text("print(1)")
    (tmp_path / "new.py").unlink()
    (tmp_path / "runs").mkdir()
    assert snapshot.keep(CodeStore(tmp_path / "runs" / STORE)).finish() == ""
    (tmp_path / "train.py").write_text("print(2)")
    (tmp_path / "new.py").touch()
    assert again(train, tmp_path, code).notes == (f"{note}: new.py, train.py",)
    (tmp_path / "train.py").unlink()
    assert again(train, tmp_path, code).notes == ()


def test_the_same_tree_is_pushed(train: Spec, tmp_path: Path) -> None:
    """To where it is missing."""
    code = Snapshot.take(train, tmp_path).code
    pushed = again(train, tmp_path, code).snapshot_if_needed(HELD)
    assert pushed is not None
    assert release_hash(pushed.encoded) == code.release


@pytest.mark.parametrize(
    ("commit", "cure"),
    [
        ("abc", "    git checkout abc, and start again\n"),
        ("abc+", "    git checkout abc, restore what was not committed, and start again\n"),
        ("", "    restore the code here as it was, and start again\n"),
    ],
)
def test_another_tree_is_not(train: Spec, tmp_path: Path, commit: str, cure: str) -> None:
    """The hosts are named, and the way back."""
    told = refusal(again(train, tmp_path, CodeRef(release="0123", commit=commit)), HELD)
    assert told.startswith("rerun: run first ran release 0123, which is not on gpu2 (any more), ")
    assert cure in told
    (tmp_path / "train.py").unlink()
    told = refusal(again(train, tmp_path, CodeRef(release="0123", commit=commit)), HELD)
    assert "there is no train.py in" in told
    assert cure in told


def test_shipped_tasks_have_to_be_the_same(tmp_path: Path) -> None:
    """They come with the runner, so another version has others."""
    shipped = spec(task=SHIPPED)
    code = CodeRef(tasks_hash=shipped_tasks().hash)
    assert again(shipped, tmp_path, code).snapshot_if_needed(HELD) is None
    with pytest.raises(ConfigError, match=r"ran runner\.tasks\.resnet18 of another version"):
        again(shipped, tmp_path, CodeRef(tasks_hash="0"))
