"""Errors of GPUs, as their driver told the kernel's log."""

from __future__ import annotations

import re
import time
from typing import Dict, Optional, Tuple

from runner.core.model.hardware import Xid
from runner.host.process import kernel_log

XID_LINE = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<bus>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})[^)]*\): "
    r"(?P<code>\d+)\b(?:, )?(?P<text>.*)"
)
MAX_XIDS = 50
"""So many kinds are told of; a machine with more has told enough."""

_MAX_TEXT = 200


def read_xids(log: str = kernel_log.KMSG, now: Optional[float] = None) -> Tuple[Xid, ...]:
    """Return the errors since the boot, those of one GPU and number as one, in order."""
    now = time.monotonic() if now is None else now
    xids_found: Dict[Tuple[str, int], Xid] = {}
    for logged_at, line in kernel_log.read_lines(log):
        match = XID_LINE.search(line)
        if not match:
            continue
        bus, code = match["bus"].lower()[-10:], int(match["code"])
        count = xids_found[bus, code].count + 1 if (bus, code) in xids_found else 1
        if count > 1 or len(xids_found) < MAX_XIDS:
            ago_s = round(max(0.0, now - logged_at), 1)
            xids_found[bus, code] = Xid(bus, code, match["text"].strip()[:_MAX_TEXT], count, ago_s)
    return tuple(xids_found.values())
