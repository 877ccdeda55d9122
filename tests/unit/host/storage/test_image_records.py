"""Images that launches brought to a host: remembered, and removed on request."""

from __future__ import annotations

import json
import os
from pathlib import Path

from runner.host.storage import image_records

NOW = 1e12


def records(workdir: Path) -> list[Path]:
    """The files."""
    return [*(workdir / "images").iterdir()]


def test_what_a_command_removes_is_forgotten(tmp_path: Path) -> None:
    """In the environment of then; what it cannot remove stays."""
    script = 'test "$HOW" = well'
    for image, how in (("one", "well"), ("two", "ill")):
        remove = ["/bin/sh", "-c", script, image]
        image_records.remember(str(tmp_path), image, remove, {"HOW": how})
    assert len(records(tmp_path)) == 2
    shown = image_records.remove_unused(str(tmp_path), NOW, (), dry_run=True)
    assert (sorted(shown[0]), shown[1]) == (["one", "two"], [])
    assert image_records.remove_unused(str(tmp_path), NOW, (), dry_run=False) == (["one"], ["two"])
    (left,) = records(tmp_path)
    assert json.loads(left.read_text())["image"] == "two"
    assert left.stat().st_mode & 0o777 == 0o600


def test_what_is_young_in_use_or_another_hosts_stays(tmp_path: Path) -> None:
    """A launch makes it young again."""
    workdir, remove = str(tmp_path), ["/bin/true", "one"]
    image_records.remember(workdir, "one", remove, {})
    (path,) = records(tmp_path)
    os.utime(path, (1000, 1000))
    assert image_records.remove_unused(workdir, 999, (), dry_run=True) == ([], [])
    assert image_records.remove_unused(workdir, 1001, ["one"], dry_run=False) == ([], ["one"])
    image_records.mark_used(workdir, remove)
    image_records.mark_used(workdir, ["/bin/true", "unknown"])
    assert image_records.remove_unused(workdir, 1001, (), dry_run=True) == ([], [])
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "host": "another"}))
    assert image_records.remove_unused(workdir, NOW, (), dry_run=True) == ([], [])


def test_what_cannot_be_recorded_or_read_is_let_be(tmp_path: Path) -> None:
    """No launch fails for it."""
    (tmp_path / "images").write_text("no folder")
    image_records.remember(str(tmp_path), "one", ["/bin/true"], {})
    assert image_records.remove_unused(str(tmp_path), NOW, (), dry_run=False) == ([], [])
    (tmp_path / "images").unlink()
    image_records.remember(str(tmp_path), "one", ["/bin/true"], {})
    (path,) = records(tmp_path)
    path.write_text("{")
    assert image_records.remove_unused(str(tmp_path), NOW, (), dry_run=False) == ([], [])
