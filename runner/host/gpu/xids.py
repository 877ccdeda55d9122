"""Xids: the GPU errors that NVIDIA's driver wrote to the kernel's log."""

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
"""The most (GPU, number) pairs that are reported."""

_MAX_TEXT = 200


def read_xids(log: str = kernel_log.KMSG, now: Optional[float] = None) -> Tuple[Xid, ...]:
    """Return the errors since the boot, one entry per GPU and number, in order."""
    now = time.monotonic() if now is None else now
    xids: Dict[Tuple[str, int], Xid] = {}
    for logged_at, line in kernel_log.read_lines(log):
        match = XID_LINE.search(line)
        if match:
            key = bus, code = match["bus"].lower()[-10:], int(match["code"])
            count = xids[key].count + 1 if key in xids else 1
            ago_s = round(max(0.0, now - logged_at), 1)
            xids[key] = Xid(bus, code, match["text"].strip()[:_MAX_TEXT], count, ago_s)
    return tuple(xids.values())[:MAX_XIDS]
