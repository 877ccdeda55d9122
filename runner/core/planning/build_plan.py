"""Planner: a pure function from the spec and the facts of all hosts to the plan, with its notes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace

from runner.core import shell
from runner.core.errors import NotReady, Problem, fold_names
from runner.core.planning import endpoints
from runner.core.planning.container import wrap
from runner.core.planning.launch_command import DEBUG_VARIABLE, NodeLaunch
from runner.core.planning.readiness import problems_of, visible_gpus, without_removed_env
from runner.core.spec import DEBUG_PORT, Node, Spec, Ssh
from runner.core.wire.facts import ASSUMED, Facts
from runner.core.wire.order import Notify, Order, environment
from runner.core.wire.plan import CodeRef, NodePlan, Plan
from runner.core.wire.text import counted

NO_CODE = CodeRef()

GUIDE = "docs/debugging.md"


def build_plan(
    spec: Spec,
    facts: Mapping[str, Facts],
    *,
    code: CodeRef = NO_CODE,
    attempt: int = 0,
    relaunches_left: int | None = None,
) -> Plan:
    """Return the plan of the run's n-th start, `attempt`, with the code that is sent with it.

    Spares that have facts stand by if another attempt may follow, by default as the spec says.

    Raises:
        NotReady: With all problems of all hosts.
    """
    left = spec.relaunch.max if relaunches_left is None else relaunches_left
    spares = [node for node in spec.spares if node.name in facts and left]
    facts = {n.name: without_removed_env(spec, n, facts[n.name]) for n in (*spec.nodes, *spares)}
    problems = [p for node in spec.nodes for p in problems_of(spec, node, facts[node.name])]
    problems = problems or endpoints.duplicate_addresses(spec, facts)
    if problems:
        raise NotReady(problems)
    made = _Attempt(spec, facts, spares, code, attempt, left)
    return Plan(
        run_id=spec.run_id,
        cluster=spec.cluster.name,
        task=spec.task.name,
        attempt=attempt,
        nodes=tuple(map(made.node_plan, spec.nodes)),
        spares=tuple(map(made.node_plan, spares)),
        world_size=made.world_size,
        backend=made.backend,
        master_addr=made.endpoints.addr,
        master_port=made.endpoints.port,
        rendezvous_reason=made.endpoints.reason,
        etcd_endpoint=spec.rendezvous.endpoint,
        secrets=tuple(spec.secrets),
        **asdict(code),
        image=spec.container.image or " ".join(spec.container.prefix),
        outputs=spec.task.outputs,
        notes=tuple(made.notes()),
        min_nodes=spec.min_nodes or 0,
        max_nodes=(spec.max_nodes or len(spec.nodes)) if spec.min_nodes else 0,
    )


def select_gpus(node: Node, facts: Facts) -> tuple[int, ...]:
    if node.gpu_ids:
        return node.gpu_ids
    visible = visible_gpus(facts)
    return visible if node.gpu_count is None else visible[: node.gpu_count]


class _Attempt:
    """What is decided of one attempt, from which the part of each node follows."""

    def __init__(
        self,
        spec: Spec,
        facts: Mapping[str, Facts],
        spares: Sequence[Node],
        code: CodeRef,
        number: int,
        relaunches_left: int,
    ) -> None:
        self._spec = spec
        self._facts = facts
        self._code = code
        self._number = number
        self._left = relaunches_left
        self.endpoints = endpoints.choose_endpoints(spec, facts, spares)
        self._nodes = {node.name: node for node in (*spec.nodes, *spares)}
        self.gpus = {name: select_gpus(node, facts[name]) for name, node in self._nodes.items()}
        self._nproc = {
            name: 1 if spec.task.is_plain else node.nproc_per_node or len(self.gpus[name]) or 1
            for name, node in self._nodes.items()
        }
        self.first_ranks: dict[str, int | None] = {}  # None if torch assigns them
        self.world_size = 0
        for node in spec.nodes:
            assigned = None if spec.rendezvous.torch_assigns_ranks else self.world_size
            self.first_ranks[node.name] = assigned
            self.world_size += self._nproc[node.name]
        self.without_cuda = [
            name
            for name in self.first_ranks
            if self.gpus[name] and facts[name].python.torch and not facts[name].python.torch_cuda
        ]
        self.backend = self._choose_backend()
        if spec.debug.rank is not None and spec.debug.rank >= self.world_size:
            legal = f"0 to {self.world_size - 1}" if self.world_size > 1 else "0 alone"
            message = f"there is no rank {spec.debug.rank}: this run has {legal}"
            raise NotReady([Problem("debug.rank", message)])

    def _choose_backend(self) -> str:
        asked = self._spec.cluster.backend
        without_cuda = self.without_cuda
        lacking = [each for each in self.first_ranks if len(self.gpus[each]) < self._nproc[each]]
        if asked == "auto":
            return "gloo" if lacking or without_cuda else "nccl"
        if asked == "nccl" and without_cuda:
            message = f"nccl needs a torch built for CUDA, and that of {without_cuda[0]} is not"
            hint = f"install one there (see {self._spec.master.python} -m pip install torch), or "
            raise NotReady([Problem("cluster.backend", message, f"{hint}set cluster.backend=gloo")])
        if asked == "nccl" and lacking:
            name = lacking[0]
            count = len(self.gpus[name])
            ranks = counted(self._nproc[name], "rank")
            message = f"nccl needs a GPU per rank, and {name} has {count} for {ranks}"
            other = "that of its accelerators: only NVIDIA's are counted"
            if count:
                other = f"fewer ranks with cluster.nodes.{name}.nproc_per_node"
            hint = f"set cluster.backend=gloo, or {other}"
            raise NotReady([Problem("cluster.backend", message, hint)])
        return asked

    def node_plan(self, node: Node) -> NodePlan:
        spec = self._spec
        host_facts = self._facts[node.name]
        interface = node.interface
        if not interface and spec.is_single_node:
            interface = next((i.name for i in host_facts.interfaces if i.loopback), "lo")
        interface = interface or endpoints.route_interface(host_facts, self.endpoints.route)
        facts = host_facts
        if spec.container:  # its Python is also that of our shim
            facts = replace(facts, host_python=facts.python.executable)
        if spec.container.engine:  # nothing of the host's environment is passed on
            facts = replace(facts, preset_env={})
        launch = NodeLaunch(
            spec=spec,
            node=node,
            facts=facts,
            code=self._code,
            gpus=self.gpus[node.name],
            nproc=self._nproc[node.name],
            backend=self.backend,
            interface=interface,
        )
        order = self._order(launch)
        command, arg_count = launch.typed_command(order)
        left_out = {*order.program.hidden, DEBUG_VARIABLE}
        node_plan = NodePlan(
            node=node.name,
            host=node.host,
            command=command,
            arg_count=arg_count,
            env={name: value for name, value in environment(order).items() if name not in left_out},
            ranks=order.ranks,
            gpus=launch.gpus,
            interface=interface,
            order=order,
            user=node.user or spec.cluster.ssh.user or "",
            port=node.port or spec.cluster.ssh.port or 0,
            setup=spec.setup_of(node),
        )
        if spec.container:
            return wrap(spec, node, host_facts, node_plan, self._code.tasks_hash)
        return node_plan

    def _order(self, launch: NodeLaunch) -> Order:
        spec = self._spec
        name = launch.node.name
        is_standby = name not in self.first_ranks
        return Order(
            run_id=spec.run_id,
            node=name,
            attempt=self._number,
            workdir=launch.facts.workdir,
            cwd=launch.cwd,
            program=launch.program(),
            node_rank=0 if is_standby else [*self.first_ranks].index(name),
            is_standby=is_standby,
            nnodes=len(spec.nodes),
            nproc=launch.nproc,
            first_rank=self.first_ranks.get(name),
            world_size=self.world_size,
            master_addr=self.endpoints.addr,
            master_port=self.endpoints.port,
            ports=self.endpoints.spare_ports,
            local_addr=self.endpoints.local_addrs.get(name, ""),
            min_nodes=spec.min_nodes or 0,
            max_nodes=spec.max_nodes or 0,
            release=self._code.release,
            keep=spec.task.keep,
            keep_place=self._code.keep_place if spec.task.keep else "",
            grace_s=spec.grace_s,
            disconnect_s=spec.disconnect_s,
            hub=self.endpoints.hub,
            stall_s=spec.watch.stall_s if spec.debug.rank is None else 0.0,
            stop_on_stall=spec.watch.action != "report",
            progress_pattern=spec.progress.pattern,
            sample_s=spec.sample_s,
            relaunches_left=self._left,
            relaunch_pause_s=spec.relaunch.delay_s(spec.relaunch.max - self._left + 1),
            relaunches_stalls=spec.watch.relaunches,
            decides=name == spec.deciding_node,
            notify=notify_part(spec) if launch.node is spec.master else None,
        )

    def notes(self) -> Iterator[str]:
        """Yield the decisions that the user should read."""
        spec = self._spec
        release = self._code.release
        if names := [
            n.name for n in spec.nodes if not self.gpus[n.name] and n.nproc_per_node is None
        ]:
            each = "1 rank" if len(names) == 1 else "1 rank each"
            if self._facts[names[0]].gpu_source == ASSUMED:
                yield f"the GPUs of {fold_names(names)} are found at launch: {each} is shown here"
            else:
                how_to_add = "" if spec.task.is_plain else " (cluster.nproc_per_node sets more)"
                yield f"no GPU on {fold_names(names)}: {each} on the CPU{how_to_add}"
        if names := self.without_cuda:
            yield f"GPUs, but a torch built without CUDA, on {fold_names(names)}: gloo is used"
        if spec.may_shrink and not spec.torchrun.max_restarts:
            yield (
                "torchrun.max_restarts is 0: nodes may join, and one that leaves ends the run "
                "(each one that leaves takes a restart of every node's)"
            )
        if spec.relaunch.max:
            times = "once" if spec.relaunch.max == 1 else f"up to {spec.relaunch.max} times in all"
            named = fold_names([node.name for node in spec.spares])
            spares = f"spare: {named}" if named else "no spare"
            yield f"if it fails it starts again, {times}; {spares}"
        if name := spec.deciding_node:
            yield f"the run ends when the program on {name} ends; the other nodes are stopped then"
        if spec.debug.rank is not None:
            yield self._debug_note(spec.debug.rank)
        if names := [n.name for n in spec.nodes if self._facts[n.name].awaits_environment]:
            yield f"environment not made yet on {fold_names(names)}: a launch makes it first"
        if names := [n.name for n in spec.nodes if release and not self._facts[n.name].has_release]:
            yield f"release {release} is not on {fold_names(names)} yet: a launch pushes it first"

    def _debug_note(self, rank: int) -> str:
        spec = self._spec
        firsts = [(self.first_ranks[node.name], node) for node in spec.nodes]
        nodes = [node for first, node in firsts if first is not None and first <= rank]
        node = spec.master if len(spec.nodes) == 1 else next(reversed(nodes), None)
        where = f" on {node.name}" if node and len(spec.nodes) > 1 else ""
        port = spec.debug.port or DEBUG_PORT
        how = f"have your editor attach to 127.0.0.1:{port}"
        if not node or node.transport != "local":
            how = f"`{ssh_forward(spec.cluster.ssh, node, port)}` in another terminal, and {how}"
        return f"rank {rank}{where} waits for a debugger: {how} ({GUIDE}); the hang watchdog is off"


def notify_part(spec: Spec) -> Notify | None:
    """Return what a host is to know to tell of a run, None where nobody is to be told."""
    if not spec.notify:
        return None
    nodes = tuple(node.name for node in spec.nodes)
    name = spec.cluster.name
    return Notify(spec.notify, name, spec.task.name, nodes, tuple(spec.secrets), spec.program)


def ssh_forward(ssh: Ssh, node: Node | None, port: int) -> str:
    """Return the line that brings a port of a node's loopback here; None is any node, as HOST."""
    usual = Ssh()
    words = ["ssh", "-N", "-L", f"{port}:127.0.0.1:{port}"]
    if ssh.config != usual.config:
        words += ["-F", shell.path(ssh.config)]
    if ssh.key:
        words += ["-i", shell.path(ssh.key)]
    if ssh.known_hosts != usual.known_hosts:
        words += ["-o", shell.quote(f"UserKnownHostsFile={ssh.known_hosts}")]
    if ssh.jump:
        words += ["-J", shell.quote(",".join(ssh.jump))]
    if user := (node and node.user) or ssh.user:
        words += ["-l", shell.quote(user)]
    if sshd_port := (node and node.port) or ssh.port:
        words += ["-p", str(sshd_port)]
    words.append(shell.quote(node.host) if node else "HOST")
    return " ".join(words)
