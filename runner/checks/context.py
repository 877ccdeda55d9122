"""The input of a check: the spec, and everything that is known about its hosts."""

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
    """Everything known about a cluster.

    Attributes:
        spec: The cluster and the task, as configured.
        facts: The facts of the hosts that answered.
        unreachable: The reasons why other hosts did not.
        clock_offsets: Seconds by which each host's clock is ahead of this machine's.
        requirements: The packages that the project names.
        code: The code that a launch would push; empty for none, or if it was not examined.
        push_problems: The reasons why the code here cannot be pushed.
        network_probe: The hosts' tests of each other; None if there were none.
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
        """The nodes whose setup succeeded: nothing else is known of the others."""
        nodes = ((node, self.facts.get(node.name)) for node in self.spec.nodes)
        return [(node, facts) for node, facts in nodes if facts and facts.setup.exit_code == 0]

    @property
    def ready_nodes(self) -> tuple[Node, ...]:
        """The nodes whose setup succeeded, without their facts."""
        return tuple(node for node, _ in self.ready)

    def unmet(self, check: str, node: Node) -> list[Finding]:
        """Return the requirements that a node does not meet, as errors of the check for them."""
        problems = requirement_problems(check, self.spec, node, self.facts[node.name])
        return [Finding.from_problem(problem) for problem in problems]


def used_gpus(node: Node, facts: Facts) -> list[Gpu]:
    """Return the GPUs that a run would use on a node."""
    indices = select_gpus(node, facts)
    return [gpu for gpu in facts.gpus if gpu.index in indices]


Check = Callable[[CheckContext], Iterable[Finding]]


def most_common(values: Mapping[str, str]) -> str:
    """Return the value that most nodes have; the first node's of several, "" of none."""
    counts: dict[str, int] = {}
    for value in values.values():
        counts[value] = counts.get(value, 0) + 1
    return max(counts, key=lambda value: counts[value], default="")
