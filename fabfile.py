"""fab -l shows what there is."""

from runner.fab import *  # noqa: F403
