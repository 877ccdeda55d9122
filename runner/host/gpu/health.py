"""GPU health: memory errors and clocks by NVML, Xids by the kernel's log.

NVML is asked for each value on its own: one that the driver does not know or withholds stays None.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import time
from typing import Any, Dict, List, Optional, Tuple

from runner.core.model.hardware import Driver, GpuHealth, Xid
from runner.host.gpu import nvml
from runner.host.process import procfs

XID_LINE = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<bus>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})[^)]*\): "
    r"(?P<code>\d+)\b(?:, )?(?P<text>.*)"
)
MAX_XIDS = 50  # the most (GPU, number) pairs that are reported
_MAX_XID_TEXT = 200

_UNCORRECTED = 1  # nvmlMemoryErrorType_t
_VOLATILE = 0  # nvmlEccCounterType_t


def driver(library: Optional[nvml.Nvml], root: str = "/") -> Driver:
    """Return the driver as NVML reports it, else its version as the kernel does."""
    text = procfs.read_text(os.path.join(root, "proc/driver/nvidia/version"))
    match = re.search(r"^NVRM version:.*?\s(\d+\.[\d.]+)\s", text, re.MULTILINE)
    if library is not None:
        with contextlib.suppress(nvml.NvmlError):
            return library.driver()
    return Driver(match[1] if match else "")


def gpu_health(library: nvml.Nvml, index: int) -> Optional[GpuHealth]:
    """Return the health of one GPU, None for one that does not answer."""
    try:
        device = library.handle(index)
    except nvml.NvmlError:
        return None
    broken = [""]

    def numbers(
        function: str, *args: object, count: int = 1, kind: Any = ctypes.c_uint
    ) -> List[Optional[int]]:
        try:
            return list(library.query_ints(function, device, *args, count=count, kind=kind))
        except nvml.NvmlError as error:
            broken[0] = str(error) if error.broken else broken[0]
            return [None] * count

    kinds = (ctypes.c_uint(_UNCORRECTED), ctypes.c_uint(_VOLATILE))
    bus = ""
    with contextlib.suppress(nvml.NvmlError):
        bus = library.pci_address(device)
    (pages,) = numbers("nvmlDeviceGetRetiredPagesPendingStatus")
    _, _, rows, failed = numbers("nvmlDeviceGetRemappedRows", count=4)
    repairs = [number for number in (rows, pages) if number is not None]
    throttle_reasons = "nvmlDeviceGetCurrentClocksThrottleReasons"
    return GpuHealth(
        bus=bus,
        volatile=numbers("nvmlDeviceGetTotalEccErrors", *kinds, kind=ctypes.c_ulonglong)[0],
        repair_pending=any(repairs) if repairs else None,
        repair_failed=_to_bool(failed),
        throttle_reasons=numbers(throttle_reasons, kind=ctypes.c_ulonglong)[0],
        error=broken[0],
    )


def _to_bool(number: Optional[int]) -> Optional[bool]:
    return None if number is None else number != 0


def read_xids(log: str = procfs.KMSG, now: Optional[float] = None) -> Tuple[Xid, ...]:
    """Return the driver's errors since the boot, one entry per GPU and number, in order."""
    now = time.monotonic() if now is None else now
    xids: Dict[Tuple[str, int], Xid] = {}
    for logged_at, line in procfs.read_kernel_log(log):
        match = XID_LINE.search(line)
        if match:
            key = bus, code = match["bus"].lower()[-10:], int(match["code"])
            count = xids[key].count + 1 if key in xids else 1
            ago_s = round(max(0.0, now - logged_at), 1)
            xids[key] = Xid(bus, code, match["text"].strip()[:_MAX_XID_TEXT], count, ago_s)
    return tuple(xids.values())[:MAX_XIDS]
