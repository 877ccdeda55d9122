"""What a program said last."""

from __future__ import annotations

import pytest

from runner.core.causes import of_another
from runner.core.lastwords import LATER, TRACEBACK, raised, unmarked

FRAMES = [TRACEBACK, '  File "t.py", line 1, in <module>', "    train()", "    ^^^^^^^"]


@pytest.mark.parametrize(
    ("lines", "exception"),
    [
        ([*FRAMES, "ValueError: no"], "ValueError: no"),
        (["epoch 1", *FRAMES, "my.Error: one", "two", "", "[W tcp.cpp] bye"], "my.Error: one\ntwo"),
        ([*FRAMES, "KeyError: 1", "", "During that:", "", *FRAMES, "OSError"], "OSError"),
        ([*FRAMES, "KeyError: 1", "", *["step"] * LATER], "KeyError: 1"),
        ([*FRAMES, "KeyError: 1", "", *["step"] * (LATER + 1)], ""),
        ([*FRAMES, "KeyboardInterrupt"], ""),
        ([*FRAMES, "SystemExit: 3"], ""),
        ([*FRAMES, "torch.distributed.elastic.SignalException: got signal: 15"], ""),
        ([*FRAMES, "KeyboardInterruptedError: mine"], "KeyboardInterruptedError: mine"),
        (["epoch 1", "epoch 2"], ""),
        (FRAMES, ""),
        ([], ""),
    ],
)
def test_the_exception_that_ended_it(lines: list[str], exception: str) -> None:
    """The last one, unless it went on after it, or was told to end."""
    assert raised(lines) == exception
    marked = [f"[rank3]: {line}" if line else "[rank3]:" for line in lines]
    assert raised(unmarked(marked)) == exception


def test_who_noticed_and_who_did_it() -> None:
    """The words of a broken connection are about another."""
    assert of_another("RuntimeError: Connection closed by peer [10.0.0.1]:40853")
    assert not of_another("ValueError: no")
    assert not of_another("")
