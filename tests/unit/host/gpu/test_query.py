"""Health of a GPU beside what NVML says: its driver, and the log of the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.core.wire.facts import Driver
from runner.host.gpu import query

LOG = Path(__file__).parents[3] / "fixtures" / "kmsg" / "xids.txt"
"""Lines of the kernel's log; the README beside it says where they were quoted."""


@pytest.mark.parametrize(
    ("line", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC",
            "535.104.05",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build",
            "570.158.01",
        ),
        ("", ""),
    ],
)
def test_the_kernel_knows_its_driver(tmp_path: Path, line: str, version: str) -> None:
    """Where the library does not."""
    place = tmp_path / "proc/driver/nvidia"
    place.mkdir(parents=True)
    (place / "version").write_text(f"{line}\nGCC version:  gcc version 12.3.0 (Ubuntu)\n")
    assert query.driver(None, str(tmp_path)) == Driver(version)


def test_every_form_of_a_line_is_read() -> None:
    """With or without "PCI:", an instance of MIG, a domain of its own; others are skipped."""
    found = query.read_xids(str(LOG), now=2700.0)
    assert [(xid.bus, xid.code, xid.count) for xid in found] == [
        ("0000:55:00", 48, 2),
        ("0000:55:00", 171, 1),
        ("0000:55:00", 63, 1),
        ("0000:55:00", 154, 1),
        ("0000:cb:00", 13, 2),
        ("0000:2b:00", 31, 1),
        ("0000:01:00", 94, 1),
        ("0000:19:00", 119, 1),
        ("0004:01:00", 79, 1),
        ("0000:03:00", 14, 1),
        ("0000:c1:00", 74, 1),
    ]
    first, lost = found[0], found[8]
    assert (first.text, first.ago_s) == ("pid=2187734, name=python, channel 0x00000002", 700.0)
    assert lost.text == "pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def test_a_flood_is_cut(tmp_path: Path) -> None:
    """The first kinds stay, and are counted on."""
    log = tmp_path / "kmsg"
    lines = (f"4,1,{n},-;NVRM: Xid (PCI:0000:01:00): {n}, x\n" for n in (*range(1, 99), 1, 1))
    log.write_text("".join(lines))
    found = query.read_xids(str(log), now=1.0)
    assert (len(found), found[0].count) == (query.MAX_XIDS, 3)
