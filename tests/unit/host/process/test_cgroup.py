"""What is of a run: by cgroups, by PID namespaces, and what proves that nothing is left."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.host.process import cgroup, kill, pid_namespace, procfs, subreaper
from runner.host.process.pid_namespace import ContainerProcesses


def tree(root: Path, own: str, folder: str = "") -> str:
    """A host whose processes are in the cgroups `own`, of which one has a folder."""
    proc = root / "proc" / "self"
    proc.mkdir(parents=True)
    (root / "sys/fs/cgroup").mkdir(parents=True)
    (proc / "cgroup").write_text(own)
    if folder:
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / "cgroup.procs").touch()
    return str(root)


@pytest.mark.parametrize(
    ("own", "folder", "is_found"),
    [
        pytest.param("0::/user.slice/a:b\n", "sys/fs/cgroup/user.slice/a:b", True, id="session"),
        pytest.param("1:cpu:/x\n0::/z\n", "sys/fs/cgroup/unified/z", True, id="hybrid"),
        pytest.param("4:cpu,cpuacct:/x\n", "sys/fs/cgroup/cpu/x", False, id="version 1 alone"),
        pytest.param("0::/../a\n", "sys/fs/a", False, id="outside the namespace"),
    ],
)
def test_our_own_cgroup(tmp_path: Path, own: str, folder: str, *, is_found: bool) -> None:
    """That of version 2 is found where systemd mounts it."""
    root = tree(tmp_path, own, folder)
    assert cgroup.own_folder(root) == (str(tmp_path / folder) if is_found else "")


def test_no_hosts_file_system_is_taken_for_cgroups(tmp_path: Path) -> None:
    """Where the mount is hidden under another, a folder is just a folder, and goes again."""
    root = tree(tmp_path, "0::/\n", "sys/fs/cgroup")

    assert cgroup.create("run", "a", 0, root).path == ""
    assert [path.name for path in (tmp_path / "sys/fs/cgroup").iterdir()] == ["cgroup.procs"]


def test_processes_below_count_and_those_out_of_sight_do_not(tmp_path: Path) -> None:
    """Zero stands for a process of another PID namespace; to signal it would hit ourselves."""
    (tmp_path / "inner").mkdir()
    (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    (tmp_path / "cgroup.procs").write_text("7\n0\n")
    (tmp_path / "inner" / "cgroup.procs").write_text("9\n")

    assert cgroup.Cgroup(str(tmp_path)).pids() == [7, 9]


def test_empty_one_has_no_processes(tmp_path: Path) -> None:
    """What the kernel says counts, not a list read a moment before."""
    (tmp_path / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    (tmp_path / "cgroup.procs").write_text("7\n")
    found = cgroup.Cgroup(str(tmp_path))

    assert (found.pids(), found.empty, found.wait_empty()) == ([], True, True)


def test_full_one_is_not_removed(tmp_path: Path) -> None:
    """Neither is a folder of which nothing is known."""
    (tmp_path / "inner").mkdir()
    cgroup.Cgroup(str(tmp_path)).remove()
    (tmp_path / "cgroup.events").write_text("populated 1\n")
    cgroup.Cgroup(str(tmp_path)).remove()

    assert (tmp_path / "inner").is_dir()


def test_record_cannot_name_another_folder() -> None:
    """A damaged record must not make us kill or remove what is not the run's."""
    name = cgroup.from_record("/sys/fs/cgroup/runner-51fd67977bcb3226", "run", "a", 0).path

    assert name == ""
    assert cgroup.from_record("", "run", "a", 0).path == ""


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A child that no list shows."""
    monkeypatch.setattr(kill, "KILL_TIMEOUT_S", 0.1)
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
    assert kill.kill_until_gone(list, list, all_gone=lambda: False) == (set(), ())
    assert kill.is_proven(cgroup.Cgroup(), (), lambda: False) == listed
    assert kill.is_proven(cgroup.Cgroup(), ())


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
            pid: procfs.Process(1, "Z" if pid in self.zombies else "S", 1, 1, 1, start)
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
