"""Guardian: what it and the supervisor keep of the agent that started them."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

import pytest

from runner.host.supervisor import guardian


def test_modules_can_be_imported_after_the_redirection(tmp_path: Path) -> None:
    """The code came in an archive behind a descriptor, which is all that stays open."""
    archive = tmp_path / "code.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("late_module.py", "ANSWER = 42\n")
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code_fd = os.open(archive, os.O_RDONLY)
            sys.path.insert(0, f"/proc/self/fd/{code_fd}")
            log_fd = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
            guardian._redirect(log_fd, {write_end} | guardian._code_fds())
            import late_module  # type: ignore[import-not-found]  # noqa: PLC0415

            os.write(write_end, str(late_module.ANSWER).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(write_end)
    assert os.read(read_end, 100) == b"42"
    os.close(read_end)
    assert os.waitpid(child, 0)[1] == 0


def test_without_an_archive_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the code is imported from a folder."""
    monkeypatch.setattr(sys, "path", ["/usr/lib/python3.8"])
    assert guardian._code_fds() == set()
