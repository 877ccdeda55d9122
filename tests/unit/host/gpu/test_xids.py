"""Errors of GPUs in the kernel's log; `fixtures/kmsg` says where its lines were quoted."""

from __future__ import annotations

from pathlib import Path

from runner.core.outcome import xids as catalogue
from runner.host.gpu import xids

LOG = Path(__file__).parents[3] / "fixtures" / "kmsg" / "xids.txt"


def test_every_form_of_a_line_is_read() -> None:
    """With or without "PCI:", an instance of MIG, a domain of its own; others are skipped."""
    found = xids.read_xids(str(LOG), now=2700.0)
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


def test_a_log_that_may_not_be_read_has_none(tmp_path: Path) -> None:
    """Most users may not."""
    assert xids.read_xids(str(tmp_path / "none")) == ()


def test_a_flood_is_cut(tmp_path: Path) -> None:
    """The first kinds stay, and are counted on."""
    log = tmp_path / "kmsg"
    lines = (f"4,1,{n},-;NVRM: Xid (PCI:0000:01:00): {n}, x\n" for n in (*range(1, 99), 1, 1))
    log.write_text("".join(lines))
    found = xids.read_xids(str(log), now=1.0)
    assert (len(found), found[0].count) == (xids.MAX_XIDS, 3)


def test_the_well_known_ones_have_a_meaning_and_a_cure() -> None:
    """A program's fault needs none."""
    wanted = {13, 31, 43, 45, 48, 61, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120}
    assert wanted == set(catalogue.XIDS)
    assert all(known.meaning for known in catalogue.XIDS.values())
    assert all(bool(known.remedy) != known.caused_by_program for known in catalogue.XIDS.values())
