"""What a check is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from runner.core.errors import Problem
from runner.core.model.facts import Facts, Gpu
from runner.core.model.finding import Finding
from runner.core.model.network_probe import NetworkProbe
from runner.core.model.packages import Requirements
from runner.core.model.release import CodeRef
from runner.core.model.spec import Node, Spec
from runner.core.planning.build_plan import select_gpus
from runner.core.planning.readiness import requirement_problems


@dataclass(frozen=True)
class CheckContext:
    """What is known of a cluster.

    Attributes:
        spec: What it is said to be.
        facts: What the hosts that answered say of themselves.
        unreachable: Why the others cannot be asked.
        clock_offsets: How far each host's clock is ahead of ours, in seconds.
        requirements: The packages that the project names.
        code: What a launch would push; nothing when it pushes nothing, or it was not looked at.
        push_problems: Why the code here cannot be pushed.
        network_probe: What they found of each other; None where nobody looked.
    """

    spec: Spec
    facts: Mapping[str, Facts]
    unreachable: Mapping[str, Problem] = field(default_factory=dict)
    clock_offsets: Mapping[str, float] = field(default_factory=dict)
    requirements: Requirements = field(default_factory=Requirements)
    code: CodeRef = field(default_factory=CodeRef)
    push_problems: tuple[Problem, ...] = ()
    network_probe: NetworkProbe | None = None

    @property
    def answering(self) -> list[tuple[str, Facts]]:
        """The nodes that answered, in rank order."""
        names = (node.name for node in self.spec.nodes)
        return [(name, self.facts[name]) for name in names if name in self.facts]

    @property
    def ready(self) -> list[tuple[Node, Facts]]:
        """Those of them whose setup went through: of others nothing else is known."""
        nodes = ((node, self.facts.get(node.name)) for node in self.spec.nodes)
        return [(node, facts) for node, facts in nodes if facts and facts.setup.exit_code == 0]

    @property
    def ready_nodes(self) -> tuple[Node, ...]:
        """Them alone."""
        return tuple(node for node, _ in self.ready)

    def unmet(self, check: str, node: Node) -> list[Finding]:
        """Return the requirements that a node does not meet, as errors of the check for them."""
        problems = requirement_problems(check, self.spec, node, self.facts[node.name])
        return [Finding.from_problem(problem) for problem in problems]


def used_gpus(node: Node, facts: Facts) -> list[Gpu]:
    """Return the GPUs a run would use there."""
    indices = select_gpus(node, facts)
    return [gpu for gpu in facts.gpus if gpu.index in indices]


Check = Callable[[CheckContext], Iterable[Finding]]


def most_common(values: Mapping[str, str]) -> str:
    """Return the value that most nodes have, "" of none; of several, that of the first node."""
    counts: dict[str, int] = {}
    for value in values.values():
        counts[value] = counts.get(value, 0) + 1
    return max(counts, key=lambda value: counts[value], default="")
