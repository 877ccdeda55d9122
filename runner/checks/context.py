"""What a check is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from runner.core.errors import Problem
from runner.core.model.facts import Facts, Gpu
from runner.core.model.finding import Finding
from runner.core.model.network_probe import Probed
from runner.core.model.packages import Wants
from runner.core.model.release import Code
from runner.core.model.spec import Node, Spec
from runner.core.planning.build_plan import chosen_gpus


@dataclass(frozen=True)
class Case:
    """What is known of a cluster.

    Attributes:
        spec: What it is said to be.
        facts: What the hosts that answered say of themselves.
        silent: Why the others cannot be asked.
        skews: How far each host's clock is ahead of ours, in seconds.
        wants: The packages that the project names.
        code: What a launch would push; nothing when it pushes nothing, or it was not looked at.
        unpushable: Why the code here cannot be pushed.
        probed: What they found of each other; None where nobody looked.
    """

    spec: Spec
    facts: Mapping[str, Facts]
    silent: Mapping[str, Problem] = field(default_factory=dict)
    skews: Mapping[str, float] = field(default_factory=dict)
    wants: Wants = field(default_factory=Wants)
    code: Code = field(default_factory=Code)
    unpushable: tuple[Problem, ...] = ()
    probed: Probed | None = None

    @property
    def there(self) -> list[tuple[str, Facts]]:
        """The nodes that answered, in rank order."""
        names = (node.name for node in self.spec.nodes)
        return [(name, self.facts[name]) for name in names if name in self.facts]

    @property
    def ready(self) -> list[tuple[Node, Facts]]:
        """Those of them whose setup went through: of others nothing else is known."""
        known = ((node, self.facts.get(node.name)) for node in self.spec.nodes)
        return [(node, facts) for node, facts in known if facts and facts.setup.code == 0]

    @property
    def ready_nodes(self) -> tuple[Node, ...]:
        """Them alone."""
        return tuple(node for node, _ in self.ready)


def used_gpus(node: Node, facts: Facts) -> list[Gpu]:
    """Return the GPUs a run would use there."""
    chosen = chosen_gpus(node, facts)
    return [gpu for gpu in facts.gpus if gpu.index in chosen]


Check = Callable[[Case], Iterable[Finding]]


def majority(values: Mapping[str, str]) -> str:
    """Return the value that most nodes have, "" of none; of several, that of the first node."""
    counts: dict[str, int] = {}
    for value in values.values():
        counts[value] = counts.get(value, 0) + 1
    return max(counts, key=lambda value: counts[value], default="")
