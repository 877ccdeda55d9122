"""Known failures, each found in real output of a rank."""

from __future__ import annotations

import time

import pytest

from runner.core.outcome.known_failures import explain


@pytest.mark.parametrize(
    ("code", "name", "words"),
    [
        ("137", "sigkill", "128 + 9 if SIGKILL ended its command: a user or the kernel killed it"),
        ("143", "sigterm", "128 + 15 if SIGTERM ended its command"),
    ],
)
def test_the_exit_code_of_a_shell_names_a_signal(code: str, name: str, words: str) -> None:
    """128 + its number; other codes are the program's own."""
    explained = explain(["training"], {"exit": code})
    assert explained is not None
    assert (explained.name, words in explained.meaning) == (name, True)
    assert explain([], {"exit": "128"}) is None
    assert explain([], {"exit": "255"}) is None


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


OTHER_WORDS = """\
server_closed: ConnectionResetError: [Errno 104] Connection reset by peer
peer_left: RuntimeError: Connection reset by peer
peer_left: torch.distributed.DistNetworkError: Connection was likely closed.
peer_left: NCCL WARN socketProgress: Connection closed by remote peer gpu2<48>
collective_device: RuntimeError: Tensors must be CUDA and dense
collectives_differ:   what():  [enforce fail] op.preamble.length <= op.nbytes. 400 vs 4.
devices_mixed: RuntimeError: Input type (c10::Half) and bias type (float) should be the same
shared_memory: DataLoader worker (pid 7) is killed by signal: Bus error … shared memory.
library_missing: a: error while loading shared libraries: libm.so.6: cannot open shared object file
library_mismatch: python: symbol lookup error: /opt/libc10.so: undefined symbol: x
build_tools: MissingCUDAException: CUDA_HOME does not exist, unable to compile CUDA op(s)
weights_prefix: Unexpected key(s) in state_dict: "_orig_mod.a.weight".
weights_damaged: _pickle.UnpicklingError: invalid load key, 'v'.
weights_damaged: WeightsUnpickler error: Unsupported operand 118
hub_login: huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: Root=1)
offline: requests.ConnectTimeout: HTTPSConnectionPool(host='x.org'): Max retries exceeded
local_rank_wanted: train.py: error: the following arguments are required: --local_rank
"""


@pytest.mark.parametrize("words", OTHER_WORDS.splitlines())
def test_other_words_for_a_known_failure(words: str) -> None:
    """Versions and programs differ in them."""
    name, _, line = words.partition(": ")
    explained = explain([line])
    assert explained is not None
    assert explained.name == name


ORDINARY_WORDS = """\
ValueError: lr must be positive
RuntimeError: the API said: Connection reset by peer
ValueError: Expected more than 1 value per channel when training
RuntimeError: Trying to backward through the graph a second time
RuntimeError: DataLoader worker (pid 7) is killed by signal: Terminated.
AssertionError: the key 'module.weight' is missing
dlerror: libnvinfer.so.7: cannot open shared object file: No such file or directory
io/image.py:13: UserWarning: Failed to load image: '/opt/image.so: undefined symbol: x'
'HTTPSConnectionPool(host='hf.co'): Max retries exceeded' thrown while requesting HEAD /a
EOFError: Compressed file ended before the end-of-stream marker was reached
requests.exceptions.HTTPError: 404 Client Error: Not Found for url: https://x.org/a
"""


@pytest.mark.parametrize("line", ORDINARY_WORDS.splitlines())
def test_ordinary_words_are_no_known_failure(line: str) -> None:
    """A false cause is worse than none: these are other errors, or warnings."""
    assert explain([line]) is None
    assert explain([], {"exit": "SIGTERM"}) is None


@pytest.mark.promise(12)
@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("zsh: command not found: $(date)", "'$(date)'"),
        ("bash: /a/$(date): /bin/x: bad interpreter: No such file", "'/a/$(date)'"),
        ("/a/`date`: Permission denied", "'/a/`date`'"),
    ],
)
def test_a_remedy_to_paste_runs_nothing_that_a_host_wrote(line: str, word: str) -> None:
    """What a log names is one word there."""
    explained = explain(["x", line])
    assert explained is not None
    assert word in explained.remedy
    for bare in ("$(date)", "`date`"):
        assert bare not in explained.remedy.replace(word, "")
