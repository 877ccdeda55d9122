"""A controller with a bug: the record of a rank's first event, or of the run's end, raises.

python faulty_controller.py rank|end OVERRIDES
"""

import sys

from runner.cli.main import entry
from runner.control.run.reporters import AttemptReporter
from runner.core.wire.events import Event, RankStarted
from runner.verbs.shared.following import Ending

record = AttemptReporter.record


def fail(self: AttemptReporter, event: Event) -> None:
    record(self, event)
    if isinstance(event.body, RankStarted):
        raise KeyError("a bug")


def fail_at_the_end(*_: object, **__: object) -> None:
    raise KeyError("a bug")


if sys.argv.pop(1) == "end":
    Ending.conclude = fail_at_the_end  # type: ignore[method-assign]
else:
    AttemptReporter.record = fail  # type: ignore[method-assign]
entry()
