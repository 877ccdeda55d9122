"""Launch command: the program of a node's order, and the command as a person would type it."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

from runner.core.spec import DEBUG_PORT, Node, Spec
from runner.core.wire.facts import Facts, Interpreter
from runner.core.wire.order import (
    NO_PYTHON,
    RECORDER_PATH_VARS,
    Order,
    Program,
    escape,
    torchrun_options,
)
from runner.core.wire.paths import RunPaths, tasks_folder
from runner.core.wire.plan import CodeRef

TORCHRUN_MODULE = "torch.distributed.run"

CPP_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"
"""torch's own variable for the least severe messages of its C++ code that are printed."""

TORCHRUN_EXTRA_GRACE_S = 10
"""torchrun kills rank shims with their ranks: its timeout is longer than ours, so that shims can
record how their ranks ended."""

SYSTEM_FOLDERS = ("/usr/bin", "/usr/local/bin", "/bin")
"""The folders of programs that are on every PATH, with much else than an interpreter in them."""

NO_SHARED_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""For nodes that come and go: torch would keep the address of the first store
(`_bootstrap_store_info` in torch/distributed/elastic/rendezvous/dynamic_rendezvous.py), and the
remaining nodes would look for a rank 0 that has left."""

DEBUG_VARIABLE = "RUNNER_DEBUG_RANK"
"""RANK:PORT, by which the shim (`host/ranks/shim.py`) starts debugpy; ranks do not get it."""

RECORDER_SIZE_VARS = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""Variables that switch on torch's flight recorder, by their new and their old name."""

UNBUFFERED = "-u"
"""torchrun starts Python with this option, too: output reaches the log at once."""


@dataclass(frozen=True)
class NodeLaunch:
    """What is decided of a node, and the program and the command that follow from it."""

    spec: Spec
    node: Node
    facts: Facts  # as its ranks meet them, which in a container are not quite those of the host
    code: CodeRef
    gpus: tuple[int, ...]
    nproc: int
    backend: str
    interface: str

    @property
    def _paths(self) -> RunPaths:
        return RunPaths(self.facts.workdir, self.spec.run_id, self.node.name)

    @property
    def cwd(self) -> str:
        if self.spec.task.shipped_file:
            return self._paths.work
        if not self.code.release:
            return self.facts.project
        return posixpath.join(self._paths.work, self.code.subdirectory).rstrip("/")

    @property
    def _script(self) -> str:
        """The path of the script on the host, "" for a module or a command."""
        task = self.spec.task
        if task.shipped_file:
            folder = tasks_folder(self.facts.workdir, self.code.tasks_hash)
            return posixpath.join(folder, task.shipped_file)
        return (self.code.script or task.target) if task.kind == "script" else ""

    def program(self) -> Program:
        spec = self.spec
        task = spec.task
        python = self.facts.python
        script = self._script
        words: tuple[str, ...] = (task.target,)
        if task.kind != "command":
            words = (python.executable, UNBUFFERED, *((script,) if script else ("-m", task.target)))
        rank_env = self._rank_environment()
        env = {**NO_SHARED_STORE, **rank_env} if spec.elastic else {**rank_env}
        hidden: tuple[str, ...] = spec.removed_env_of(self.node)
        launcher: tuple[str, ...] = ()
        if not task.without_torchrun:
            internal_env = self._internal_env()
            env.update(internal_env)
            internal_names = ("PET_LOG_DIR", *internal_env)
            hidden = (*internal_names, *hidden)
            launcher = (python.executable, *_module_start(python))
            # One process of a node imports for its ranks, unless each has a memory policy.
            has_policy = any(option.startswith("--numa") for option in spec.torchrun.extra)
            if task.preload and task.kind != "command" and not has_policy:
                launcher = (
                    python.executable,
                    UNBUFFERED,
                    self._paths.preload,
                    ",".join(task.preload),
                    ",".join(internal_names),
                    script or f"-m{task.target}",
                    TORCHRUN_MODULE,
                )
        if spec.debug.rank is not None:
            env[DEBUG_VARIABLE] = f"{spec.debug.rank}:{spec.debug.port or DEBUG_PORT}"
        has_record = any(rank_env.get(name, "0") != "0" for name in RECORDER_SIZE_VARS)
        return Program(
            entry=task.entry,
            launcher=launcher,
            options=spec.torchrun.extra,
            rdzv_backend=spec.rendezvous.backend,
            rdzv_endpoint=spec.rendezvous.endpoint,
            rdzv_conf=spec.torchrun.rdzv_conf,
            max_restarts=spec.torchrun.max_restarts,
            words=words,
            args=task.words,
            env=env,
            hidden=hidden,
            path_folder=self._path_folder(),
            host_python=self.facts.host_python or spec.cluster.host_python,
            dumps_stacks=spec.watch.stacks == "auto",
            records_flight=has_record and not any(name in rank_env for name in RECORDER_PATH_VARS),
        )

    def typed_command(self, order: Order) -> tuple[tuple[str, ...], int]:
        """Return the command of an order without our shim.

        Returns:
            The command, and how many words at its end are arguments of the program.
        """
        task = self.spec.task
        program = order.program
        removed = [word for name in self.spec.removed_env_of(self.node) for word in ("-u", name)]
        before = ("env", *removed) if removed else ()
        if task.is_plain:
            return (*before, *program.words, *program.args), len(program.args)
        if order.spawns_ranks:
            words = (*program.words, *program.args)
            return ("srun", f"--ntasks-per-node={order.nproc}", *words), len(program.args)
        python = self.facts.python
        launcher = (python.executable, *_module_start(python), *torchrun_options(order))
        args = tuple(map(escape, program.args))
        if before:  # torchrun may set them itself, just before
            shown = (*NO_PYTHON, *before, *map(escape, program.words), *args)
        elif task.kind == "command":
            shown = (*NO_PYTHON, task.target, *args)
        elif script := self._script:
            shown = ("--", escape(script), *args)
        else:
            shown = ("-m", "--", escape(task.target), *args)
        return (*launcher, *shown), len(args)

    def _internal_env(self) -> dict[str, str]:
        """Return variables for torchrun, hidden from ranks and left out of pasted commands.

        With c10d the store ends with the master's torchrun. The others then print C++ stack traces
        of connections that were closed or have broken pipes, also where every rank has succeeded.
        """
        spec = self.spec
        env = {"PET_SHUTDOWN_TIMEOUT": str(round(spec.grace_s) + TORCHRUN_EXTRA_GRACE_S)}
        is_own = CPP_LOG_LEVEL in self.facts.preset_env or CPP_LOG_LEVEL in spec.env_of(self.node)
        if spec.rendezvous.backend == "c10d" and not is_own:
            env[CPP_LOG_LEVEL] = "ERROR"
        return env

    def _path_folder(self) -> str:
        """Return the folder of the task's interpreter, which comes first on the PATH of programs.

        "" where a PATH of the user's says what is found, where the interpreter was itself found on
        the host's, and for the system's own: /usr/bin must not come before what `cluster.setup` put
        there.
        """
        folder = posixpath.dirname(self.facts.python.executable)
        is_named = "/" in self.spec.python_of(self.node)
        has_path = "PATH" in self.spec.env_of(self.node)
        return folder if is_named and not has_path and folder not in SYSTEM_FOLDERS else ""

    def _rank_environment(self) -> dict[str, str]:
        """Return our variables, overridden by the cluster's, the node's, and the task's."""
        spec = self.spec
        node = self.node
        env = {
            "DIST_BACKEND": self.backend,
            "OMP_NUM_THREADS": str(max(1, int(self.facts.cores / self.nproc))),
            "RUNNER_RUN_ID": spec.run_id,
            "RUNNER_NODE": node.name,
        }
        if self.facts.environment:
            env["RUNNER_PREPARED"] = self.facts.environment
        if self.interface:
            env["GLOO_SOCKET_IFNAME"] = self.interface
            env["TP_SOCKET_IFNAME"] = self.interface
            env["NCCL_SOCKET_IFNAME"] = f"={self.interface}"
        preset = self.facts.preset_env
        env = {name: value for name, value in env.items() if name not in preset}
        if node.gpu_ids or node.gpu_count is not None:
            if self.gpus:
                env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as in the facts; CUDA's: fastest first
            # In an engine's container those that it was given are numbered anew.
            shown = range(len(self.gpus)) if spec.container.engine else self.gpus
            env["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in shown)
        given = spec.env_of(node)
        env.update(given)
        if self.code.release:
            env["RUNNER_RELEASE"] = self.code.release
        if self.code.commit:
            env["RUNNER_COMMIT"] = self.code.commit
        if self.code.python_path and "PYTHONPATH" not in spec.removed_env_of(node):
            pushed = self.code.python_path
            folders = [posixpath.normpath(posixpath.join(self.cwd, each)) for each in pushed]
            if own := given.get("PYTHONPATH"):
                folders.insert(0, own)
            elif self.facts.python.python_path:
                folders.append(self.facts.python.python_path)
            env["PYTHONPATH"] = ":".join(folders)
        return env


def _module_start(python: Interpreter) -> tuple[str, ...]:
    """Return the words that start torchrun; `python -m` alone prefers the user's modules."""
    match = re.match(r"(\d{1,4})\.(\d{1,4})", python.version)
    if match is None:  # no host was asked
        return ("-m", TORCHRUN_MODULE)
    if (int(match[1]), int(match[2])) >= (3, 11):
        return ("-P", "-m", TORCHRUN_MODULE)
    call = f"from {TORCHRUN_MODULE} import main; sys.exit(main())"
    return ("-c", f"import sys; del sys.path[0]; {call}")
