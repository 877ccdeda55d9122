"""Inventories of hosts, as their engines print them."""

from __future__ import annotations

from runner.control.image.delivery import Inventory, parse_inventory


def test_what_a_host_has_is_read_from_lines() -> None:
    """What is of no such form is left out: a host may say anything."""
    text = 'banner\nstore=node1 ID /root\nfree=2\nimage=sha256:1\nlayers=["a","b"]\nlayers=null\n'
    odd = f"layers={'[' * 100_000}\nfree={'9' * 5000}\n"
    found = parse_inventory(text + odd + "layers={\nzstd=1\n")
    assert found == Inventory("node1 ID /root", 2048, "sha256:1", (("a", "b"), ()), True)
    assert parse_inventory("free=-\nimage=\n") == Inventory()
