"""The verbs as Invoke tasks, for a fabfile: `from runner.verbs import *`."""

from runner.cli.commands.verbs import *  # noqa: F403
