"""What a project names of distributions: data that the controller reads, and a check judges."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Tuple


class Certainty(enum.Enum):
    """How sure it is that a run fails without a package."""

    RUNTIME = "runtime"
    """The project declares it for its run time."""
    LISTED = "listed"
    """Listed with all others, tools for development included."""
    INDIRECT = "indirect"
    """A lock's own conclusion: some other package's need, perhaps of another machine."""


@dataclass(frozen=True)
class PackageRequirement:
    """One distribution, as a file of the project names it.

    Attributes:
        name: Normalised (PEP 503).
        specifier: The versions it may have (PEP 440); "" for any.
        marker: Where it is wanted at all (PEP 508); "" for everywhere.
        locked: The versions the lock file has for it, of which a host gets one.
        certainty: How sure it is that it is needed.
    """

    name: str
    specifier: str = ""
    marker: str = ""
    locked: Tuple[str, ...] = ()
    certainty: Certainty = Certainty.RUNTIME


@dataclass(frozen=True)
class Requirements:
    """All that a project names, and the file that does."""

    source: str = ""
    packages: Tuple[PackageRequirement, ...] = ()

    @property
    def names(self) -> Tuple[str, ...]:
        """The names to ask a host for, each once."""
        return tuple(dict.fromkeys(requirement.name for requirement in self.packages))


NCCL_PACKAGES = ("nvidia-nccl-cu11", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
"""The distributions that bring torch its NCCL, one of them per CUDA runtime."""
