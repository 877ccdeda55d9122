"""Measurements: ratios taken in one run, since machines differ and are noisy."""

import os

# Else each command would compile all it imports; that of an installed program is compiled.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
