"""Known failures, each found in real output of a rank."""

from __future__ import annotations

import time

import pytest

from runner.core.outcome.known_failures import explain


def test_what_is_not_known_is_not_explained() -> None:
    """It is shown as it is."""
    assert (
        explain(["Traceback (most recent call last):", "ValueError: lr must be positive"]) is None
    )
    assert explain([], {"exit": "SIGTERM"}) is None


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
    explained = explain(["training"], {"exit": str(code)})
    assert explained is not None
    assert explained.name == name
    assert words in explained.meaning
    assert explain([], {"exit": "128"}) is None
    assert explain([], {"exit": "255"}) is None


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


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("RuntimeError: Tensors must be CUDA and dense", "collective_device"),
        (
            "  what():  [enforce fail] op.preamble.length <= op.nbytes. 400 vs 4.",
            "collectives_differ",
        ),
        (
            "RuntimeError: Input type (c10::Half) and bias type (float) should be the same",
            "devices_mixed",
        ),
        (
            "DataLoader worker (pid 7) is killed by signal: Bus error … shared memory.",
            "shared_memory",
        ),
        (
            "a: error while loading shared libraries: libm.so.6: cannot open shared object file",
            "library_missing",
        ),
        ("python: symbol lookup error: /opt/libc10.so: undefined symbol: x", "library_mismatch"),
        (
            "MissingCUDAException: CUDA_HOME does not exist, unable to compile CUDA op(s)",
            "build_tools",
        ),
        ('Unexpected key(s) in state_dict: "_orig_mod.a.weight". ', "weights_prefix"),
        ("_pickle.UnpicklingError: invalid load key, 'v'.", "weights_damaged"),
        ("WeightsUnpickler error: Unsupported operand 118", "weights_damaged"),
        (
            "huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: Root=1)",
            "hub_login",
        ),
        (
            "requests.ConnectTimeout: HTTPSConnectionPool(host='x.org'): Max retries exceeded",
            "offline",
        ),
        (
            "train.py: error: the following arguments are required: --local_rank",
            "local_rank_wanted",
        ),
    ],
)
def test_other_words_for_a_known_failure(line: str, name: str) -> None:
    """Versions and programs differ in them."""
    explained = explain([line])
    assert explained is not None
    assert explained.name == name


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: Expected more than 1 value per channel when training",
        "RuntimeError: Trying to backward through the graph a second time",
        "RuntimeError: DataLoader worker (pid 7) is killed by signal: Terminated.",
        "AssertionError: the key 'module.weight' is missing",
        "dlerror: libnvinfer.so.7: cannot open shared object file: No such file or directory",
        "io/image.py:13: UserWarning: Failed to load image: '/opt/image.so: undefined symbol: x'",
        "'HTTPSConnectionPool(host='hf.co'): Max retries exceeded' thrown while requesting HEAD /a",
        "EOFError: Compressed file ended before the end-of-stream marker was reached",
        "requests.exceptions.HTTPError: 404 Client Error: Not Found for url: https://x.org/a",
    ],
)
def test_ordinary_words_are_no_known_failure(line: str) -> None:
    """A false cause is worse than none: these are other errors, or warnings."""
    assert explain([line]) is None
