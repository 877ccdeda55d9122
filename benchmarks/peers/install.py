"""Installation of the launchers: in an environment each, or from the system's packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import runner
from benchmarks.peers.launchers import Launcher

TIMEOUT_S = 900
PROGRAMS = {"pdsh": "pdsh", "openmpi-bin": "mpirun"}
"""By package of the system: the program that it brings."""


class UnavailableError(RuntimeError):
    """A launcher that cannot be had here."""


def install(launcher: Launcher, folder: Path) -> str:
    """Install a launcher, unless that was done before; return its version.

    Raises:
        UnavailableError: It cannot be had here; the text says why.
    """
    versions = []
    if launcher.distribution:
        versions.append(_install_distribution(launcher, folder))
    if launcher.package:
        versions.append(_install_package(launcher.package))
    if launcher.name.startswith("runner"):
        commit = _run(["git", "describe", "--always", "--dirty"], Path(__file__).parent)
        versions.append(f"{runner.__version__} ({commit})")
    if launcher.name == "ssh":
        versions.append(_run(["ssh", "-V"]).partition(",")[0])
    return ", ".join(versions)


def programs(launcher: Launcher, folder: Path) -> Path:
    """Return where the programs of a launcher's environment are."""
    return folder / (launcher.distribution or "none") / "bin"


def _install_distribution(launcher: Launcher, folder: Path) -> str:
    python, name = str(programs(launcher, folder) / "python"), launcher.distribution
    version = [python, "-c", f"from importlib.metadata import version; print(version('{name}'))"]
    done = folder / name / "done"
    if not done.exists():
        shutil.rmtree(folder / name, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(folder / name)])
        if launcher.needs_torch:  # a second one would take minutes and gigabytes
            where = "import sysconfig; print(sysconfig.get_path('purelib'))"
            Path(_run([python, "-c", where]), "torch.pth").write_text(
                f"{sysconfig.get_path('purelib')}\n"
            )
        _run([python, "-m", "pip", "install", "--disable-pip-version-check", name])
        done.touch()
    return f"{name} {_run(version)}"


def _install_package(package: str) -> str:
    program = PROGRAMS[package]
    if not shutil.which(program):
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            raise UnavailableError(f"{package} is not installed, and only root can do so, by apt")
        _run(["apt-get", "-qq", "update"])
        _run(["apt-get", "-qq", "install", "-y", "--no-install-recommends", package])
    version = _run([program, "-V" if program == "pdsh" else "--version"]).splitlines()[0]
    return version.replace("pdsh-", "pdsh ").partition(" (+")[0]


def _run(argv: Sequence[str], cwd: Path | None = None) -> str:
    """Run a command; return what it printed."""
    env = os.environ | {"DS_BUILD_OPS": "0", "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            argv,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(str(error)) from error
    text = done.stdout.strip()
    if done.returncode:
        raise UnavailableError(f"{argv[0]}: {(text.splitlines() or ['failed'])[-1]}")
    return text
