"""Role of a controller in an attempt: its launch, an attached terminal, or a reader."""

from __future__ import annotations

import enum


class Role(enum.Enum):
    """What a controller may do to the attempt that it monitors."""

    LAUNCH = "launch"
    """It started the attempt, declares nodes lost, and stops the attempt when one fails."""
    ATTACH = "attach"
    """It joined later: it may stop the attempt, and declares no node lost."""
    READ_ONLY = "read only"
    """It stops nothing, and renews no controller lease."""

    @property
    def may_stop(self) -> bool:
        """Whether it may stop the attempt."""
        return self is not Role.READ_ONLY
