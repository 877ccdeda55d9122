"""Measurements: ratios taken in one run, since machines differ and are noisy."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import runner


def environment(**more: str) -> dict[str, str]:
    """Return the environment of what is measured: of this checkout, compiled as an installed one.

    It is started in folders of its own.
    """
    compile_runner()
    path = filter(None, (str(Path.cwd()), os.environ.get("PYTHONPATH")))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), **more}


@functools.cache
def compile_runner() -> None:
    """Compile the runner; where PYTHONDONTWRITEBYTECODE is set, each command would do so."""
    import compileall  # noqa: PLC0415 (some measure the time of an import of this package)

    compileall.compile_dir(Path(runner.__file__).parent, quiet=1)
