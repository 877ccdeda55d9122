"""Finding: one result of a check."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from runner.core.errors import Problem


class Level(enum.Enum):
    """How bad a finding is."""

    ERROR = "error"  # a launch refuses, or would hang
    WARNING = "warning"  # a launch may succeed
    OK = "fine"


@dataclass(frozen=True)
class Finding:
    """One observation about a node, or about the whole cluster."""

    level: Level
    node: str  # "" for the whole cluster
    message: str  # what was found and, if not obvious, why it matters
    hint: str = ""  # the next command to type, or the key to set; "" for what is fine

    @property
    def as_problem(self) -> Problem:
        """The finding as a problem that a launch reports."""
        return Problem(self.node, self.message, self.hint)

    @staticmethod
    def from_problem(problem: Problem) -> Finding:
        """Return the finding for a problem that makes a launch refuse."""
        return Finding(Level.ERROR, problem.subject, problem.message, problem.hint)
