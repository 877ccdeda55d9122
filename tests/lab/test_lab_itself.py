"""The lab itself: what every other test on real hosts relies on."""

from __future__ import annotations

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
