"""The runs of a cluster's hosts: who has which, and what is on record of one."""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from runner.control.rpc.broadcast import Asking
from runner.core.codec import decode
from runner.core.errors import NotReady, Problem
from runner.core.model.facts import Facts, FactsRequest
from runner.core.model.launch_request import Composed
from runner.core.model.order import Order
from runner.core.model.run_info import RunInfo, RunSeen
from runner.core.model.spec import Node, Spec
from runner.core.planning.build_plan import NodePlan, Plan
from runner.core.protocol.paths import is_run_id
from runner.ui.console.plain import Console, open_console
from runner.workflows.host_pool import Contact, contact


@dataclass(frozen=True)
class Run:
    """One run as its hosts tell of it.

    Attributes:
        info: What is on record of the whole.
        seen: What each host says that answered and has it.
    """

    info: RunInfo
    seen: Mapping[str, RunSeen]

    @property
    def run_id(self) -> str:
        """Its name."""
        return self.info.run_id


@dataclass(frozen=True)
class Recorded:
    """All that a host has on record of a run: its plan, its configuration, and `info`."""

    plan: Plan
    config_yaml: str
    info: RunInfo


class Hosts:
    """The hosts of a cluster that answer.

    Attributes:
        contact: The connections.
        facts: What those hosts say of themselves.
        silent: Why the others cannot be asked.
        hidden: How many runs of others there are on each host that we may not look into.
        clocks: How far each host's clock is ahead of the one that answered first, in seconds.
    """

    def __init__(self, contact: Contact, *, gpus: bool = False) -> None:
        self.contact = contact
        self.hidden: dict[str, int] = {}
        self.clocks: dict[str, float] = {}
        spec = contact.spec
        self._nodes = {node.name: node for node in spec.nodes}
        self._show: Callable[[str, str], None] = contact.console.state
        self._request = lambda node: FactsRequest(
            node=node.name, workdir=spec.workdir, hosts_only=True, gpus=gpus
        )
        self.facts: dict[str, Facts]
        self.facts, self.silent = contact.gather_some(self._request)
        if not self.facts:
            raise NotReady(list(self.silent.values()))

    def runs(self, run_id: str = "") -> list[Run]:
        """Return the runs on these hosts, the oldest first: all, or one.

        Raises:
            Interrupted: By a signal.
        """
        answers, problems = self.asking().some("runs", {"run_id": run_id}, "runs")
        self.silent.update(problems)
        by_run: dict[str, dict[str, RunSeen]] = {}
        for name in [node.name for node in self.contact.spec.nodes if node.name in answers]:
            told = answers[name]
            self.hidden[name] = int(told["hidden"])
            self.clocks[name] = float(told["now"])
            for each in told["runs"]:
                seen = decode(RunSeen, each)
                if not is_run_id(seen.info.run_id):
                    continue
                by_run.setdefault(seen.info.run_id, {})[name] = seen
        runs = [Run(_whole(seen), seen) for seen in by_run.values()]
        return sorted(runs, key=lambda run: (run.info.began or _changed(run), run.run_id))

    def one(self, run_id: str, *, mine: bool = True) -> Run:
        """Return the run of that name, or the latest one for "" and "latest".

        Raises:
            NotReady: There is none.
        """
        wanted = "" if run_id == "latest" else run_id
        found = self.runs(wanted)
        if not wanted and mine:
            users = {facts.user for facts in self.facts.values()}
            found = [run for run in found if {s.owner for s in run.seen.values()} & users]
        if found:
            return found[-1]
        raise NotReady([self._no_run(wanted)])

    def record(self, run: Run) -> Recorded:
        """Return what is on record of a run, from the first host that has all of it.

        Those of its last attempt come first: the others know nothing of it. Where nodes may join,
        it is the one that knows of the most.

        Raises:
            NotReady: No host that answers has it, or not so that it can be read.
        """
        kept: list[Problem] = []
        orders: dict[str, Order] = {}
        fullest: Recorded | None = None
        for name in sorted(run.seen, key=lambda name: -run.seen[name].info.attempt):
            answers, problems = self.asking({name}).some("run", {"run_id": run.run_id}, "run")
            kept += problems.values()
            for told in answers.values():
                try:
                    found = json.loads(zlib.decompress(told["payload"]))
                    orders[name] = decode(Order, json.loads(found["order"]))
                    recorded = _recorded(found, run.run_id)
                    if not recorded.plan.least:
                        return recorded
                    fullest = max(fullest or recorded, recorded, key=_size)
                except (ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
                    kept.append(Problem(name, f"its record of {run.run_id} is damaged: {error}"))
        if fullest is not None:
            return fullest
        if orders:
            return self._pieced_together(run, orders)
        raise NotReady(kept or [self._no_run(run.run_id)])

    def _pieced_together(self, run: Run, orders: Mapping[str, Order]) -> Recorded:
        """Return the plan of a run of format 1 as far as the orders of its hosts tell."""
        by_rank = sorted(orders.items(), key=lambda pair: pair[1].ranks)
        nodes = tuple(
            NodePlan(
                node=name,
                host=next(n.host for n in self.contact.spec.nodes if n.name == name),
                command=order.argv,
                env=order.env,
                cwd=order.cwd,
                ranks=order.ranks,
                gpus=(),
                interface="",
                order=order,
            )
            for name, order in by_rank
        )
        plan = Plan(
            run_id=run.run_id,
            cluster=self.contact.spec.cluster,
            task=run.info.task,
            attempt=max(order.attempt for order in orders.values()),
            nodes=nodes,
            world_size=sum(len(order.ranks) for order in orders.values()),
            backend=by_rank[0][1].env.get("DIST_BACKEND", ""),
            master_addr="",
            master_port=by_rank[0][1].hold_port,
        )
        return Recorded(plan, "", run.info)

    def take_up(self, plan: Plan) -> Spec:
        """Have contact with the nodes of a run from now on, by the limits it was started with."""
        spec = self.contact.spec
        known = self._nodes
        order = plan.nodes[0].order
        taken_up = replace(
            spec,
            run_id=plan.run_id,
            cluster=plan.cluster,
            nodes=tuple(
                known.get(share.node) or Node(name=share.node, host=share.host)
                for share in plan.nodes
            ),
            grace_s=order.grace_s,
            lost_s=order.hub.lost_s if order.hub else spec.lost_s,
            disconnect_s=order.disconnect_s,
        )
        self.contact.turn_to(taken_up)
        return taken_up

    def reach(self) -> None:
        """Try all hosts of the cluster once more, those of a run or not.

        Raises:
            Interrupted: By a signal.
        """
        self.contact.turn_to(replace(self.contact.spec, nodes=tuple(self._nodes.values())))
        self.facts, self.silent = self.contact.gather_some(self._request, again=True)

    @contextlib.contextmanager
    def quietly(self) -> Iterator[None]:
        """Show no states of what is asked in here, again and again."""
        before, self._show = self._show, lambda _, __: None
        try:
            yield
        finally:
            self._show = before

    def asking(self, names: Container[str] | None = None) -> Asking:
        """Return a request to these hosts, or to all of them that answer."""
        spec, sessions = self.contact.spec, self.contact.sessions
        known = {n: s for n, s in sessions.items() if not s.closed}
        chosen = {n: s for n, s in known.items() if names is None or n in names}
        return Asking(chosen, self.contact.inbox, spec.lost_s, self._show)

    def _no_run(self, run_id: str) -> Problem:
        spec = self.contact.spec
        what = f"no run {run_id}" if run_id else "no run"
        where = f"{what} on the hosts of {spec.cluster}, in {spec.workdir}"
        if self.silent:
            where += f"; not asked: {', '.join(self.silent)}"
        return Problem("--run", where, f"python -m runner ps --all --cluster {spec.cluster}")


@contextlib.contextmanager
def hosts_of(
    composed: Composed, verb: str, *, plain: bool = False, gpus: bool = False
) -> Iterator[Hosts]:
    """Offer the hosts of a cluster for one verb; its end closes all, the console too.

    The verb's name is what people see who list the processes of a host. `plain` is a console
    that shows no states, `gpus` asks for what runs on the GPUs.

    Raises:
        NotReady: None of them answers.
    """
    names = [node.name for node in composed.spec.nodes]
    console = (
        Console(deserted=b"") if plain else open_console(composed.ui, composed.console_ranks, names)
    )
    with contact(replace(composed.spec, run_id=verb), console) as made:
        yield Hosts(made, gpus=gpus)


def _size(recorded: Recorded) -> tuple[int, int]:
    return recorded.plan.attempt, len(recorded.plan.nodes)


def _whole(seen: Mapping[str, RunSeen]) -> RunInfo:
    """Return what the host of the latest attempt says of the run."""
    return max((each.info for each in seen.values()), key=lambda info: info.attempt)


def _changed(run: Run) -> float:
    return max(each.changed for each in run.seen.values())


def _recorded(told: Mapping[str, Any], run_id: str) -> Recorded:
    """Return what a host has on record.

    Raises:
        ValueError, KeyError: It is not whole, or of another run.
    """
    plan, info = (json.loads(told[name]) for name in ("plan", "info"))
    recorded = Recorded(decode(Plan, plan), told["config"], decode(RunInfo, info))
    if recorded.plan.run_id != run_id:
        raise ValueError(f"it is of {recorded.plan.run_id!r}")
    return replace(recorded, info=replace(recorded.info, run_id=run_id))
