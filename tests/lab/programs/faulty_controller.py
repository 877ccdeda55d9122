"""A controller with a bug: the record of the first event of a rank raises what nothing expects.

python faulty_controller.py OVERRIDES
"""

from runner.cli.main import entry
from runner.core.protocol.events import Event, RankStarted
from runner.workflows.reporting import AttemptReporter

record = AttemptReporter.record


def fail(self: AttemptReporter, event: Event) -> None:
    """Record events until a rank has started."""
    record(self, event)
    if isinstance(event.body, RankStarted):
        raise KeyError("a bug")


AttemptReporter.record = fail  # type: ignore[method-assign]
entry()
