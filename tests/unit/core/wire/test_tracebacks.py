"""The last traceback of a program."""

from __future__ import annotations

import pytest

from runner.core.wire.tracebacks import (
    MAX_LINES_AFTER,
    TRACEBACK,
    final_exception,
    is_secondary_error,
    strip_rank_prefix,
)

FRAMES = [TRACEBACK, '  File "t.py", line 1, in <module>', "    train()", "    ^^^^^^^"]
OWN = [*FRAMES, "ValueError: lr"]


@pytest.mark.parametrize(
    ("lines", "exception"),
    [
        ([*FRAMES, "ValueError: no"], "ValueError: no"),
        (["epoch 1", *FRAMES, "my.Error: one", "two", "", "[W tcp.cpp] bye"], "my.Error: one\ntwo"),
        ([*FRAMES, "KeyError: 1", "", *["step"] * MAX_LINES_AFTER], "KeyError: 1"),
        ([*FRAMES, "KeyboardInterrupt"], ""),
        ([*FRAMES, "OSError: object refcount : 2", "object type     : 0x7f3c"], ""),
        ([*FRAMES, "SystemExit: 3"], ""),
        ([*FRAMES, "lightning.pytorch.SIGTERMException"], ""),
        ([*FRAMES, "RuntimeError: DataLoader worker (pid 7) is killed by signal: Terminated."], ""),
        ([*OWN, "[W TCPStore.cpp] was likely closed"], "ValueError: lr"),
        ([*OWN, "Exception ignored in: <x>", *FRAMES, "BrokenPipeError"], "ValueError: lr"),
        ([*OWN, "", "Exception in thread T-4:", *FRAMES, "EOFError"], "ValueError: lr"),
        (["Exception in thread T-4:", *FRAMES, "EOFError"], ""),
        (["epoch 1", "epoch 2"], ""),
        ([], ""),
    ],
)
def test_the_exception_that_ended_it(lines: list[str], exception: str) -> None:
    """The last one, unless it went on after it, or was told to end."""
    assert final_exception(lines) == exception
    marked = [f"[rank3]: {line}" if line else "[rank3]:" for line in lines]
    assert final_exception(strip_rank_prefix(marked)) == exception


def test_a_progress_bar_does_not_end_its_line() -> None:
    """The traceback begins behind it."""
    lines = [f" 9%|▉ | 9/99 [00:01<00:09, 9.5it/s]{TRACEBACK}", *FRAMES[1:], "ValueError: no"]
    assert final_exception(strip_rank_prefix(lines)) == "ValueError: no"


GLOO = "/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp"


@pytest.mark.parametrize(
    ("said", "is_secondary"),
    [
        (f"RuntimeError: [{GLOO}/pair.cc:553] Connection closed by peer [127.0.0.1]:1. This", True),
        (f"RuntimeError: [{GLOO}/pair.cc:537] Read error [::1]:6: Connection reset by peer", True),
        ("torch.distributed.DistNetworkError: Broken pipe", True),
        ("torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. It was likely", True),
        ("DistBackendError: ncclRemoteError: Connection closed by remote peer gpu1<50123>", True),
        ("DistBackendError: ncclSystemError: ... Connection reset by peer", True),
        ("RuntimeError: Connection reset by peer", True),  # of torch 2.0
        ("ConnectionResetError: [Errno 104] Connection reset by peer", False),
        ("BrokenPipeError: [Errno 32] Broken pipe", False),
        ("ProtocolError: ('aborted.', ConnectionResetError(104, 'reset by peer'))", False),
        (f"RuntimeError: [{GLOO}/device.cc:84] Unable to find address for: eth9", False),
        ("torch.distributed.DistNetworkError: The client socket has failed to connect to a", False),
        ("RuntimeError: CUDA out of memory", False),
        ("", False),
    ],
)
def test_who_only_noticed(said: str, *, is_secondary: bool) -> None:
    """What torch raises where another rank is gone; any server may close a connection."""
    assert is_secondary_error(said) is is_secondary
