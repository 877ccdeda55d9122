"""Plan notes: the decisions of a plan that the user should read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from runner.core import shell
from runner.core.spec import DEBUG_PORT, Node, Spec, Ssh
from runner.core.wire.facts import ASSUMED, Facts

GUIDE = "docs/debugging.md"

FoldNames = Callable[[Sequence[str]], str]


def plan_notes(
    spec: Spec,
    facts: Mapping[str, Facts],
    *,
    gpus: Mapping[str, tuple[int, ...]],
    first_ranks: Mapping[str, int | None],
    without_cuda: Sequence[str],
    release: str,
    fold_names: FoldNames,
) -> Iterator[str]:
    """Yield the notes of a plan; `without_cuda` are nodes whose torch cannot use their GPUs."""
    if names := [n.name for n in spec.nodes if not gpus[n.name] and n.nproc_per_node is None]:
        each = "1 rank" if len(names) == 1 else "1 rank each"
        if facts[names[0]].gpu_source == ASSUMED:
            yield f"the GPUs of {fold_names(names)} are found at launch: {each} is shown here"
        else:
            how_to_add = "" if spec.task.is_plain else " (cluster.nproc_per_node sets more)"
            yield f"no GPU on {fold_names(names)}: {each} on the CPU{how_to_add}"
    if without_cuda:
        yield f"GPUs, but a torch built without CUDA, on {fold_names(without_cuda)}: gloo is used"
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
        yield _debug_note(spec, spec.debug.rank, first_ranks)
    if names := [n.name for n in spec.nodes if facts[n.name].awaits_environment]:
        yield f"environment not made yet on {fold_names(names)}: a launch makes it first"
    if names := [n.name for n in spec.nodes if release and not facts[n.name].has_release]:
        yield f"release {release} is not on {fold_names(names)} yet: a launch pushes it first"


def _debug_note(spec: Spec, rank: int, first_ranks: Mapping[str, int | None]) -> str:
    firsts = [(first_ranks[node.name], node) for node in spec.nodes]
    nodes = [node for first, node in firsts if first is not None and first <= rank]
    node = spec.master if len(spec.nodes) == 1 else next(reversed(nodes), None)
    where = f" on {node.name}" if node and len(spec.nodes) > 1 else ""
    port = spec.debug.port or DEBUG_PORT
    how = f"have your editor attach to 127.0.0.1:{port}"
    if not node or node.transport != "local":
        how = f"`{ssh_forward(spec.cluster.ssh, node, port)}` in another terminal, and {how}"
    return f"rank {rank}{where} waits for a debugger: {how} ({GUIDE}); the hang watchdog is off"


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
