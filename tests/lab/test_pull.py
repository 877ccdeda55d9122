"""Download of a run over a real connection: whole, resumable, and only into its folder."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runner.control.rpc.session import Inbox
from runner.control.run import download
from runner.control.run.download import pull
from runner.control.run.hosts import HostPool, workdir_request
from runner.core.results import PullResult
from runner.core.spec import Cluster as ClusterSpec
from runner.core.spec import Node, Spec
from tests.lab.waiting import wait_until

pytestmark = [pytest.mark.promise(6, 12)]

RUN = "0102-0304-train-abcd"
MB = 1 << 20
ODD = (os.fsdecode(b"caf\xe9"), "two\nlines", "-x y", "\u00e9\u4e2d", "a\\b'\"$(x)", "n" * 255)
"""Names that are no text, have two lines, or are as long as can be."""


class Cluster:
    """Two nodes of this machine with a run of each, and a folder to bring it into."""

    def __init__(self, folder: Path) -> None:
        self.workdir = folder / "host"
        self.home = folder / "runs" / RUN
        self.said: list[tuple[str, str]] = []
        self.on_shown: Callable[[str], None] = lambda _: None
        for node in ("gpu1", "gpu2"):
            self.make(node)
        self._pools: list[HostPool] = []

    def root(self, node: str = "gpu1") -> Path:
        return self.workdir / "runs" / RUN / node

    def work(self, node: str = "gpu1") -> Path:
        return self.root(node) / "work" / "sub"

    def make(self, node: str) -> None:
        """Make the folder of an ended run, as a host has it."""
        self.work(node).mkdir(parents=True)
        files = {
            "order.json": json.dumps({"cwd": str(self.work(node))}),
            "plan.json": json.dumps({"outputs": ["results", "**/*.pt", "linked/x.pt"]}),
            "events.jsonl": '{"seq": 1}\n',
            "ballast": "x",
            "attempt_0/rank_0.out": f"hello of {node}\n",
            "attempt_0/rank_0.err": "",
            "attempt_0/rank_0.exit": "{}",
            "attempt_0/program.err": "warned\n",
        }
        for name, text in files.items():
            write(self.root(node) / name, text)

    def connect(self, *names: str) -> HostPool:
        nodes = tuple(Node(name, "localhost", transport="local") for name in names)
        cluster = ClusterSpec(host_python=sys.executable, workdir=str(self.workdir))
        spec = Spec(run_id=RUN, cluster=cluster, nodes=nodes, lost_s=60.0)
        console: Any = SimpleNamespace(
            phase=lambda _: None, message=lambda _: None, node_status=self._note
        )
        pool = HostPool(spec, console, Inbox())
        self._pools.append(pool)
        pool.collect_available_facts(lambda node: workdir_request(spec, node))
        return pool

    def pull(self, *names: str, **how: Any) -> dict[str, PullResult]:
        pool = self.connect(*names)
        try:
            return pull(pool, RUN, self.home, **how)
        finally:
            pool.close_sessions()

    def _note(self, node: str, text: str) -> None:
        self.said.append((node, text))
        self.on_shown(text)

    def one(self) -> PullResult:
        return self.pull("gpu1")["gpu1"]

    def outputs_here(self, node: str = "gpu1") -> set[str]:
        """The files that came, and links that were there."""
        top = self.home / "outputs" / node
        found = [path for path in top.rglob("*") if path.is_symlink() or not path.is_dir()]
        return {str(path.relative_to(top)) for path in found}

    def close(self) -> None:
        for pool in self._pools:
            pool.close()


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.close()


def test_all_of_a_run_comes_home(cluster: Cluster, tmp_path: Path) -> None:
    """Records, logs and what was declared, node by node; a second time nothing is fetched.

    No link is followed, wherever it leads: it is named.
    """
    files: dict[str, str | bytes] = {
        "work/sub/results/deep/a.txt": "a",
        "work/sub/results/.hidden": "h",
        "work/sub/results/empty": "",
        "work/sub/x/y/last.pt": bytes(3 * MB),
        "work/sub/x/other.txt": "stays",
        "work/above.pt": "stays: not where the ranks ran",
        "attempt_0/flight_0": "torch's flight recorder",
        "attempt_0/samples.jsonl": "{}\n",
        "attempt_0/samples.jsonl.7.new": "half",
        "attempt_1/rank_0.out": "again\n",
    }
    for name, content in files.items():
        write(cluster.root() / name, content)
    a_txt = cluster.work() / "results" / "deep" / "a.txt"
    os.utime(a_txt, ns=(1, 1234567890123456789))
    a_txt.chmod(0o750)
    for name in ("b", *ODD):
        write(cluster.work("gpu2") / "results" / name, os.fsencode(name))

    write(tmp_path / "elsewhere" / "x.pt", "secret")
    (cluster.work() / "linked").symlink_to(tmp_path / "elsewhere")
    (cluster.work() / "results" / "passwd").symlink_to("/etc/passwd")

    told = cluster.pull("gpu1", "gpu2")

    assert all(each.is_complete for each in told.values()), told
    assert told["gpu1"].notes == [
        f"{name}: is a symbolic link, which is not followed"
        for name in ("linked", "results/passwd")
    ]
    assert cluster.outputs_here() == {
        *("results/deep/a.txt", "results/.hidden", "results/empty", "x/y/last.pt")
    }
    assert cluster.outputs_here("gpu2") == {f"results/{name}" for name in ("b", *ODD)}
    for name in ODD:
        home = cluster.home / "outputs/gpu2/results" / name
        assert home.read_bytes() == os.fsencode(name)
    status = (cluster.home / "outputs/gpu1/results/deep/a.txt").stat()
    assert (status.st_mtime_ns, status.st_mode & 0o777) == (1234567890123456789, 0o750)
    assert (cluster.home / "outputs/gpu1/x/y/last.pt").read_bytes() == bytes(3 * MB)
    assert (cluster.home / "logs/gpu2/rank_0.out").read_text() == "hello of gpu2\n"
    assert {path.name for path in (cluster.home / "logs/gpu1").iterdir()} == {
        *("rank_0.out", "program.err", "flight_0", "attempt_1")
    }
    assert (cluster.home / "logs/gpu1/attempt_1/rank_0.out").read_text() == "again\n"
    assert {path.name for path in (cluster.home / "hosts/gpu1").iterdir()} == {
        *("order.json", "plan.json", "events.jsonl", "attempt_0")
    }
    samples = cluster.home / "hosts/gpu1/attempt_0"
    assert [path.name for path in samples.iterdir()] == ["samples.jsonl"]
    assert cluster.said[-1][1] == "done"

    again = cluster.pull("gpu1", "gpu2")
    assert {(each.new_count, each.fetched_bytes) for each in again.values()} == {(0, 0)}
    assert again["gpu1"].existing_count == told["gpu1"].new_count


def test_a_cut_connection_costs_nothing_that_came(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """50 MB, cut off in the middle: the next pull fetches the rest and no byte twice."""
    monkeypatch.setattr(download, "REPORT_S", 0.0)
    data = os.urandom(50 * MB)
    write(cluster.work() / "results" / "big", data)
    pool = cluster.connect("gpu1")
    home = cluster.home / "outputs" / "gpu1" / "results"

    def cut(text: str) -> None:
        if text.endswith("%") and int(text[:-1]) >= 40:
            pool.sessions["gpu1"].close()

    cluster.on_shown = cut
    told = pull(pool, RUN, cluster.home)["gpu1"]
    cluster.on_shown = lambda _: None
    assert "the connection to it broke" in str(told.problems)
    assert not told.is_complete
    (part,) = (cluster.home / ".partial" / "gpu1").iterdir()
    assert not (home / "big").exists()
    came = part.stat().st_size
    assert 15 * MB < came < 50 * MB

    told = cluster.one()
    assert told.is_complete, told
    assert told.fetched_bytes == 50 * MB - came
    assert (home / "big").read_bytes() == data
    assert [path.name for path in home.iterdir()] == ["big"]


def test_a_file_that_grows_meanwhile(cluster: Cluster) -> None:
    """A log comes as far as it was; an output that holds still at last comes whole."""
    stop = threading.Event()
    result = write(cluster.work() / "results" / "growing", b"")
    log = cluster.root() / "attempt_0" / "rank_0.out"

    def grow() -> None:
        with result.open("ab") as output, log.open("ab") as line:
            while not stop.is_set():
                output.write(b"x" * (MB // 10))
                line.write(b"y" * 1000)
                output.flush()
                line.flush()
                time.sleep(0.001)

    grower = threading.Thread(target=grow)
    grower.start()
    wait_until(lambda: result.stat().st_size >= 4 * MB, "4 MB of it")
    told = cluster.one()
    stop.set()
    grower.join()
    assert [str(each).splitlines()[0] for each in told.problems] == [
        "gpu1: outputs/gpu1/results/growing: it changed meanwhile"
    ]
    assert cluster.outputs_here() == set()
    assert log.read_bytes().startswith((cluster.home / "logs/gpu1/rank_0.out").read_bytes())

    told = cluster.one()
    assert told.is_complete, told
    assert (cluster.home / "outputs/gpu1/results/growing").read_bytes() == result.read_bytes()
    assert (cluster.home / "logs/gpu1/rank_0.out").read_bytes() == log.read_bytes()
    assert not (cluster.home / ".partial").exists()


def test_a_host_that_sends_nothing_is_not_waited_for(cluster: Cluster) -> None:
    """With a patience, as after a verdict; a third one lacks the run: the other's files come."""
    pool = cluster.connect("gpu1", "gpu2", "gpu3")
    agent = pool.sessions["gpu2"]._channel._process.pid  # type: ignore[attr-defined]
    os.killpg(agent, signal.SIGSTOP)
    try:
        told = pull(pool, RUN, cluster.home, patience_s=1)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(agent, signal.SIGCONT)
    assert told["gpu1"].is_complete
    assert "did not send all in time" in str(told["gpu2"].problems[-1])
    lacks = f"gpu3: could not say what it has: there is no run {RUN} "
    assert lacks in str(told["gpu3"].problems[0])
    assert pool.sessions["gpu2"].closed, "nothing waits for it a second time"
