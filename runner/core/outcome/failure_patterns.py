"""Known failures as data: what a log shows, what it means and what to do about it.

The first pattern that matches counts: causes come before their consequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple


@dataclass(frozen=True)
class FailurePattern:
    """One known failure."""

    name: str  # in `result.json`
    pattern: str  # searched for in the last lines; `name2` is another group `name`
    meaning: str  # as a sentence without a full stop
    remedy: str  # the key, or the command; "{program}" is this one
    # Both ask what they name: "{x}", a group or a fact (`rank_facts`, `diagnose`), "{x|OTHERWISE}",
    # or "{x:TEXT}", which is left out where x is not known, with x in place of "?".


FAILURE_PATTERNS: Tuple[FailurePattern, ...] = (
    FailurePattern(
        "unattended",
        r"^no controller was attached for",
        "its terminal or the connection was gone for the time that disconnect_s allows",
        "disconnect_s=never, or d in attach, lets it go on alone",
    ),
    FailurePattern(
        "memory",
        r"(?P<cgroup>Memory cgroup out|Out) of memory: Killed process|"
        r"the memory limit of its container",
        "memory ran out on that host, and the kernel killed the rank",
        "use fewer data loader workers, smaller batches or fewer ranks there, or raise the limit "
        "if it says 'cgroup' or 'container' (container.extra); max_rss in result.json is the "
        "memory of the rank",
    ),
    FailurePattern(
        "local_rank_unknown",
        r"error: unrecognized arguments:.*?(?P<flag>--local[-_]rank)\b",
        "the program does not take {flag}",
        "if its usage has the name in another spelling, such as --local_rank: task.entry=torchrun "
        "task.local_rank_arg=--local_rank; else have it read LOCAL_RANK from its environment: "
        "task.entry=torchrun task.local_rank_arg=null passes no argument",
    ),
    FailurePattern(
        "local_rank_wanted",
        r"error: the following arguments are required:.*(?P<flag>--local[-_]rank)\b",
        "the program requires {flag}, and did not get it",
        "task.entry=torchrun task.local_rank_arg={flag} passes it, or have the program read "
        "LOCAL_RANK from its environment",
    ),
    FailurePattern(
        "local_rank_missing",
        r"^KeyError: '(?P<name>LOCAL_RANK|LOCAL_WORLD_SIZE)'",
        "the program reads {name}, which torchrun sets for each of its ranks; with "
        "task.entry=plain it is started once per node, without",
        "task.entry=torchrun starts a process per GPU",
    ),
    FailurePattern(
        "lightning_size",
        r"You set `devices=(?P<devices>\d+)` and `num_nodes=(?P<nodes>\d+)` in Lightning.*"
        r"does not match the world size \((?P<ranks>\d+)\)",
        "Lightning was told num_nodes={nodes} and devices={devices}, and the run has {ranks} ranks",
        "give its Trainer num_nodes=int(os.environ['GROUP_WORLD_SIZE']) and "
        "devices=int(os.environ['LOCAL_WORLD_SIZE']), or start what it asks for: "
        "task.nnodes={nodes} cluster.nproc_per_node={devices}",
    ),
    FailurePattern(
        "argument_unknown",
        r"error: unrecognized arguments: .*?(?P<argument>--[\w-]+)",
        "the program does not take {argument}",
        "words after -- and keys of task.args are the program's own arguments: see its usage above",
    ),
    FailurePattern(
        "debugger",
        r"^bdb\.BdbQuit",
        "a breakpoint was reached, and ranks have no terminal to type in",
        "take it out, or give it a debugger: debug.rank=R starts rank R under debugpy and waits "
        "for your editor (docs/debugging.md); for pdb, debug one rank here: with cluster=local "
        "cluster.nproc_per_node=1 dry_run=true the launch prints a command; paste that into a "
        "terminal",
    ),
    FailurePattern(
        "port_taken",
        r"(?:\bport: (?P<port>\d+).*)?(?:EADDRINUSE|[Aa]ddress already in use)",
        "port{port: ?} was already taken",
        "if the program opens a port of its own, let it choose a free one; the runner's is "
        "cluster.master_port (auto, or a range), reserved for what sets SO_REUSEADDR, as torch",
    ),
    FailurePattern(
        "start_not_permitted",
        r"^could not start: .*(?:Permission denied|Operation not permitted|Read-only file system)"
        r"(?: \((?P<path>[^()]+)\))?",
        "the user of that login may not write{path: in ?} there",
        "make the folder writable for that user, or set cluster.workdir to one that is",
    ),
    FailurePattern(
        "gpu_memory",
        r"CUDA out of memory\. Tried to allocate (?P<much>[\d.]+ \w+)",
        "the GPU's memory ran out: {much} more were requested",
        "use a smaller batch; if another process holds it, `{program} ps` names that",
    ),
    FailurePattern(
        "no_gpu",
        r"No CUDA GPUs are available|no CUDA-capable device is detected|"
        r"Torch not compiled with CUDA enabled|Found no NVIDIA driver|"
        r"ProcessGroupNCCL is only supported with GPUs|doesn't have NCCL built in",
        "torch sees no GPU there",
        "to train without, have the program use the device cpu unless torch.cuda.is_available(), "
        "and the backend in DIST_BACKEND (cluster.backend=gloo); where there is one, nvidia-smi "
        "tries its driver, task.env.CUDA_VISIBLE_DEVICES=null takes out what hides it, and torch "
        "has to be a CUDA build",
    ),
    FailurePattern(
        "gpu_ordinal",
        r"CUDA error: invalid device ordinal",
        "a rank chose a GPU that it does not have",
        "use LOCAL_RANK as the device index, and as many ranks as GPUs (nproc_per_node: auto)",
    ),
    FailurePattern(
        "nccl_versions",
        r"[Mm]ismatched NCCL version|NCCL version mismatch",
        "the nodes have different versions of NCCL",
        "install the same torch on all of them: `{program} check` names the hosts that differ",
    ),
    FailurePattern(
        "nccl_no_route",
        r"Connect to (?P<peer>\S+?)(?:<\d+>)? (?:failed|returned).*?"
        r"(?:No route to host|Connection refused|Connection timed out|Network is unreachable)",
        "NCCL could not reach {peer} over the interface it uses",
        "set cluster.nodes.NODE.interface (or NCCL_SOCKET_IFNAME) to the one the nodes share, "
        "and open the ports between them",
    ),
    FailurePattern(
        "gloo_loopback",
        # A group in a lookahead is not tried again: the parts are found in linear time.
        r"connectFullMesh failed.*remote=\[(?:127\.|::1)|"
        r"^(?=(.*?[Gg]loo))\1(?=(.*?(?:connect|Connection refused)))\2"
        r"(?=(.*?\[?(?:127\.0\.\d+\.\d+|::1)\]?:\d+))\3",
        "gloo told the other nodes that this one is at its loopback address",
        "its own name resolves to 127.x there: set cluster.nodes.NODE.interface (or "
        "GLOO_SOCKET_IFNAME) to the one the nodes share, or fix its /etc/hosts",
    ),
    FailurePattern(
        "gloo_interface",
        r"Unable to find address for: (?P<name>[\w.:@=-]+)",
        "gloo was told to use {name}, which has no address on that host",
        "take GLOO_SOCKET_IFNAME out of cluster.env, task.env, cluster.setup and the program, as "
        "the runner sets it, or set cluster.nodes.NODE.interface to one of `ip -br addr` there",
    ),
    FailurePattern(
        "ranks_missing",
        r"Timed out after (?P<seconds>\d+) seconds waiting for (?:clients|workers)\. "
        r"(?P<there>\d+)/(?P<all>\d+) (?:clients|workers) joined",
        "only {there} of {all} joined the rendezvous within {seconds} s",
        "the others are slow to start, or cannot reach the master's port: see their logs",
    ),
    FailurePattern(
        "master_refused",
        r"The client socket has (?:failed to connect|timed out).*?\((?P<where>[^()]*)\)|"
        r"The server socket at .* has (?:failed|timed out)",
        "the master could not be reached{where: at ?}",
        "no process listens there (yet), or a firewall is in between: open the ports of "
        "cluster.master_port, or choose the address with cluster.nodes.MASTER.addr",
    ),
    FailurePattern(
        "module_missing",
        r"(?:ModuleNotFoundError|^\S*python[\d.]*): No module named '?(?P<module>\w[\w.-]*)",
        "the interpreter there has no module {module}",
        "install it there, or set cluster.python or cluster.setup to the environment that has it",
    ),
    FailurePattern(
        "relative_import",
        r"attempted relative import with no known parent package",
        "a script belongs to no package, and cannot import relative to one",
        "task.module=PACKAGE.MODULE instead of task.script starts it as a module of its package",
    ),
    FailurePattern(
        "home_unexpanded",
        r"FileNotFoundError: \[Errno 2\] No such file or directory: '"
        r"(?P<path>~(?P<rest>/[^']*)?)'",
        "there is no {path} on that host: a ~ in an argument is not expanded",
        "write the path out; if your home has the same path there as here, that is $HOME{rest} on "
        "the command line and ${oc.env:HOME}{rest} in YAML",
    ),
    FailurePattern(
        "file_missing",
        r"FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<path>[^']+)'",
        "there is no {path} on that host",
        "data are not pushed with the code: copy them there, or set their path; files of "
        "the project are pushed unless git or .runnerignore ignore them",
    ),
    FailurePattern(
        "nccl_watchdog",
        r"Watchdog caught collective operation timeout",
        "a collective was not joined by all ranks in time",
        "the missing rank hangs or has left: the others only waited for it",
    ),
    FailurePattern(
        "nccl_system",
        r"NCCL.*unhandled system error|ncclSystemError",
        "NCCL failed in the operating system, mostly in the network",
        "NCCL_DEBUG=INFO in cluster.env shows where; look for the first rank that failed",
    ),
    FailurePattern(
        "start_failed",
        r"^could not start: ",
        "the supervisor could not make its run there; no rank was started",
        "`{program} check` looks at the hosts again; a folder elsewhere is cluster.workdir",
    ),
    FailurePattern(
        "peer_left",
        # A connection of the program's own is `server_closed`.
        r"^(?=.*?(?:gloo/|ProcessGroup|Dist\w*Error|TCPStore|c10d|NCCL|^RuntimeError: [CB]))"
        r".*?(?:(?:closed|reset) by (?:remote )?peer|Broken pipe|Connection was likely closed)",
        "another rank left while this one talked to it",
        "look for the rank that raised, returned early, or was killed",
    ),
    FailurePattern(
        "shell_exit",
        r"\A.*exited with (?P<code>12[67])$",
        "a shell exits with 127 if it finds no such program, with 126 if it cannot execute it",
        "`bash -x SCRIPT` shows each command before it starts",
    ),
)
