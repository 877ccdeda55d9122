"""SSH keys."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.lab.programs import LabError

if TYPE_CHECKING:
    from collections.abc import Iterable


def make_keys(paths: Iterable[Path]) -> None:
    """Makes a key pair without passphrase at each path, all at once."""
    makers = {
        path: subprocess.Popen(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path)],
            stdin=subprocess.DEVNULL,
        )
        for path in paths
    }
    if failed := [str(path) for path, maker in makers.items() if maker.wait()]:
        raise LabError(f"ssh-keygen made no key at {', '.join(failed)}")


def public(path: Path) -> str:
    """Returns the public half of a key pair, as in known_hosts ("ssh-ed25519 AAAA...")."""
    return " ".join(Path(f"{path}.pub").read_text().split()[:2])
