"""fab -l shows what there is."""

from runner.verbs import *  # noqa: F403
