"""Known failures, each found in real output of a rank."""

from __future__ import annotations

import signal
import time

import pytest

from runner.core.outcome.known_failures import explain


def test_what_is_not_known_is_not_explained() -> None:
    """It is shown as it is."""
    assert (
        explain(["Traceback (most recent call last):", "ValueError: lr must be positive"]) is None
    )
    assert explain([], signal.SIGTERM) is None


@pytest.mark.parametrize(
    ("code", "name", "words"),
    [
        (137, "sigkill", "128 + 9 if SIGKILL ended its command: a user or the kernel killed it"),
        (143, "sigterm", "128 + 15 if SIGTERM ended its command"),
        (127, "shell_exit", "finds no such program"),
    ],
)
def test_the_exit_code_of_a_shell_names_a_signal(code: int, name: str, words: str) -> None:
    """128 + its number; other codes are the program's own."""
    explained = explain([f"exited with {code}", "training"])
    assert explained is not None
    assert explained.name == name
    assert words in explained.meaning
    assert explain(["exited with 128"]) is None
    assert explain(["exited with 255"]) is None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ConnectionResetError: [Errno 104] Connection reset by peer", "server_closed"),
        ("RuntimeError: Connection reset by peer", "peer_left"),  # of torch 2.0's store
        ("RuntimeError: the API said: Connection reset by peer", None),
        ("torch.distributed.DistNetworkError: Connection was likely closed.", "peer_left"),
        ("NCCL WARN socketProgress: Connection closed by remote peer gpu2<48>", "peer_left"),
    ],
)
def test_another_rank_left_only_in_words_of_torch(text: str, name: str | None) -> None:
    """Those of the operating system are about a connection of the program's own."""
    explained = explain(text.splitlines())
    assert (explained and explained.name) == name


@pytest.mark.parametrize("words", ["gloo connect ", "port: 1 ", "Connect to x failed "])
def test_a_long_line_does_not_hold_up_the_verdict(words: str) -> None:
    """A rank may print anything: ten times the length takes far less than the square of that."""

    def cost_s(length: int) -> float:
        line = words * (length // len(words))
        began = time.process_time()
        assert explain([line]) is None
        return time.process_time() - began

    assert cost_s(400_000) < 30 * cost_s(40_000) + 0.5


def test_a_failure_at_either_end_of_a_long_line_is_known() -> None:
    """What is left out of it is the middle."""
    padding = "x" * 100_000
    for line in (f"CUDA error: invalid device ordinal {padding}", f"{padding} [Errno 28]"):
        assert explain([line]) is not None
