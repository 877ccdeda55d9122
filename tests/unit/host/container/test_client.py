"""Client of a container: what an earlier start left."""

from __future__ import annotations

from pathlib import Path

from runner.core.codec import encode
from runner.core.model.container import Container
from runner.host.container.client import MARK, Client


def test_mark_of_an_earlier_start_is_removed_for_engines_without_a_daemon(tmp_path: Path) -> None:
    """A node that was lost and has come back starts again in the same folder."""
    (tmp_path / MARK).touch()
    container = encode(Container(engine="apptainer", start=("/bin/false",)))
    order = {"env": {"HOME": str(tmp_path)}, "cwd": "/", "container": container}

    assert Client(order, str(tmp_path)).run() == 1
    assert not (tmp_path / MARK).exists()
