"""Prepared environments: which one belongs to what, who makes it, and which ones go."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.wire.facts import Prepare
from runner.host.storage import environment

PREPARE = Prepare(lines=("make",), python="/bin/sh", digest="d")


def test_it_is_another_one_where_what_it_depends_on_differs(tmp_path: Path) -> None:
    wanted = [
        PREPARE,
        replace(PREPARE, lines=("make", "all")),
        replace(PREPARE, python="/bin/true"),
        replace(PREPARE, digest="e"),
    ]
    folders = {environment.folder_of(each, {}, str(tmp_path)) for each in wanted}
    assert len(folders) == 4


def test_one_process_makes_it_for_all_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another one could not make is not tried again by each that has waited for it."""
    waits = threading.Event()

    def pause(_: float) -> None:
        waits.set()
        time.sleep(0.01)

    monkeypatch.setattr(environment, "pause", pause)
    for suffix in ("made", "log"):
        target = str(tmp_path / "prepared" / suffix)
        said: list[object] = []

        def wait(target: str = target, said: list[object] = said) -> None:
            try:
                with environment.locked(str(tmp_path), target, 60.0):
                    said.append(environment.is_made(target))
            except ValueError as error:
                said.append(str(error))

        waiting = threading.Thread(target=wait)
        with environment.locked(str(tmp_path), target, 60.0):
            waits.clear()
            waiting.start()
            assert waits.wait(60)
            Path(f"{target}.{suffix}").touch()
        waiting.join()
        assert said == [True] if suffix == "made" else "could not make it" in str(said)


def test_what_a_run_names_stays(tmp_path: Path) -> None:
    parent = tmp_path / "prepared"
    for name in ("aa", "bb"):
        (parent / name).mkdir(parents=True)
        (parent / f"{name}.made").touch()
    with environment.locked(str(tmp_path), str(parent / "cc"), 60.0):  # it is being made
        assert environment.find_unused(str(tmp_path), 2e9 * 2) == [
            str(parent / "aa"),
            str(parent / "bb"),
        ]
    environment.remove(str(parent / "cc"))
    run = tmp_path / "runs" / "r" / "a"
    run.mkdir(parents=True)
    env = {environment.VARIABLE: str(parent / "bb")}
    order = {"run_id": "r", "node": "a", "attempt": 0, "workdir": "/w", "cwd": "/w"}
    (run / "order.json").write_text(json.dumps({**order, "program": {"env": env}}))
    assert environment.find_unused(str(tmp_path), 1000.0) == [str(parent / "aa")]
    environment.remove(str(parent / "aa"))
    assert sorted(path.name for path in parent.iterdir()) == ["bb", "bb.made"]
