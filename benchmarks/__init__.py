"""Measurements: ratios taken in one run, since machines differ and are noisy."""

import compileall
import os
from pathlib import Path

import runner

# What they start, in folders of its own, is this checkout.
folders = (str(Path.cwd()), os.environ.get("PYTHONPATH"))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, folders))

# Else each command would compile all it imports, which is compiled where it is installed.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
compileall.compile_dir(Path(runner.__file__).parent, quiet=1)
