"""Permits for logins at one sshd, and when a refused login is tried again."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from runner.transport.ssh import login_budget
from runner.transport.ssh.config import Endpoint
from runner.transport.ssh.deadline import (
    BastionDenied,
    LoginDenied,
    LoginFailure,
    RefusedForNow,
)
from runner.transport.ssh.errors import FailureMessages, Timeout
from runner.transport.ssh.known_hosts import HostKey
from runner.transport.ssh.login_budget import LoginBudget

pytestmark = [pytest.mark.promise(4)]


class Attempts:
    """Attempts at logins that take a while, and how many were in progress at once."""

    def __init__(self, seconds: float) -> None:
        self.most = self.count = self._in_progress = 0
        self._seconds, self._lock = seconds, threading.Lock()

    def __call__(self) -> None:
        """Make one."""
        with self._lock:
            self.count += 1
            self._in_progress += 1
            self.most = max(self.most, self._in_progress)
        time.sleep(self._seconds)
        with self._lock:
            self._in_progress -= 1


def fail(error: Exception | None) -> None:
    """Raise an error if there is one."""
    if error:
        raise error


def run_many(budget: LoginBudget, count: int, attempt: Callable[[], None]) -> None:
    """Make so many logins at once, and wait for their ends."""
    with ThreadPoolExecutor(count) as pool:
        for result in [pool.submit(budget.run, attempt, lambda: None) for _ in range(count)]:
            result.result()


def test_few_logins_are_in_progress_at_once() -> None:
    """Fewer than the ten with which sshd begins to drop some."""
    attempts = Attempts(0.02)
    run_many(LoginBudget(1), 40, attempts)
    assert attempts.count == 40
    assert attempts.most == login_budget.MAX_LOGINS < 10


def test_logins_that_hang_give_their_permits_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts that do not answer cost those behind the same bastion a moment each."""
    monkeypatch.setattr(login_budget, "PERMIT_S", 0.1)
    budget, released = LoginBudget(1), threading.Event()
    count = 2 * login_budget.MAX_LOGINS
    with ThreadPoolExecutor(count) as pool:
        for _ in range(count):
            pool.submit(budget.run, released.wait, lambda: None)
        start = time.monotonic()
        budget.run(lambda: None, lambda: None)
        took_s = time.monotonic() - start
        released.set()
    assert 0.05 < took_s < 2


def test_refused_login_is_tried_again_with_growing_pauses() -> None:
    """Until it is let in."""
    times: list[float] = []

    def attempt() -> str:
        times.append(time.monotonic())
        if len(times) < 5:
            raise RefusedForNow("")
        return "in"

    assert LoginBudget(10).run(attempt, lambda: None) == "in"
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert all(0.05 * 2**n <= pause < 0.15 * 2**n + 0.1 for n, pause in enumerate(pauses)), pauses


def test_login_that_stays_refused_fails_in_time() -> None:
    """With what the last attempt said."""

    def attempt() -> None:
        raise RefusedForNow("busy")

    start = time.monotonic()
    with pytest.raises(RefusedForNow, match="busy"):
        LoginBudget(1).run(attempt, lambda: None)
    assert 0.9 < time.monotonic() - start < 1.5


@pytest.mark.parametrize("error", [None, LoginDenied("no key of yours")])
def test_login_is_tried_again_as_long_as_others_are_answered(error: Exception | None) -> None:
    """The sshd is busy then, and each of many has its turn; also if it knows nobody's key."""
    budget, end = LoginBudget(0.4), time.monotonic() + 1.5

    def succeed_again_and_again() -> None:
        while time.monotonic() < end:
            with contextlib.suppress(LoginDenied):
                budget.run(lambda: fail(error), lambda: None)
            time.sleep(0.05)

    def attempt() -> None:
        if time.monotonic() < end - 0.3:
            raise RefusedForNow("busy")

    others = threading.Thread(target=succeed_again_and_again)
    others.start()
    budget.run(attempt, lambda: None)
    others.join()


@pytest.mark.parametrize("is_begun", [True, False], ids=["timeout", "abandoned before it began"])
def test_failures_of_others_give_no_more_time(is_begun: bool) -> None:
    """They do not show that the sshd lets anybody in."""
    budget, end = LoginBudget(0.4), time.monotonic() + 2
    error = LoginFailure("took too long")

    def fail_again_and_again() -> None:
        while time.monotonic() < end:
            with contextlib.suppress(LoginFailure):
                budget.run(lambda: fail(error), lambda: fail(None if is_begun else error))
            time.sleep(0.05)

    start = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(fail_again_and_again)
        with pytest.raises(RefusedForNow):
            budget.run(lambda: fail(RefusedForNow("busy")), lambda: None)
        assert time.monotonic() - start < 1


def test_login_that_hangs_takes_no_time_from_others() -> None:
    """They are patient from the first refusal on."""
    budget, released = LoginBudget(0.5), threading.Event()
    attempts = iter([RefusedForNow("busy"), RefusedForNow("busy"), None])
    with ThreadPoolExecutor(1) as pool:
        pool.submit(budget.run, released.wait, lambda: None)
        time.sleep(0.6)
        budget.run(lambda: fail(next(attempts)), lambda: None)
        released.set()


def test_a_key_that_is_not_accepted_is_an_answer() -> None:
    """By the sshd, or by us."""
    messages = FailureMessages(Endpoint("gpu1", "gpu1", known_hosts_files=("known",)), 1.0)
    host_key = HostKey("ssh-ed25519", b"")
    denials = (messages.keys_refused([], ["a key"], ()), messages.key_unknown(host_key))
    assert all(isinstance(each, LoginDenied) for each in denials)
    assert not isinstance(messages.timed_out(Timeout.LOGIN), LoginDenied)


@pytest.mark.parametrize("error", [LoginFailure("down"), ValueError("else")])
def test_other_failures_are_raised_at_once(error: Exception) -> None:
    """What is down does not come up in a second."""
    attempts = 0

    def attempt() -> None:
        nonlocal attempts
        attempts += 1
        raise error

    with pytest.raises(type(error), match=str(error.args[0])):
        LoginBudget(10).run(attempt, lambda: None)
    assert attempts == 1


def test_abandoned_login_is_not_tried_again() -> None:
    """What is called before each wait may end it."""
    waits = iter([None, TimeoutError("abandoned")])

    def before_wait() -> None:
        if error := next(waits):
            raise error

    def attempt() -> None:
        raise RefusedForNow("busy")

    with pytest.raises(TimeoutError, match="abandoned"):
        LoginBudget(10).run(attempt, before_wait)


def test_a_bastion_that_denies_us_is_not_asked_for_every_host() -> None:
    """Each of its denials would make the time longer for which it turns this address away."""
    budget, count = LoginBudget(0.5), 4 * login_budget.MAX_LOGINS
    attempts = Attempts(0.05)

    def attempt() -> None:
        attempts()
        raise BastionDenied("no key of yours")

    def log_in(_: int) -> None:
        with pytest.raises(BastionDenied, match="no key of yours"):
            budget.run(attempt, lambda: None)

    with ThreadPoolExecutor(count) as pool:
        assert len(list(pool.map(log_in, range(count)))) == count
    assert attempts.count == login_budget.FIRST_LOGINS
    time.sleep(0.5)
    assert budget.run(lambda: "in", lambda: None) == "in"


def test_a_bastion_that_lets_somebody_in_has_not_denied_us_all() -> None:
    """A login that was begun before the denial may succeed after it."""
    budget = LoginBudget(60)

    def log_in() -> str:
        with pytest.raises(BastionDenied):
            budget.run(deny, lambda: None)
        return "in"

    def deny() -> None:
        raise BastionDenied("not this once")

    assert budget.run(log_in, lambda: None) == "in"
    assert budget.run(lambda: "also in", lambda: None) == "also in"


DENIED = "ada@gw: Permission denied (publickey)."


@pytest.mark.parametrize(
    ("template", "said", "is_for_all"),
    [
        ("ssh -W %h:%p gw", [DENIED], True),
        ("ssh gw nc '[%h]' %p", [DENIED], False),
        ("ssh -W %h:%p %r@gw", [DENIED], False),
        ("ssh -p 2%p -W %h:%p gw", [DENIED], False),
        ("ssh -W %h:%p gw1 || ssh -W %h:%p gw2", [DENIED, "channel 0: open failed: no"], False),
    ],
)
def test_a_denial_is_for_all_hosts_where_all_log_in_alike(
    template: str, said: list[str], is_for_all: bool
) -> None:
    """The same user at the same bastion, whatever the host."""
    endpoint = Endpoint("gpu1", "gpu1", proxy_command="ssh", proxy_template=template)
    failure = FailureMessages(endpoint, 1.0).proxy_failed(255, said, "")
    assert isinstance(failure, BastionDenied) == is_for_all
