"""Downloads, whatever a host says and wherever it points."""

from __future__ import annotations

import json
import signal
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.control.rpc import wait
from runner.control.run.download import pull
from runner.control.run.hosts import enqueue_signal
from runner.core.results import PullResult
from runner.core.wire.files import FILE_KINDS, RemoteFile
from tests.unit.control.lying_host import CLOCKS, HONEST_ANSWERS, LIAR, Answer, Pool

pytestmark = [pytest.mark.promise(12)]

Pulled = Callable[..., PullResult]
BAD = ("", ".", "..", "/etc/passwd", "../x", "a/../b", "a//b", "a/", "a\0b", "\ud800")


@pytest.fixture
def pulled(monkeypatch: pytest.MonkeyPatch) -> Pulled:
    """Brings a run into a folder from a host that names these files, and sends such contents."""

    def bring(
        folder: Path,
        rows: list[Any],
        contents: dict[str, bytes] | None = None,
    ) -> PullResult:
        payload = zlib.compress(json.dumps(rows).encode())
        listed = [Answer("inventory", {"omitted_count": 0, "skipped": []}, payload)]

        def streamed(asked: dict[str, Any]) -> list[Answer]:
            answers = []
            for _, path, offset, _, _ in asked["files"]:
                content = (contents or {})[path]
                answers.append(
                    Answer("data", {"file": path, "offset": offset, "eof": True}, content[offset:])
                )
            return [*answers, Answer("streamed", {})]

        monkeypatch.setitem(HONEST_ANSWERS, "inventory", lambda _: listed)
        monkeypatch.setitem(HONEST_ANSWERS, "fetch", streamed)
        pool = Pool(None, folder)
        pool.connect()
        return pull(pool, "run-1", folder)[LIAR]

    return bring


def row(path: str, size: int = 0, kind: str = "output") -> list[Any]:
    return [kind, path, size, 5, 0o644]


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def test_a_path_that_leads_out_is_refused(pulled: Pulled, tmp_path: Path) -> None:
    """All of that host's, for such a host is not to be trusted."""
    for kind in FILE_KINDS:
        for path in BAD:
            told = pulled(tmp_path / "run", [row(path, kind=kind)])
            assert not told.is_complete
            assert "unexpected reply" in str(told.problems), (kind, path)
    assert everything(tmp_path) == set()


@pytest.mark.parametrize(
    "bad",
    [
        ["record", "work/x", 0, 0, 0],
        ["log", "rank_0.out", 0, 0, 0],
        ["log", "attempt_0/rank_0.out\n", 0, 0, 0],
        ["nothing", "x", 0, 0, 0],
        ["output", "a", -1, 0, 0],
        ["output", "a", float("inf"), 0, 0],
        ["output", "a", 0, 0, 0, "/etc/passwd"],
        None,
    ],
)
def test_only_what_a_run_has_is_fetched(bad: Any) -> None:
    """Records and logs are known by name."""
    with pytest.raises(ValueError, match="of a run|no such size|no file"):
        RemoteFile.from_row(bad)


def test_nothing_is_written_through_a_link(pulled: Pulled, tmp_path: Path) -> None:
    """That was there: a host's own is not made here."""
    outside = tmp_path / "outside"
    outside.mkdir()
    elsewhere = tmp_path / "other"
    elsewhere.mkdir()
    (elsewhere / "outputs").symlink_to(outside)
    (elsewhere / "logs").mkdir()
    (elsewhere / "logs" / LIAR).mkdir()
    (elsewhere / "logs/b/rank_0.out").symlink_to(outside / "log")
    rows = [row("c", 3), row("attempt_0/rank_0.out", 3, kind="log")]
    told = pulled(elsewhere, rows, {"c": b"bad", "attempt_0/rank_0.out": b"bad"})
    assert told.failed_count == 2
    assert everything(outside) == set()


@pytest.mark.promise(5)
def test_a_file_is_on_the_disk_before_it_has_its_name(
    pulled: Pulled, tmp_path: Path, synced_before_rename: Callable[[Path], bool]
) -> None:
    """Else a power cut may leave one of its size and time, which is not fetched again."""
    pulled(tmp_path / "run", [row("c", 3)], {"c": b"yes"})
    assert synced_before_rename(tmp_path / "run/outputs/b/c")


def test_more_than_was_asked_for_is_not_taken(pulled: Pulled, tmp_path: Path) -> None:
    """Nor less: an empty file is whole at once."""
    told = pulled(
        tmp_path, [row("a", 3), row("b", 3), row("c")], {"a": b"abcd", "b": b"ab", "c": b""}
    )
    assert str(told.problems).count("was received incomplete") == 2
    assert (told.fetched_bytes, told.new_count) == (0, 1)
    assert everything(tmp_path / "outputs/b") == {"c"}


@pytest.mark.promise(4)
def test_pieces_without_bytes_are_no_progress(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A host that sends them for ever is not waited for."""
    monkeypatch.setattr(wait, "ANSWER_TIMEOUT_S", 1.0)
    monkeypatch.setattr(wait.WaitLoop, "ping_interval_s", 0.05)
    fetch_ids: list[int] = []

    def piece(request: dict[str, Any]) -> list[Answer]:
        if "files" in request:
            fetch_ids.append(request["id"])
        data = {"file": "attempt_0/rank_0.out", "offset": 0}
        pieces = [Answer("data", {"id": number, **data}) for number in fetch_ids]
        return [Answer("pong", CLOCKS), *pieces]

    monkeypatch.setitem(HONEST_ANSWERS, "fetch", piece)
    monkeypatch.setitem(HONEST_ANSWERS, "ping", piece)
    pool = Pool(None, tmp_path)
    pool.connect()
    ended = threading.Timer(10, enqueue_signal, (pool.inbox, signal.SIGINT))
    ended.start()
    told = pull(pool, "run-1", tmp_path, ["log"])[LIAR]
    ended.cancel()
    assert "did not send all in time" in str(told.problems)
