"""What a check found."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from runner.core.errors import Problem


class Level(enum.Enum):
    """How bad a finding is."""

    ERROR = "error"
    """A launch refuses, or would hang."""
    WARNING = "warning"
    """It may go well."""
    OK = "fine"


@dataclass(frozen=True)
class Finding:
    """One thing that was seen of one node, or of the whole cluster.

    Attributes:
        level: How bad it is.
        node: The node; "" for the whole cluster.
        message: What was seen, and where it is not obvious, why it matters.
        hint: The next command to type, or the key to set; "" for what is fine.
    """

    level: Level
    node: str
    message: str
    hint: str = ""

    @property
    def as_problem(self) -> Problem:
        """It, as a launch tells it."""
        return Problem(self.node, self.message, self.hint)

    @staticmethod
    def from_problem(problem: Problem) -> Finding:
        """Return a problem that a launch would refuse for."""
        return Finding(Level.ERROR, problem.subject, problem.message, problem.hint)
