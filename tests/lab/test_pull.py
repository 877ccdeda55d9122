"""Download of a run over a real connection: whole, resumable, and only into its folder."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from runner.control.record.download import pull
from runner.control.record.samples_record import ask_recorded, merge
from runner.control.rpc.facts import FactsCollector
from runner.control.rpc.session import Connector, HostSession, Inbox
from runner.control.rpc.wait import Broadcast
from runner.core.errors import Interrupted, NotReady
from runner.core.model.facts import FactsRequest
from runner.core.model.results import PullResult
from runner.core.model.samples import Sample
from runner.core.model.spec import Node, Spec, Task
from runner.core.protocol.frames import Frame
from tests.lab.waiting import wait_until

pytestmark = [pytest.mark.promise(6, 12)]

RUN = "0102-0304-train-abcd"
MB = 1 << 20
ODD = (os.fsdecode(b"caf\xe9"), "two\nlines", "-x y", "\u00e9\u4e2d", "a\\b'\"$(x)", "n" * 255)


class Interrupting(queue.SimpleQueue[tuple[HostSession | None, Frame]]):
    """An inbox in which a Ctrl-C takes the place of one of the pieces that come."""

    def __init__(self, piece: int) -> None:
        self._left = piece

    def get(self, *words: Any, **named: Any) -> tuple[HostSession | None, Frame]:
        """Return the next thing that came."""
        session, frame = super().get(*words, **named)
        self._left -= frame.kind == "fetched"
        return (session, frame) if self._left else (None, Frame("signal", {"signal": 2}))


class Cluster:
    """Two nodes of this machine with a run of each, and a folder to bring it into."""

    def __init__(self, folder: Path) -> None:
        self.workdir = folder / "host"
        self.home = folder / "runs" / RUN
        self.said: list[tuple[str, str]] = []
        self.inbox: Inbox = queue.SimpleQueue()
        self.outputs = ["results", "**/*.pt"]
        for node in ("gpu1", "gpu2"):
            self.make(node)
        self._reaches: list[Connector] = []

    def root(self, node: str = "gpu1") -> Path:
        """A node's folder of the run, on its host."""
        return self.workdir / "runs" / RUN / node

    def work(self, node: str = "gpu1") -> Path:
        """Where its ranks worked."""
        return self.root(node) / "work" / "sub"

    def make(self, node: str) -> None:
        """Make the folder of an ended run, as a host has it."""
        root = self.root(node)
        self.work(node).mkdir(parents=True)
        (root / "attempt_0").mkdir()
        write(root / "format", "1\n")
        write(root / "order.json", json.dumps({"cwd": str(self.work(node))}))
        write(root / "plan.json", json.dumps({"outputs": self.outputs}))
        write(root / "state.json", "{}\n")
        write(root / "events.jsonl", '{"seq": 1}\n')
        write(root / "ballast", "x")
        write(root / "attempt_0" / "rank_0.out", f"hello of {node}\n")
        write(root / "attempt_0" / "rank_0.err", "")
        write(root / "attempt_0" / "rank_0.exit", "{}")
        write(root / "attempt_0" / "program.err", "warned\n")

    def wants(self, *outputs: str) -> None:
        """Have the plan of the run declare other outputs."""
        for node in ("gpu1", "gpu2"):
            write(self.root(node) / "plan.json", json.dumps({"outputs": outputs}))

    def connect(self, *names: str, inbox: Inbox | None = None) -> dict[str, HostSession]:
        """Start a link for each node, as a verb does."""
        nodes = tuple(Node(name, "localhost", transport="local") for name in names)
        task = Task(name="train", kind="script", target="train.py")
        spec = Spec(RUN, "here", nodes, task, host_python=sys.executable, workdir=str(self.workdir))
        self.inbox = inbox or queue.SimpleQueue()
        reach = Connector(spec, lambda _: None)
        self._reaches.append(reach)
        gathering = FactsCollector(
            spec,
            reach,
            self.inbox,
            lambda node: FactsRequest(node=node.name, workdir=spec.workdir, skip_launch_facts=True),
            lambda *_: None,
        )
        gathering.at_least(len(nodes), lambda *_: [])
        return gathering.sessions

    def pull(
        self, *names: str, show: Callable[[str, str], None] | None = None
    ) -> dict[str, PullResult]:
        """Bring home what those nodes have."""
        sessions = self.connect(*(names or ("gpu1",)))
        try:
            return self.pull_with(sessions, show)
        finally:
            for session in sessions.values():
                session.close()

    def pull_with(
        self,
        sessions: Mapping[str, HostSession],
        show: Callable[[str, str], None] | None = None,
        run_id: str = RUN,
    ) -> dict[str, PullResult]:
        """Bring home what is at the end of those wires."""
        note = show or (lambda node, text: self.said.append((node, text)))
        return pull(sessions, self.inbox, run_id, self.home, lost_s=10, show=note)

    def one(self) -> PullResult:
        """Bring home what gpu1 has."""
        return self.pull("gpu1")["gpu1"]

    def outputs_here(self, node: str = "gpu1") -> set[str]:
        """What lies here of what the ranks left."""
        top = self.home / "outputs" / node
        return {str(path.relative_to(top)) for path in top.rglob("*") if not is_folder(path)}

    def close(self) -> None:
        """End every link."""
        for reach in self._reaches:
            reach.close()


def is_folder(path: Path) -> bool:
    """Whether it is a folder, and no link to one."""
    return path.is_dir() and not path.is_symlink()


def write(path: Path, text: str | bytes) -> Path:
    """Write a file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A new one."""
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.close()


def test_all_of_a_run_comes_home(cluster: Cluster) -> None:
    """Records, logs and what was declared, node by node; a second time nothing is fetched."""
    write(cluster.work() / "results" / "deep" / "a.txt", "a")
    os.utime(cluster.work() / "results" / "deep" / "a.txt", ns=(1, 1234567890123456789))
    (cluster.work() / "results" / "deep" / "a.txt").chmod(0o750)
    write(cluster.work() / "results" / ".hidden", "h")
    write(cluster.work() / "results" / "empty", "")
    write(cluster.work() / "x" / "y" / "last.pt", bytes(3 * MB))
    write(cluster.work() / "x" / "other.txt", "stays")
    write(cluster.root() / "work" / "above.pt", "stays: not where the ranks ran")
    write(cluster.work("gpu2") / "results" / "b", "b")
    write(cluster.root() / "attempt_0" / "flight_0", "torch's flight recorder")

    told = cluster.pull("gpu1", "gpu2")

    assert all(each.is_complete for each in told.values()), told
    assert cluster.outputs_here() == {
        *("results/deep/a.txt", "results/.hidden", "results/empty", "x/y/last.pt")
    }
    assert cluster.outputs_here("gpu2") == {"results/b"}
    status = (cluster.home / "outputs/gpu1/results/deep/a.txt").stat()
    assert (status.st_mtime_ns, status.st_mode & 0o777) == (1234567890123456789, 0o750)
    assert (cluster.home / "outputs/gpu1/x/y/last.pt").read_bytes() == bytes(3 * MB)
    assert (cluster.home / "logs/gpu2/rank_0.out").read_text() == "hello of gpu2\n"
    assert {path.name for path in (cluster.home / "logs/gpu1").iterdir()} == {
        *("rank_0.out", "program.err", "flight_0")
    }
    assert {path.name for path in (cluster.home / "hosts/gpu1").iterdir()} == {
        *("format", "order.json", "plan.json", "state.json", "events.jsonl")
    }
    assert cluster.said[-1][1] == "done"

    again = cluster.pull("gpu1", "gpu2")
    assert {name: each.new_count for name, each in again.items()} == {"gpu1": 0, "gpu2": 0}
    assert {name: each.fetched_bytes for name, each in again.items()} == {"gpu1": 0, "gpu2": 0}
    assert again["gpu1"].existing_count == told["gpu1"].new_count


def test_any_name_comes_home(cluster: Cluster) -> None:
    """Also one that is no text, has two lines, or is as long as can be."""
    for name in ODD:
        write(cluster.work() / "results" / name, name.encode(errors="surrogateescape"))
    told = cluster.one()
    assert told.is_complete, told
    assert cluster.outputs_here() == {f"results/{name}" for name in ODD}
    for name in ODD:
        home = cluster.home / "outputs/gpu1/results" / name
        assert home.read_bytes() == name.encode(errors="surrogateescape")


def test_unchanged_code_is_no_output(cluster: Cluster) -> None:
    """Only what is younger than the checkout, whatever its modification time says."""
    cluster.wants("*.pt")
    work = cluster.work()
    write(work / "old.pt", "pushed")
    (work / "old_link.pt").symlink_to("old.pt")
    write(work / "tuned.pt", "pushed")
    time.sleep(0.05)  # the resolution of the disk's clock
    write(cluster.root() / "checked_out", "")
    time.sleep(0.05)
    assert cluster.one().output_count == 0
    write(work / "new.pt", "written")
    write(work / "tuned.pt", "changed")
    os.utime(work / "tuned.pt", (0, 0))
    assert cluster.one().output_count == 2
    assert cluster.outputs_here() == {"new.pt", "tuned.pt"}


def test_links_stay_links(cluster: Cluster, tmp_path: Path) -> None:
    """Wherever they lead; what is behind them is neither read nor written."""
    secret = write(tmp_path / "elsewhere" / "secret.pt", "secret")
    results = cluster.work() / "results"
    results.mkdir()
    links = {
        "passwd": "/etc/passwd",
        "broken": "nowhere",
        "up": "../../../..",
        "folder": str(secret.parent),
    }
    for name, target in links.items():
        (results / name).symlink_to(target)
    (cluster.work() / "linked").symlink_to(secret.parent)
    cluster.wants("results", "**/*.pt", "linked/secret.pt")

    told = cluster.one()

    assert told.is_complete, told
    assert told.notes == ["linked: is a symbolic link, which is not followed"]
    assert cluster.outputs_here() == {f"results/{name}" for name in links}
    for name, target in links.items():
        assert (cluster.home / "outputs/gpu1/results" / name).readlink() == Path(target)
    (results / "passwd").unlink()
    (results / "passwd").symlink_to("/etc/group")
    (results / "folder").unlink()
    write(results / "folder" / "secret.pt", "not through the link")
    told = cluster.one()
    assert (cluster.home / "outputs/gpu1/results/passwd").readlink() == Path("/etc/group")
    assert told.new_count == 1
    assert "outputs/gpu1/results/folder is in the way" in str(told.problems)
    assert secret.read_text() == "secret"


def test_read_only_folders_and_special_files(cluster: Cluster) -> None:
    """The first come home and can be pulled into again; the others are named."""
    folder = cluster.work() / "results" / "frozen"
    write(folder / "file", "x").chmod(0o400)
    os.mkfifo(cluster.work() / "results" / "pipe")
    folder.chmod(0o555)
    told = cluster.one()
    folder.chmod(0o755)
    assert told.is_complete, told
    assert told.notes == ["results/pipe: is neither a file nor a link"]
    assert cluster.outputs_here() == {"results/frozen/file"}
    write(folder / "more", "y")
    (folder / "file").chmod(0o600)
    write(folder / "file", "newer")
    (folder / "file").chmod(0o400)
    assert cluster.one().is_complete
    assert (cluster.home / "outputs/gpu1/results/frozen/file").read_text() == "newer"


def test_a_cut_connection_costs_nothing_that_came(cluster: Cluster) -> None:
    """50 MB, cut off in the middle: the next pull fetches the rest and no byte twice."""
    data = os.urandom(50 * MB)
    write(cluster.work() / "results" / "big", data)
    sessions = cluster.connect("gpu1")
    home = cluster.home / "outputs" / "gpu1" / "results"

    def cut() -> None:
        wait_until(
            lambda: sum(path.stat().st_size for path in home.glob(".part-*")) >= 20 * MB,
            "20 MB of it",
            30,
        )
        sessions["gpu1"].close()

    cutter = threading.Thread(target=cut)
    cutter.start()
    told = cluster.pull_with(sessions)["gpu1"]
    cutter.join()
    assert "the connection to it broke" in str(told.problems)
    assert not told.is_complete
    (part,) = home.iterdir()
    came = part.stat().st_size
    assert 20 * MB <= came < 50 * MB

    told = cluster.one()
    assert told.is_complete, told
    assert told.fetched_bytes == 50 * MB - came
    assert (home / "big").read_bytes() == data
    assert [path.name for path in home.iterdir()] == ["big"]


def test_a_part_of_another_version_is_not_used(cluster: Cluster) -> None:
    """A file that was written anew since then is fetched from its beginning."""
    big = write(cluster.work() / "results" / "big", b"1" * (30 * MB))
    sessions = cluster.connect("gpu1", inbox=Interrupting(piece=60))
    home = cluster.home / "outputs" / "gpu1" / "results"

    with pytest.raises(Interrupted) as caught:
        cluster.pull_with(sessions)
    assert caught.value.exit_code == 130
    (part,) = home.iterdir()
    assert part.name.startswith(".part-")
    write(big, b"2" * (30 * MB))
    for session in sessions.values():
        session.close()

    told = cluster.one()
    assert told.is_complete, told
    assert (home / "big").read_bytes() == b"2" * (30 * MB)
    assert [path.name for path in home.iterdir()] == ["big"]


def test_logs_go_on_where_they_end_here(cluster: Cluster) -> None:
    """Attempt by attempt, as a launch that was watched has them."""
    log = cluster.root() / "attempt_0" / "rank_0.out"
    home = cluster.home / "logs" / "gpu1" / "rank_0.out"
    assert cluster.one().is_complete
    with log.open("a") as file:
        file.write("more\n")
    with (cluster.root() / "events.jsonl").open("a") as file:
        file.write('{"seq": 2}\n')
    told = cluster.one()
    assert (told.new_count, told.fetched_bytes) == (2, len('more\n{"seq": 2}\n'))
    write(cluster.root() / "attempt_1" / "rank_0.out", "again\n")
    told = cluster.one()
    assert (told.new_count, told.fetched_bytes) == (1, len("again\n"))
    assert home.read_text() == "hello of gpu1\nmore\n"
    assert (home.parent / "attempt_1" / "rank_0.out").read_text() == "again\n"


def test_a_log_that_is_longer_here_is_not_touched(cluster: Cluster) -> None:
    """It is no beginning of the host's: that is told, and everything else comes."""
    home = write(cluster.home / "logs" / "gpu1" / "rank_0.out", "something longer than on the host")
    told = cluster.one()
    assert "logs/gpu1/rank_0.out: is longer here (33 bytes) than on the host (14)" in str(
        told.problems
    )
    assert told.failed_count == 1
    assert home.read_text() == "something longer than on the host"
    assert (cluster.home / "logs/gpu1/program.err").read_text() == "warned\n"


def test_a_file_that_grows_meanwhile(cluster: Cluster) -> None:
    """A log comes as far as it was; an output that holds still at last comes whole."""
    stop, held = threading.Event(), threading.Event()
    result = write(cluster.work() / "results" / "growing", b"")
    log = cluster.root() / "attempt_0" / "rank_0.out"

    def grow() -> None:
        with result.open("ab") as output, log.open("ab") as line:
            while not stop.is_set():
                output.write(b"x" * (MB // 10))
                line.write(b"y" * 1000)
                output.flush()
                line.flush()
                time.sleep(0.01)
        held.set()

    grower = threading.Thread(target=grow)
    grower.start()
    wait_until(lambda: result.stat().st_size >= 4 * MB, "4 MB of it")
    told = cluster.one()
    stop.set()
    grower.join()
    assert held.is_set()
    assert [str(each).splitlines()[0] for each in told.problems] == [
        "gpu1: outputs/gpu1/results/growing: keeps changing during the download"
    ]
    assert cluster.outputs_here() == set()
    assert log.read_bytes().startswith((cluster.home / "logs/gpu1/rank_0.out").read_bytes())

    told = cluster.one()
    assert told.is_complete, told
    assert (cluster.home / "outputs/gpu1/results/growing").read_bytes() == result.read_bytes()
    assert (cluster.home / "logs/gpu1/rank_0.out").read_bytes() == log.read_bytes()
    assert not list(cluster.home.rglob(".part-*"))


def test_many_small_files(cluster: Cluster) -> None:
    """More than a page of an inventory, all of them, and quickly."""
    for index in range(5000):
        write(cluster.work() / "results" / str(index % 7) / f"{index}.pt", f"{index}\n" * 50)
    began = time.monotonic()
    told = cluster.one()
    assert told.is_complete, told
    assert len(cluster.outputs_here()) == 5000
    assert time.monotonic() - began < 60
    assert (cluster.home / "outputs/gpu1/results/5/4989.pt").read_text() == "4989\n" * 50


def test_one_hosts_trouble_is_no_others(cluster: Cluster) -> None:
    """A host without the run is named; the other's files come."""
    root = cluster.root("gpu2")
    root.rename(root.with_name("gone"))
    told = cluster.pull("gpu1", "gpu2")
    assert told["gpu1"].is_complete
    assert not told["gpu2"].is_complete
    assert f"gpu2: could not say what it has: there is no run {RUN} " in str(
        told["gpu2"].problems[0]
    )


def test_a_file_nobody_may_read_is_one_problem(cluster: Cluster) -> None:
    """And one that is gone by the time it is asked for."""
    write(cluster.work() / "results" / "a", "a")
    write(cluster.work() / "results" / "b", "b")
    sessions = cluster.connect("gpu1")

    def show(_: str, text: str) -> None:
        if text.endswith("%"):
            (cluster.work() / "results" / "b").unlink(missing_ok=True)

    told = cluster.pull_with(sessions, show)["gpu1"]
    if told.is_complete:
        pytest.skip("it was quicker")
    assert told.failed_count == 1
    assert "outputs/gpu1/results/b: No such file or directory" in str(told.problems)
    assert cluster.outputs_here() == {"results/a"}


def test_one_pull_at_a_time(cluster: Cluster) -> None:
    """Two would write the same bytes twice."""
    sessions = cluster.connect("gpu1")

    def show(_: str, text: str) -> None:
        if text == "listing":
            with pytest.raises(NotReady, match="is being written by another pull"):
                cluster.pull_with({})

    assert cluster.pull_with(sessions, show)["gpu1"].is_complete


def test_a_silent_host_is_left(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """After `lost_s`; that is its problem, and what came before is kept."""
    sessions = cluster.connect("gpu1")
    monkeypatch.setattr(HostSession, "idle_s", property(lambda _: 11.0))
    told = cluster.pull_with(sessions)["gpu1"]
    assert not told.is_complete
    assert "nothing was heard from it for 11 s" in str(told.problems)


def test_samples_are_downloaded_and_asked_for(cluster: Cluster) -> None:
    """Those of every attempt are replaced whole; a question brings the newest attempt's."""
    samples = [Sample("gpu1", attempt, float(wall)) for attempt in (0, 1) for wall in range(500)]
    for attempt in (0, 1):
        lines = "".join(each.to_line() for each in samples if each.attempt == attempt)
        (cluster.root() / f"attempt_{attempt}").mkdir(exist_ok=True)
        write(cluster.root() / f"attempt_{attempt}/samples.jsonl", lines)
    write(cluster.root() / "attempt_1/samples.jsonl.7.new", "half")
    sessions = cluster.connect("gpu1")
    try:
        cluster.pull_with(sessions)
        broadcast = Broadcast(sessions, cluster.inbox, 10)
        found, problems = ask_recorded(broadcast, RUN, since=490.0, timeout_s=10)
    finally:
        for session in sessions.values():
            session.close()
    assert (found, problems) == ({"gpu1": samples[-9:]}, {})
    assert merge(cluster.home) == ""
    text = (cluster.home / "samples.jsonl").read_text()
    assert text == "".join(each.to_line() for each in sorted(samples, key=lambda s: s.wall))
    here = cluster.home / "hosts/gpu1"
    assert {*(path.name for path in (here / "attempt_1").iterdir())} == {"samples.jsonl"}

    write(cluster.root() / "attempt_1/samples.jsonl", samples[-1].to_line())  # it was thinned
    assert not cluster.one().problems
    assert (here / "attempt_1/samples.jsonl").read_text() == samples[-1].to_line()
