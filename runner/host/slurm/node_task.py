"""Task of a job on one node: reports the node's facts, and starts the supervisor by its order.

The first node plans for all. What nodes tell each other are files on their common disk: they can
reach each other there before any of them knows an address of another.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from dataclasses import replace
from typing import Any, Dict, List, Mapping, NoReturn, Optional, Tuple

from runner.core import descriptor_limit
from runner.core.codec import decode, encode
from runner.core.errors import NotReady, Problem
from runner.core.model.facts import Facts, FactsRequest
from runner.core.model.plan import Order
from runner.core.model.slurm import UNSEEN
from runner.core.planning.readiness import facts_request
from runner.core.protocol.events import PeerLost
from runner.core.protocol.paths import RunPaths, StartPaths
from runner.core.relaunch.handover import RelaunchContext
from runner.core.relaunch.next_attempt import plan_in_job
from runner.host.facts.collect import FactsResult, collect
from runner.host.peers.election import ElectionContext
from runner.host.process import procfs, subreaper
from runner.host.process.event_loop import run_steps
from runner.host.process.importer import HostCode
from runner.host.slurm import commands, shared_files
from runner.host.slurm.job_folder import JobSettings, job_paths, past_attempts, start_number
from runner.host.storage import run_owner
from runner.host.storage.run_folder import has_ended, read_events, read_order, write_atomic
from runner.host.storage.run_owner import RunSocket
from runner.host.supervisor import guardian
from runner.host.supervisor.attempt import Scheduled, SupervisorArgs
from runner.host.supervisor.start import prepare, with_numeric_hub

NOT_STARTED = 3
START_SPREAD_S = 60.0  # how much later than the first node the last one may start
READY_TIMEOUT_S = 20.0
POLL_S = 0.1
LOST_WAIT_S = 30.0  # for the other nodes to end, where one is lost
LOGS_S = 1.0  # in which their tasks end


def main(code: HostCode) -> NoReturn:
    """Do the work of the task that the command line names; exit with 0 once a supervisor ended."""
    descriptor_limit.raise_to_hard()
    subreaper.become_subreaper()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # as in an agent
    root, nonce = sys.argv[2:4]
    try:
        task = NodeTask(root, nonce, code.programs)
        signal.signal(signal.SIGTERM, lambda *_: task.on_term())
        task.run()
    except (NotReady, OSError, ValueError) as error:
        print(f"runner: {error}", file=sys.stderr)
        sys.exit(NOT_STARTED)
    sys.exit(0)


class NodeTask:
    """The task on one node."""

    def __init__(self, root: str, nonce: str, programs: Mapping[str, str]) -> None:
        self.node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
        self._programs = programs
        self._folder: Optional[RunPaths] = None  # once it has, or is about to have, a supervisor
        self._paths = job_paths(root)
        if procfs.read_text(self._paths.nonce) != nonce:
            raise NotReady([Problem(self.node, UNSEEN.format(root))])
        self._number = start_number(os.environ)
        self._start: StartPaths = self._paths.start(self._number)
        with open(self._start.nodes, encoding="ascii") as file:
            self._names = file.read().split()
        self._context = decode(RelaunchContext, shared_files.read(self._paths.context))

    def run(self) -> None:
        """Report the facts, plan if this is the first node, and start the supervisor to its end."""
        if self.node == self._names[0]:
            step = (os.environ.get(f"SLURM_{name}_ID", "") for name in ("JOB", "STEP"))
            write_atomic(self._start.step, ".".join(step))
        request = self._request()
        result = run_steps(collect(request))
        folder = RunPaths(result.facts.workdir, request.run_id, self.node)
        exists = not self._number and os.path.isdir(folder.root)
        facts = replace(result.facts, run_exists=exists)
        shared_files.write(self._start.facts(self.node), encode(facts))
        if self.node == self._names[0]:
            shared_files.write(self._start.orders, self._orders(request))
        self._carry_out(self._await_orders(request), request, result)

    def _scheduled(self) -> Scheduled:
        settings, slurm = JobSettings(self._paths), self._context.spec.slurm
        scheduled = Scheduled(
            self._start.commands(self.node),
            settings.kill_wait_s,
            signals_all=not settings.tracks_by_cgroup,
        )
        if slurm is None or not slurm.signal_before:
            return scheduled
        stop_after_s = slurm.stop_after_s if slurm.requeue else None
        limit_signal = signal.Signals[slurm.signal]
        return scheduled._replace(limit_signal=limit_signal, stop_after_s=stop_after_s)

    def on_term(self) -> None:
        """Pass a TERM on to the supervisor: some sites send it to the tasks of a step alone."""
        if self._folder is None:
            sys.exit(128 + signal.SIGTERM)
        procfs.signal_all(run_owner.live_owner_pids(self._folder), signal.SIGTERM)

    def _request(self) -> FactsRequest:
        spec = self._context.spec.on_nodes(self._names)
        node = (*spec.nodes, *spec.spares)[self._names.index(self.node)]
        return facts_request(spec, node, self._context.code)

    def _orders(self, request: FactsRequest) -> Dict[str, Any]:
        """Return the orders of all nodes, or the problems that keep the run from starting."""
        limit_s = START_SPREAD_S + request.setup_timeout_s + request.tools_limit_s
        try:
            facts, missing = self._await_facts(time.monotonic() + limit_s)
            if missing:
                message = f"it reported no facts within {limit_s:.0f} s of the first node"
                raise NotReady([Problem(name, message, "see its log") for name in missing])
            past = past_attempts(self._paths, self._number)
            attempt = plan_in_job(self._context, self._names, facts, past)
        except NotReady as error:
            return {"problems": [encode(problem) for problem in error.problems]}
        except (OSError, ValueError) as error:  # the other nodes wait for an answer
            hint = f"see the files in {self._start.root}"
            return {"problems": [encode(Problem(self.node, f"cannot plan the run: {error}", hint))]}
        return {
            "orders": encode(attempt.orders.orders),
            "plan": encode(attempt.orders.plan),
            "context": encode(attempt.context),
        }

    def _await_facts(self, deadline: float) -> Tuple[Dict[str, Facts], List[str]]:
        facts: Dict[str, Facts] = {}
        while True:
            missing = [name for name in self._names if name not in facts]
            for name in missing:
                if (data := shared_files.read(self._start.facts(name))) is not None:
                    facts[name] = decode(Facts, data)
            missing = [name for name in missing if name not in facts]
            if not missing or time.monotonic() > deadline:
                return facts, missing
            time.sleep(POLL_S)

    def _await_orders(self, request: FactsRequest) -> Dict[str, Any]:
        limit_s = 2 * START_SPREAD_S + request.setup_timeout_s + request.tools_limit_s
        deadline = time.monotonic() + limit_s
        while (orders := shared_files.read(self._start.orders)) is None:
            if time.monotonic() > deadline:
                message = f"{self._names[0]} has planned nothing within {limit_s:.0f} s"
                raise NotReady([Problem(self.node, message)])
            time.sleep(POLL_S)
        if problems := orders.get("problems"):
            raise NotReady([decode(Problem, problem) for problem in problems])
        if os.path.exists(self._paths.cancelled):
            raise NotReady([Problem(self.node, "its run was cancelled")])
        return dict(orders)

    def _carry_out(
        self, orders: Mapping[str, Any], request: FactsRequest, result: FactsResult
    ) -> None:
        order = with_numeric_hub(decode(Order, orders["orders"][self.node]))
        context = decode(RelaunchContext, orders["context"])
        folder = RunPaths(order.workdir, order.run_id, order.node)
        private: Dict[str, Any] = shared_files.read(self._paths.secrets) or {}
        listener = RunSocket(folder).take()
        if listener is None:
            raise ValueError(f"run {order.run_id} has a supervisor on {self.node} already")
        args = SupervisorArgs(
            folder,
            order,
            {**result.environ, **private.get("secrets", {})},
            result.reserved,
            str(private.get("token", "")).encode(),
            ElectionContext(context, request, self._programs) if order.voter_count else None,
            scheduled=self._scheduled(),
        )
        record = {
            "info": encode(context.info),
            "plan": orders["plan"],
            "config": context.config_yaml,
        }
        pipe: Optional[int] = None

        def spawn(log_fd: int) -> None:
            nonlocal pipe
            pipe = guardian.spawn(args, listener, log_fd)
            os.close(log_fd)

        self._folder = folder
        with listener:
            for call in prepare(folder, order, self._programs, record, spawn):
                if call is not None:
                    call()
        result.reserved.close()
        if pipe is not None:
            _await_end(pipe, self._start.begun(self.node), order.attempt)
            self._end_without_lost(folder)

    def _end_without_lost(self, folder: RunPaths) -> None:
        """Have Slurm end the step if a node is lost: it may take minutes to notice that itself.

        The first node that is left does so, once the others have ended, or have had the time to.
        """
        order = read_order(folder)
        events = [
            event for event in read_events(folder) if order and event.attempt == order.attempt
        ]
        lost = {event.body.peer for event in events if isinstance(event.body, PeerLost)}
        alive = [name for name in self._names if name not in lost]
        if order is None or not lost or alive[:1] != [self.node]:
            return
        others = [RunPaths(order.workdir, order.run_id, name) for name in alive]
        deadline = time.monotonic() + LOST_WAIT_S
        while time.monotonic() < deadline and not all(has_ended(o, order) for o in others):
            time.sleep(POLL_S)
        time.sleep(LOGS_S)
        settings, step = JobSettings(self._paths), procfs.read_text(self._start.step)
        command, target = ["scancel"], step
        if self.node != self._names[0] and not settings.is_shared:  # its script is lost, too
            command = ["scontrol", "requeue"] if settings.is_requeued else command
            target = step.partition(".")[0]
        run_steps(commands.run([*command, target]))


def _await_end(pipe: int, begun_file: str, attempt: int) -> None:
    """Wait for the report of the guardian, then for its end, and that of all it left to us."""
    if select.select([pipe], [], [], READY_TIMEOUT_S)[0]:
        report = os.read(pipe, 65536)
        if report != guardian.READY:
            raise ValueError(report.decode(errors="replace") or "its guardian ended at once")
    os.close(pipe)
    shared_files.write(begun_file, attempt)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return
