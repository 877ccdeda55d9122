"""What the hosts of a run need to start it once more by themselves, and what they make of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Collection, Dict, List, Mapping, NamedTuple, Tuple

from runner.core.errors import NotReady, Problem
from runner.core.model.facts import Facts
from runner.core.model.order import Hub, Order
from runner.core.model.past import Past
from runner.core.model.release import Code
from runner.core.model.run_info import RunInfo
from runner.core.model.spec import Node, Spec
from runner.core.planning import addresses
from runner.core.planning.build_plan import Plan, build_plan
from runner.core.planning.readiness import problems_of
from runner.core.protocol.paths import RunFolder
from runner.core.relaunch.policy import next_spec
from runner.core.secret import Secret


@dataclass(frozen=True)
class Voter:
    """A node that takes part when the hosts decide by themselves how a run goes on.

    Attributes:
        node: Its name.
        addr: Its address on the training network, numeric.
        port: Its TCP port for that; 0 where it is alone.
    """

    node: str
    addr: str = ""
    port: int = 0


@dataclass(frozen=True)
class Handover:
    """A run as it was asked for, and who may take it over.

    Attributes:
        spec: What this attempt was asked to be; its secrets are named below, and have no values.
        secrets: Their names.
        code: What travelled with the run.
        info: What is on record of the whole run.
        config: Its configuration, as YAML.
        voters: Those who decide, in the order in which they lead: by rank, then the spares.
    """

    spec: Spec
    secrets: Tuple[str, ...]
    code: Code
    info: RunInfo
    config: str
    voters: Tuple[Voter, ...]


class Roster(NamedTuple):
    """The plan of an attempt, with all who take part in its end.

    Attributes:
        plan: With orders that say so.
        standby: The orders of the spares.
        voters: See `Handover`; () where the hosts cannot decide by themselves.
    """

    plan: Plan
    standby: Dict[str, Order]
    voters: Tuple[Voter, ...]

    @property
    def orders(self) -> Dict[str, Order]:
        """What every supervisor is told."""
        return {**{share.node: share.order for share in self.plan.nodes}, **self.standby}


def roster(spec: Spec, plan: Plan, facts: Mapping[str, Facts], left: int) -> Roster:
    """Have the supervisors of a planned attempt able to start the run once more.

    Spares of whom nothing is known do not stand by.

    Args:
        spec: What was asked.
        plan: The attempt.
        facts: Of every node, and of the spares that are to stand by.
        left: How often the run may start once more.
    """
    if not left:
        return Roster(plan, {}, ())
    spares = [node for node in spec.spares if node.name in facts]
    voters = _voters(spec, [*spec.nodes, *spares], facts)
    spares = spares if voters else []
    hub = plan.nodes[0].order.hub
    if hub is None and spares:
        port = facts[spec.master.name].hub_port
        hub = Hub(spec.master.name, voters[0].addr, port, 0, spec.lost_s) if port else None
    if hub is None and len(voters) > 1:  # they would not hear of each other's end
        voters, spares = (), []
    if hub is not None:
        hub = replace(hub, spares=tuple(node.name for node in spares))
    common = {"hub": hub, "relaunches": left, "voters": len(voters)}
    shares = tuple(
        replace(share, order=replace(share.order, **common))  # type: ignore[arg-type]
        for share in plan.nodes
    )
    pattern = shares[0].order
    standby = {node.name: _standby(pattern, node, facts[node.name]) for node in spares}
    return Roster(replace(plan, nodes=shares), standby, voters)


def _voters(spec: Spec, nodes: List[Node], facts: Mapping[str, Facts]) -> Tuple[Voter, ...]:
    """Return all of them, or none: where one has no port or address, no majority is sure."""
    if len(nodes) == 1:
        return (Voter(nodes[0].name),)
    found = addresses.endpoints(spec, nodes, facts)
    voters = []
    for node in nodes:
        own = node.addr if node.addr and addresses.is_numeric(node.addr) else ""
        addr = own or (found[node.name].address if node.name in found else "")
        port = facts[node.name].vote_port
        if not addr or not port:
            return ()
        voters.append(Voter(node.name, addr, port))
    return tuple(voters)


def _standby(pattern: Order, node: Node, facts: Facts) -> Order:
    folder = RunFolder(facts.workdir, pattern.run_id, node.name)
    return replace(
        pattern,
        node=node.name,
        workdir=facts.workdir,
        argv=(),
        env={},
        cwd=folder.work,
        ranks=(),
        shim=folder.shim,
        hold_port=0,
        stall_s=0.0,
        stall_stops=False,
        metrics=(),
    )


def handover(
    spec: Spec, code: Code, info: RunInfo, config: str, voters: Tuple[Voter, ...]
) -> Handover:
    """Return what every host is to know, without the values of the secrets."""
    names = tuple(spec.secrets)
    return Handover(replace(spec, secrets={}), names, code, info, config, voters)


def info_of(plan: Plan, by: str, began: float, past: Tuple[Past, ...], left: int) -> RunInfo:
    """Return what every host has on record of the whole run; it may start `left` times more."""
    hub = plan.nodes[0].order.hub
    return RunInfo(
        run_id=plan.run_id,
        cluster=plan.cluster,
        task=plan.task,
        by=by,
        began=began,
        nodes=plan.most or len(plan.nodes),
        least=plan.least,
        world_size=plan.world_size,
        gpus={share.node: len(share.gpus) for share in plan.nodes if share.gpus},
        attempt=plan.attempt,
        past=past,
        standby=hub.spares if hub else (),
        relaunches=left,
    )


class Next(NamedTuple):
    """The next attempt: what everybody is told, and what they need for the one after it."""

    roster: Roster
    handover: Handover


def next_attempt(
    now: Handover,
    ended: Past,
    left: int,
    facts: Mapping[str, Facts],
    suspect: Collection[str] = (),
) -> Next:
    """Plan the next attempt of a run by what those say of themselves who are left.

    Args:
        now: What the last one was.
        ended: How that ended.
        left: How often the run may start once more after that.
        facts: Of every node that can take part.
        suspect: Nodes on which it failed: they do so where there is nobody else.

    Raises:
        NotReady: There are too few, or they cannot.
    """
    secrets = {name: Secret("") for name in now.secrets}
    asked = replace(now.spec, secrets=secrets)
    there = {node.name for node in (*asked.nodes, *asked.spares)}
    unfit: List[Problem] = []
    gone = there - facts.keys()
    while True:
        spec = next_spec(asked, gone, suspect)
        if spec is None:
            few = f"{len(there - gone)} of {len(there)} nodes are left for {len(asked.nodes)}"
            raise NotReady([Problem("", few), *unfit])
        wrong = _unfit(spec, facts)
        if not wrong:
            break
        unfit += [problem for problems in wrong.values() for problem in problems]
        gone |= wrong.keys()
    plan = _unattended(build_plan(spec, facts, code=now.code, attempt=ended.attempt + 1))
    made = roster(spec, plan, facts, left)
    info = info_of(made.plan, now.info.by, now.info.began, (*now.info.past, ended), left)
    return Next(made, handover(spec, now.code, info, now.config, made.voters))


def _unattended(plan: Plan) -> Plan:
    """Have nobody wait for a controller, and the hub notice who does not come to the start."""
    hub = plan.nodes[0].order.hub
    if hub is not None:
        hub = replace(hub, expected=tuple(share.node for share in plan.nodes[1:]))
    shares = [
        replace(share, order=replace(share.order, hub=hub, disconnect_s=0.0))
        for share in plan.nodes
    ]
    return replace(plan, nodes=tuple(shares))


def _unfit(spec: Spec, facts: Mapping[str, Facts]) -> Dict[str, List[Problem]]:
    wrong = {node.name: problems_of(spec, node, facts[node.name]) for node in spec.nodes}
    return {name: problems for name, problems in wrong.items() if problems}


def majority(voters: Collection[Voter], present: Collection[str]) -> bool:
    """Whether more than half of all are present, so that nobody else can be of the same mind."""
    return 2 * len({voter.node for voter in voters} & set(present)) > len(voters)
