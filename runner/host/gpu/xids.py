"""Errors of GPUs, as their driver told the kernel's log."""

from __future__ import annotations

import re
import time
from typing import Dict, Optional, Tuple

from runner.core.model.hardware import Xid
from runner.host.process import kernel_log

LINE = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<bus>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})[^)]*\): "
    r"(?P<code>\d+)\b(?:, )?(?P<text>.*)"
)
MOST = 50
"""So many kinds are told of; a machine with more has told enough."""

_TEXT = 200


def seen(log: str = kernel_log.KMSG, now: Optional[float] = None) -> Tuple[Xid, ...]:
    """Return the errors since the boot, those of one GPU and number as one, in order."""
    now = time.monotonic() if now is None else now
    found: Dict[Tuple[str, int], Xid] = {}
    for when, line in kernel_log.lines(log):
        match = LINE.search(line)
        if not match:
            continue
        bus, code = match["bus"].lower()[-10:], int(match["code"])
        count = found[bus, code].count + 1 if (bus, code) in found else 1
        if count > 1 or len(found) < MOST:
            ago = round(max(0.0, now - when), 1)
            found[bus, code] = Xid(bus, code, match["text"].strip()[:_TEXT], count, ago)
    return tuple(found.values())
