"""Check of a cluster: a function that yields findings, pure over what is known of the hosts.

A function with `@check` in any file of this folder is a check; no other place has to name it.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter

from runner.core.errors import Finding, Level, Problem
from runner.core.planning.build_plan import select_gpus
from runner.core.planning.endpoints import Endpoint
from runner.core.planning.readiness import requirement_problems
from runner.core.spec import Node, Spec
from runner.core.wire.facts import Facts, Gpu, ProbeResult, Target

ok = functools.partial(Finding, Level.OK)
warning = functools.partial(Finding, Level.WARNING)
error = functools.partial(Finding, Level.ERROR)


@dataclass(frozen=True)
class NetworkProbe:
    """The results of all hosts."""

    endpoints: dict[str, Endpoint]  # by node
    targets: tuple[Target, ...] = ()  # ports of all nodes; a host skips its own
    by_node: dict[str, tuple[ProbeResult, ...]] = field(default_factory=dict)
    missing_reasons: dict[str, str] = field(default_factory=dict)  # of hosts that took no part


@dataclass(frozen=True)
class CheckContext:
    spec: Spec
    facts: Mapping[str, Facts]  # of the hosts that answered
    unreachable: Mapping[str, Problem] = field(default_factory=dict)  # the other hosts
    clock_offsets: Mapping[str, float] = field(default_factory=dict)  # seconds ahead of us
    network_probe: NetworkProbe | None = None  # the hosts' tests of each other

    @property
    def answering(self) -> list[tuple[Node, Facts]]:
        """The nodes that answered, in rank order."""
        nodes = self.spec.nodes
        return [(node, self.facts[node.name]) for node in nodes if node.name in self.facts]

    @property
    def ready(self) -> list[tuple[Node, Facts]]:
        """The nodes whose setup succeeded: nothing else is known of the others."""
        return [(node, facts) for node, facts in self.answering if facts.setup.exit_code == 0]

    def unmet(self, check: str, node: Node) -> list[Finding]:
        problems = requirement_problems(check, self.spec, node, self.facts[node.name])
        return [Finding.from_problem(problem) for problem in problems]


Check = Callable[[CheckContext], Iterator[Finding]]
NodeCheck = Callable[[Spec, Node, Facts], Iterator[Finding]]
_registered: list[tuple[int, bool, Check]] = []


def check(order: int, *, at_launch: bool = False) -> Callable[[Check], Check]:
    """Register a function as the check of its name; findings appear by `order`.

    With `at_launch`, every launch evaluates it, for its warnings: `readiness` has all refusals of a
    launch, which asks not for the health of GPUs, only whether they answer (`facts_request`).
    """

    def register(function: Check) -> Check:
        _registered.append((order, at_launch, function))
        return function

    return register


def node_check(order: int, *, at_launch: bool = False) -> Callable[[NodeCheck], Check]:
    """Register a function for each node that is ready and meets what a launch requires of its name.

    The others have what they do not meet as errors.
    """

    def register(function: NodeCheck) -> Check:
        name = function.__name__

        @functools.wraps(function)
        def evaluate(context: CheckContext) -> Iterator[Finding]:
            for node, facts in context.ready:
                yield from context.unmet(name, node) or function(context.spec, node, facts)

        return check(order, at_launch=at_launch)(evaluate)

    return register


@functools.cache
def all_checks(*, at_launch: bool = False) -> dict[str, Check]:
    """Return every check, or those of a launch, by name and in the order of their findings."""
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")
    entries = sorted(_registered, key=itemgetter(0))
    return {function.__name__: function for _, launch, function in entries if launch >= at_launch}


def evaluate_checks(
    context: CheckContext, skip: Collection[str] = (), *, at_launch: bool = False
) -> dict[str, list[Finding]]:
    checks = all_checks(at_launch=at_launch)
    return {name: list(function(context)) for name, function in checks.items() if name not in skip}


def used_gpus(node: Node, facts: Facts) -> list[Gpu]:
    indices = select_gpus(node, facts)
    return [gpu for gpu in facts.gpus if gpu.index in indices]


def most_common(values: Iterable[str]) -> str:
    """Return the value that most nodes have; the first node's of several, "" of none."""
    counts = Counter(values)
    return max(counts, key=counts.__getitem__, default="")
