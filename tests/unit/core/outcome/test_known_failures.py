"""Known failures, each found in real output of a rank."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from runner.core.outcome.known_failures import FAILURE_PATTERNS, explain

WROTE = Path(__file__).parents[3] / "fixtures" / "failures"
MEANS = {
    "unattended": "the hosts then stop a run that is not detached",
    "memory": "memory ran out on that host",
    "local_rank_unknown": "does not take --local-rank",
    "local_rank_wanted": "requires --local_rank",
    "local_rank_missing": "reads LOCAL_RANK, which torchrun sets",
    "node_rank_missing": "starts its own workers",
    "lightning_size": "told num_nodes=1 and devices=1, and the run has 4 ranks",
    "argument_unknown": "does not take --fail_rank",
    "debugger": "ranks have no terminal",
    "port_taken": "port 29511 was already taken",
    "shared_memory": "shared memory (/dev/shm) is too small",
    "disk_full": "a disk of that host is full",
    "start_not_permitted": "may not write in /scratch/ada there",
    "not_executable": "./train.py cannot be executed",
    "gpu_memory": "memory ran out: 2.50 GiB more were requested",
    "no_gpu": "torch sees no GPU",
    "gpu_ordinal": "a rank chose a GPU that it does not have",
    "nccl_versions": "different versions of NCCL",
    "nccl_no_route": "NCCL could not reach 172.17.0.1 over",
    "gloo_loopback": "this one is at its loopback address",
    "gloo_interface": "gloo was told to use ib9, which has no address on that host",
    "ranks_missing": "only 1 of 2 joined the rendezvous within 6 s",
    "master_refused": "the master could not be reached at 127.0.0.1, 29512",
    "module_missing": "has no module apex",
    "home_unexpanded": "there is no ~/data/train.bin on that host: a ~ in an argument is not",
    "file_missing": "there is no data/train.bin on that host",
    "nccl_watchdog": "a collective was not joined by all ranks",
    "nccl_system": "NCCL failed in the operating system",
    "start_failed": "the supervisor could not make its run there",
    "peer_left": "another rank left while this one talked to it",
}


def test_each_known_failure_is_explained() -> None:
    """By its own entry, with what is particular to it filled in, and a cure."""
    assert set(MEANS) == {known.name for known in FAILURE_PATTERNS}
    for name, meaning in MEANS.items():
        explained = explain((WROTE / f"{name}.txt").read_text().splitlines())
        assert explained is not None, name
        assert explained.name == name
        assert meaning in explained.meaning
        assert "{" not in explained.meaning.replace("${", "")
        assert len(explained.remedy) > 20


def test_what_is_not_known_is_not_explained() -> None:
    """It is shown as it is."""
    assert (
        explain(["Traceback (most recent call last):", "ValueError: lr must be positive"]) is None
    )
    assert explain([], signal.SIGTERM) is None


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
