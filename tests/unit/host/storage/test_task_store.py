"""The shipped tasks on a host: stored once, and used only with the content that was sent."""

from __future__ import annotations

from pathlib import Path

from runner.core.wire.files import tasks_digest
from runner.host.storage.task_store import has_tasks, store_tasks

FILES = (("env.py", b"import os\n"), ("train.py", b"import env\n"))
HASH = tasks_digest(FILES)


def stored(workdir: Path) -> Path:
    bundle = {"hash": HASH, "files": [[name, len(content)] for name, content in FILES]}
    store_tasks(str(workdir), bundle, b"".join(content for _, content in FILES))
    return workdir / "tasks" / HASH


def test_what_is_there_stays(tmp_path: Path) -> None:
    """Ranks of another run may be reading it; what Python compiled beside it does not count."""
    folder = stored(tmp_path)
    (folder / "__pycache__").mkdir()
    before = (folder / "train.py").stat().st_ino
    assert stored(tmp_path).joinpath("train.py").stat().st_ino == before
    assert has_tasks(str(tmp_path), HASH)


def test_other_content_under_that_name_is_replaced(tmp_path: Path) -> None:
    """Changed, cut off by a power cut, with a file too many, or never complete."""
    for name, text in (("env.py", "evil = 1\n"), ("train.py", ""), ("os.py", "evil = 1\n")):
        folder = stored(tmp_path)
        (folder / name).write_text(text)
        assert not has_tasks(str(tmp_path), HASH)
        stored(tmp_path)
        assert has_tasks(str(tmp_path), HASH)
        (folder / "env.py").unlink()
        stored(tmp_path)
    assert [path.name for path in (tmp_path / "tasks").iterdir()] == [HASH]
