"""Exit descriptions: how a process ended, in words."""

from __future__ import annotations

import signal
from typing import Optional

SIGNAL_EXIT_BASE = 128
"""Exit codes above this one are those of signals."""


def describe_exit(code: Optional[int], signum: Optional[int]) -> str:
    """Return an exit in words: "exited with 3", "was killed by SIGKILL"."""
    if signum:
        try:
            return f"was killed by {signal.Signals(signum).name}"
        except ValueError:
            return f"was killed by signal {signum}"
    return "ended unseen" if code is None else f"exited with {code}"
