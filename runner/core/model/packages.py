"""Package requirements of a project, as the controller reads them and a check compares them."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Tuple


class Certainty(enum.Enum):
    """The certainty that a run fails without a package."""

    RUNTIME = "runtime"  # declared as a run-time dependency of the project
    LISTED = "listed"  # with all others, including development tools
    INDIRECT = "indirect"  # by another package in a lock file, perhaps only on other machines


@dataclass(frozen=True)
class PackageRequirement:
    """One distribution, as a file of the project names it."""

    name: str  # normalised (PEP 503)
    specifier: str = ""  # the versions that are accepted (PEP 440); "" for any
    marker: str = ""  # where it is required (PEP 508); "" for everywhere
    locked: Tuple[str, ...] = ()  # its versions in the lock file, of which a host gets one
    certainty: Certainty = Certainty.RUNTIME  # that it is needed


@dataclass(frozen=True)
class Requirements:
    """All requirements of a project, and the file that lists them."""

    source: str = ""
    packages: Tuple[PackageRequirement, ...] = ()

    @property
    def names(self) -> Tuple[str, ...]:
        """The names of all packages, without duplicates."""
        return tuple(dict.fromkeys(requirement.name for requirement in self.packages))
