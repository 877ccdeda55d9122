"""What a check is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from runner.core.errors import Problem
from runner.core.facts import Facts
from runner.core.finding import Finding
from runner.core.spec import Spec


@dataclass(frozen=True)
class Case:
    """What is known of a cluster.

    Attributes:
        spec: What it is said to be.
        facts: What the hosts that answered say of themselves.
        silent: Why the others cannot be asked.
        skews: How far each host's clock is ahead of ours, in seconds.
    """

    spec: Spec
    facts: Mapping[str, Facts]
    silent: Mapping[str, Problem] = field(default_factory=dict)
    skews: Mapping[str, float] = field(default_factory=dict)

    @property
    def there(self) -> list[tuple[str, Facts]]:
        """The nodes that answered, in rank order."""
        names = (node.name for node in self.spec.nodes)
        return [(name, self.facts[name]) for name in names if name in self.facts]


Check = Callable[[Case], Iterable[Finding]]


def each(case: Case, judge: Callable[[str, Facts], Finding]) -> Iterator[Finding]:
    """Yield one finding for each node that answered."""
    for name, facts in case.there:
        yield judge(name, facts)


def majority(values: Mapping[str, str]) -> str:
    """Return the value that most nodes have; of several, that of the first node."""
    counts: dict[str, int] = {}
    for value in values.values():
        counts[value] = counts.get(value, 0) + 1
    return max(counts, key=lambda value: counts[value])
