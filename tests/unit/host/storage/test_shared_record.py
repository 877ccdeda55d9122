"""Files of a run that its nodes have alike, on a disk that they share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runner.host.process.event_loop import run_steps
from runner.host.storage import shared_record
from runner.host.storage.shared_record import link_shared, remove_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run with three nodes."""
    run = tmp_path / "run"
    for node in "abc":
        (run / node).mkdir(parents=True)
    return run


def write(run: Path, node: str, text: str) -> bool:
    """Write a node's plan."""
    return run_steps(link_shared(str(run / node / "plan.json"), text))


def test_text_is_on_the_disk_once(run: Path) -> None:
    """However many nodes write it at the same moment; another text is another file."""
    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(lambda node: write(run, node, "one"), "abc"))
    assert {(run / node / "plan.json").read_text() for node in "abc"} == {"one"}
    assert len({(run / node / "plan.json").stat().st_ino for node in "abc"}) == 1
    assert write(run, "a", "two")
    assert write(run, "b", "one"), "a node that rejoins writes what it has"
    assert [(run / node / "plan.json").read_text() for node in "abc"] == ["two", "one", "one"]
    assert not list(run.rglob("*.new"))


def shared_file(run: Path) -> Path:
    """Return the file that the nodes have links to."""
    (shared,) = (path for path in run.iterdir() if path.name.startswith(".plan.json."))
    return shared


def test_host_that_died_while_it_wrote_is_waited_for_once(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its claim is taken over when it is old, by one of those that wait."""
    monkeypatch.setattr(shared_record, "STALE_CLAIM_S", 0.2)
    assert write(run, "a", "one")
    shared = shared_file(run)
    claim = shared.with_name(f"{shared.name}.new")
    claim.touch()
    shared.unlink()
    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(lambda node: write(run, node, "one"), "bc"))
    assert (run / "b" / "plan.json").samefile(run / "c" / "plan.json")
    assert not claim.exists()


def test_nobody_waits_for_ever(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as for a claim of a server whose clock is ahead: the node writes a file of its own."""
    monkeypatch.setattr(shared_record, "CLAIM_TIMEOUT_S", 0.1)
    assert write(run, "a", "one")
    shared = shared_file(run)
    shared.with_name(f"{shared.name}.new").touch()
    assert not write(run, "b", "one")
    assert not (run / "b" / "plan.json").exists()


@pytest.mark.promise(5)
@pytest.mark.parametrize("damaged", ["", "on", "two"])
def test_content_decides_not_the_name(run: Path, damaged: str) -> None:
    """A file that a power cut of the server left in part is replaced, not linked to."""
    assert write(run, "a", "one")
    shared_file(run).write_text(damaged)
    assert write(run, "b", "one")
    assert write(run, "c", "one")
    assert (run / "b" / "plan.json").read_text() == "one"
    assert (run / "b" / "plan.json").samefile(run / "c" / "plan.json")
    assert not list(run.rglob("*.new"))


def test_disk_without_hard_links(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller is told, and nothing half done is left."""

    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refused)
    assert not write(run, "a", "one")
    assert not list(run.rglob("*.new"))


def test_shared_files_go_with_the_last_node(run: Path) -> None:
    """Not before: the others have links to them."""
    for node in "abc":
        write(run, node, "one")
    for node in "abc":
        remove_run(str(run))
        assert run.exists()
        (run / node / "plan.json").unlink()
        (run / node).rmdir()
    remove_run(str(run))
    assert not run.exists()
