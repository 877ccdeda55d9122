"""The command file of a supervisor: lines that agents on other hosts append to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.host.process.file_worker import Handler, Job, run_now
from runner.host.supervisor import command_file
from runner.host.supervisor.command_file import CommandFile, append_command

Commands = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look is due."""
    monkeypatch.setattr(command_file, "POLL_S", 0.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file, which is empty."""
    made = tmp_path / "a.commands"
    made.touch()
    return made


def reader(path: Path, submit: Callable[..., None] = run_now) -> tuple[CommandFile, Commands]:
    """What takes its commands, and those that were taken."""
    taken: Commands = []

    def take(message: dict[str, Any]) -> None:
        message["command"]
        taken.append(message)

    return CommandFile(str(path), submit, take), taken


def test_each_command_is_taken_once(path: Path) -> None:
    """In their order."""
    commands, taken = reader(path)
    append_command(str(path), b'{"command": "stop", "reason": "gr\xc3\xbcn"}\n')
    commands.poll()
    append_command(str(path), b'{"command": "detach"}\n{"command": "kill"}\n')
    commands.poll()
    commands.poll()
    names = [message["command"] for message in taken]
    assert names == ["stop", "detach", "kill"]
    assert taken[0]["reason"] == "grün"


def test_a_line_is_taken_once_it_is_whole(path: Path) -> None:
    """What an NFS server shows of it may be a part."""
    commands, taken = reader(path)
    line = b'{"command": "stop"}\n'
    for byte in line[:-1]:
        append_command(str(path), bytes([byte]))
        commands.poll()
    assert taken == []
    append_command(str(path), line[-1:] + line)
    commands.poll()
    assert taken == [{"command": "stop"}] * 2


@pytest.mark.parametrize("line", [b"{", b"[1]", b"7", b"null", b'"x"', b"{}", b"\xff", b""])
def test_a_malformed_line_is_skipped(path: Path, line: bytes) -> None:
    """Those after it are taken."""
    commands, taken = reader(path)
    append_command(str(path), line + b'\n{"command": "stop"}\n')
    commands.poll()
    assert taken == [{"command": "stop"}]


def test_a_file_may_appear_later(tmp_path: Path) -> None:
    """Or be out of reach for a while; nobody else but its job makes it."""
    path = tmp_path / "a.commands"
    commands, taken = reader(path)
    commands.poll()
    with pytest.raises(FileNotFoundError):
        append_command(str(path), b"{}\n")
    path.touch()
    commands.poll()
    append_command(str(path), b'{"command": "stop"}\n')
    commands.poll()
    assert taken == [{"command": "stop"}]


def test_a_command_is_not_written_through_a_link(path: Path, tmp_path: Path) -> None:
    """Its folder is on a disk that others see."""
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(OSError, match="symbolic"):
        append_command(str(link), b"{}\n")


def test_a_slow_disk_repeats_no_command(path: Path) -> None:
    """However many looks were due meanwhile: none begins before the one before has been taken."""
    waiting: list[tuple[Job, Handler]] = []
    commands, taken = reader(path, lambda job, then: waiting.append((job, then)))
    append_command(str(path), b'{"command": "signal_ranks"}\n')
    for _ in range(3):
        commands.poll()
    results = [(then, job()) for job, then in waiting]  # by the thread, before any is delivered
    for then, result in results:
        then(result)
    waiting.clear()
    append_command(str(path), b'{"command": "stop"}\n')
    commands.poll()
    for job, then in waiting:
        then(job())
    assert [message["command"] for message in taken] == ["signal_ranks", "stop"]


def test_looks_have_an_interval(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is that of all nodes."""
    monkeypatch.setattr(command_file, "POLL_S", 60.0)
    looks: list[object] = []
    commands = CommandFile(str(path), lambda *job: looks.append(job), id)
    commands.poll()
    commands.poll()
    assert len(looks) == 1
