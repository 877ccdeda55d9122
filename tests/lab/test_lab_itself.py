"""What other tests rely on: the lab itself, and on the CPU of this machine the GPU checks."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.gpu.launching import LocalLauncher
from tests.gpu.test_gpu import SMOKE, program
from tests.lab.lab import Lab


def test_a_crash_is_seen_and_a_home_is_made_again(lab: Lab) -> None:
    """Also where a test left folders that cannot be written to."""
    host = lab["node1"]
    everything = "find . -printf '%P %u %m %s\\n' | sort"
    before = host.sh(everything)
    host.sh("mkdir -m 500 frozen; ln -s frozen link; rm .profile; chmod 750 .")
    host.write("~/.runner/runs/1122-0900-rank-abcd/node1/supervisor.log", "Traceback")
    assert lab.crashes() == {"node1": ["Traceback"]}
    lab.reset_homes()
    assert lab.crashes() == {}
    assert host.sh(everything) == before


@pytest.mark.tasks
@pytest.mark.parametrize("words", [SMOKE, program("devices")], ids=["nccl", "devices"])
def test_launches_of_the_gpu_checks(tmp_path: Path, words: tuple[str, ...]) -> None:
    """They take their arguments, and succeed."""
    with closing(LocalLauncher(tmp_path, 0)) as launch:
        assert launch(*words, gpus=0).log("local", 0)
