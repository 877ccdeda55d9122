"""Logins at one sshd: how many at once, and how often one is tried."""

from __future__ import annotations

import threading

import pytest

from runner.transport.ssh.deadline import RefusedForNow
from runner.transport.ssh.login_budget import MAX_LOGINS, LoginBudget
from tests.lab.waiting import PATIENCE


def test_so_many_logins_are_in_progress_at_once() -> None:
    """The next one waits until one of them has ended."""
    budget = LoginBudget(1.0)
    begun = threading.Semaphore(0)
    may_end = threading.Event()

    def login() -> None:
        begun.release()
        may_end.wait(30 * PATIENCE)

    threads = [
        threading.Thread(target=budget.run, args=(login, lambda: None), daemon=True)
        for _ in range(MAX_LOGINS + 1)
    ]
    for thread in threads:
        thread.start()
    for _ in range(MAX_LOGINS):
        assert begun.acquire(timeout=30 * PATIENCE)
    assert not begun.acquire(blocking=False)
    may_end.set()
    assert begun.acquire(timeout=30 * PATIENCE)


def test_a_login_that_is_refused_for_now_is_tried_three_times() -> None:
    """With what it was refused for at last."""
    tries: list[int] = []

    def login() -> None:
        tries.append(len(tries))
        raise RefusedForNow(f"try {len(tries)}")

    with pytest.raises(RefusedForNow, match="try 3"):
        LoginBudget(0.01).run(login, lambda: None)
    assert tries == [0, 1, 2]
