"""`check` where the network between the hosts is ill, or their names mislead."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest

from tests.lab.lab import Lab
from tests.lab.launching import Launcher

pytestmark = [pytest.mark.promise(8)]

NOWHERE = "lladdr 02:00:00:00:0b:ad nud permanent dev eth0"

Row = dict[str, Any]


def one(on_lab: Launcher) -> Row:
    """All that `check` says of the network of node1 to node3, less what is fine."""
    skip = "skip_checks=[python,torch,gpus,storage,limits,system,clock]"
    three = "cluster.only=[node1,node2,node3]"
    done = on_lab("check", "--cluster", "lab4", three, "--json", skip)
    rows: list[Row] = json.loads(done.out)
    (bad,) = [row for row in rows if row["level"] != "fine"]
    assert (done.code, bad["level"]) == (3, "error"), done
    return bad


def test_a_pair_that_cannot_reach_each_other(lab: Lab, on_lab: Launcher) -> None:
    """One error names both, and that they reach the others."""
    other = lab["node3"].address
    cut = f"ip neigh replace {other} {NOWHERE}"
    with lab["node1"].changed(cut, f"ip neigh del {other} dev eth0"):
        row = one(on_lab)
    assert (row["check"], row["node"]) == ("pairs", "node1")
    assert row["message"] == (
        f"it and node3 cannot reach each other: timed out at {lab['node3'].address} and "
        f"{lab['node1'].address}; both reach the others"
    )
    assert "sudo ufw allow from 10.77." in row["hint"]
    assert lab.wait_idle() == {}


def test_large_packets_that_vanish(lab: Lab, on_lab: Launcher) -> None:
    """A switch port that passes less than the hosts send, and nobody says so."""
    node2 = lab["node2"]
    leg = node2._leg
    to_us = f"{lab.address}/32 dev eth0"  # or SSH would stall as well
    with contextlib.ExitStack() as undo:
        for host in lab.hosts.values():  # a bridge passes what the kernel has not cut yet
            cut, uncut = (f"ip link set eth0 gso_max_segs {count}" for count in (1, 65535))
            undo.enter_context(host.changed(cut, uncut))
        narrow = f"ip route add {to_us} mtu lock 700"
        undo.enter_context(node2.changed(narrow, f"ip route del {to_us}"))
        undo.callback(node2._switch._anchor.ip, f"link set dev {leg.port} mtu 1500")
        node2._switch._anchor.ip(f"link set dev {leg.port} mtu 1000")
        row = one(on_lab)
    assert (row["check"], row["node"]) == ("pairs", "node2")
    assert row["message"].endswith(
        "and it reaches none: small packets pass, large packets vanish on the way"
    )
    assert "ping -M do" in row["hint"]
