"""What is of a run by its PID namespace, and what proves that nothing is left."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from runner.host.process import pid_namespace, procfs, subreaper
from runner.host.process.pid_namespace import ContainerProcesses


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A child that no list shows."""
    monkeypatch.setattr(subreaper, "KILL_TIMEOUT_S", 0.1)
    with subprocess.Popen(["sleep", "60"]) as child:
        yield child
        child.kill()


@pytest.mark.parametrize("listed", [False, True], ids=["no list", "a zombie"])
def test_an_empty_list_proves_nothing(
    monkeypatch: pytest.MonkeyPatch, hidden: subprocess.Popen[bytes], *, listed: bool
) -> None:
    """Not while the kernel says that there is a child; one that a tracer holds is on its list."""
    monkeypatch.setattr(subreaper, "child_pids", lambda: [hidden.pid] * listed)
    monkeypatch.setattr(subreaper, "living_children", list)
    assert subreaper.kill_until_gone(list, reap=list) == (set(), (), listed)
    assert subreaper.kill_until_gone(list) == (set(), (), True)


OWN, THEIRS = 1, 77


class Host:
    """Processes as the kernel lists them: their start, namespace, and number in there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.processes: dict[int, tuple[int, int, int]] = {}
        self.tagged: set[int] = set()
        self.zombies: set[int] = set()
        monkeypatch.setattr(pid_namespace, "namespace_of", self._namespace_of)
        monkeypatch.setattr(pid_namespace, "inner_pid", lambda pid: self.processes[pid][2])
        monkeypatch.setattr(procfs, "has_env", lambda pid, *_: pid in self.tagged)
        self._container = ContainerProcesses({"RUNNER_RUN_ID=r"})

    def _namespace_of(self, pid: object = "self") -> int:
        return self.processes[pid][1] if isinstance(pid, int) else OWN

    def scan(self) -> list[int]:
        table = {
            pid: procfs.Process(1, "Z" if pid in self.zombies else "S", 1, 1, start)
            for pid, (start, _, _) in self.processes.items()
        }
        return self._container.scan(table)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    """A host on which a container with the tags runs a rank."""
    host = Host(monkeypatch)
    host.processes = {9: (1, OWN, 9), 100: (5, THEIRS, 1), 101: (6, THEIRS, 2)}
    host.tagged = {100, 101}
    assert host.scan() == [101]
    return host


def test_namespace_with_the_inode_of_one_that_ended_is_not_ours(host: Host) -> None:
    """The kernel gives it to the next one at once, even to the same pids."""
    host.processes, host.tagged = {100: (50, THEIRS, 1), 102: (51, THEIRS, 2)}, set()

    assert host.scan() == []


def test_process_that_left_environment_and_parents_is_ours(host: Host) -> None:
    """As long as one lives there that was there before, and what began since then."""
    host.processes[104] = (60, THEIRS, 7)
    del host.processes[101]
    host.tagged = set()
    assert host.scan() == [104]

    del host.processes[100]  # it can be hidden
    host.processes[105] = (61, THEIRS, 8)

    assert host.scan() == [105, 104]
