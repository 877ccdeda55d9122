"""Folders that outlive a run, as a host links and refuses them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.core.wire.codec import encode
from runner.core.wire.order import Order
from runner.host.storage.keep import link_kept


def order(workdir: Path, run_id: str) -> Order:
    cwd = workdir / "runs" / run_id / "a" / "work"
    cwd.mkdir(parents=True)
    made = Order(run_id, "a", 0, str(workdir), str(cwd), keep=("out/ckpt",), keep_place="p/t")
    (cwd.parent / "order.json").write_text(json.dumps(encode(made)))
    return made


def test_a_folder_is_linked_once(tmp_path: Path) -> None:
    made = order(tmp_path, "r1")
    link_kept(made)
    link_kept(made)  # a later attempt
    link = Path(made.cwd, "out", "ckpt")
    assert link.readlink() == tmp_path / "keep" / "p" / "t" / "out" / "ckpt"
    assert link.is_dir()


def test_pushed_files_are_in_the_way(tmp_path: Path) -> None:
    made = order(tmp_path, "r1")
    Path(made.cwd, "out", "ckpt").mkdir(parents=True)
    Path(made.cwd, "out", "ckpt", "best.pt").touch()
    with pytest.raises(ValueError, match="out/ckpt is in the code that was pushed"):
        link_kept(made)
