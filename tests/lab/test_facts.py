"""Facts of this very machine: real shells, interpreters, drivers, folders and ports."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.core.codec import decode, encode
from runner.core.model.facts import Driver, Facts, FactsRequest, GpuHealth, GpuProcess
from runner.host.facts import collect as collecting
from runner.host.facts import ports
from runner.host.facts.collect import FactsResult
from runner.host.process import bounded_child, procfs
from tests.lab.fake_gpus import NAME, FakeGpu, LocalGpus
from tests.lab.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.promise(3)]

REPO = Path(__file__).parents[2]
PYENV = Path("/root/.pyenv/versions")
OLDEST, NEWEST, TOO_OLD, ANCIENT = (
    PYENV / name / "bin/python" for name in ("3.8.18", "3.13.0", "3.7.16", "2.7.18")
)
HERE = Path(sys.executable)
INTERPRETERS = [HERE, *(path for path in (OLDEST, NEWEST) if path.exists())]

DRIVER = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from runner.core.codec import decode, encode
from runner.core.model.facts import FactsRequest
from runner.host.facts.collect import collect
told = collect(decode(FactsRequest, json.loads(sys.argv[2])))
held = told.reserved.numbers[0]
print(json.dumps({"facts": encode(told.facts), "environ": told.environ, "held": held}))
"""


def request(**wanted: Any) -> FactsRequest:
    """Return a request that asks for as little as can be, but for what is `wanted`."""
    return replace(FactsRequest("n1", python=sys.executable), **wanted)


def collect(asked: FactsRequest) -> FactsResult:
    return collecting.collect(asked)


def under(asked: FactsRequest, python: Path = HERE, **options: Any) -> dict[str, Any]:
    """Collect in a process of its own; its standard output must be the answer and nothing else."""
    argv = [str(python), "-I", "-c", DRIVER, str(options.pop("code", REPO)), packed(asked)]
    done = subprocess.run(argv, capture_output=True, check=False, timeout=60 * PATIENCE, **options)
    assert (done.returncode, done.stderr) == (0, b"")
    answer: dict[str, Any] = json.loads(done.stdout)
    answer["facts"] = decode(Facts, answer["facts"])
    return answer


def packed(asked: FactsRequest) -> str:
    return json.dumps(encode(asked))


def setting_up(*lines: str, **wanted: Any) -> FactsResult:
    return collect(request(setup=lines, **wanted))


def wait_for_end_of(pid: int) -> None:
    """Return once the process is gone, or but a zombie that its new parent has yet to reap."""
    status = Path(f"/proc/{pid}/stat")
    wait_until(
        lambda: not status.exists() or status.read_text().rpartition(")")[2].split()[0] in "ZX",
        f"the end of process {pid}",
    )


@pytest.mark.parametrize("python", INTERPRETERS, ids=lambda path: path.parts[-3])
def test_everything_is_known_at_once(python: Path, tmp_path: Path) -> None:
    """One call fills every part, under the oldest Python as under the newest."""
    (tmp_path / "train.py").write_text("")
    asked = request(project=str(tmp_path), script="train.py", reserve_port=True, tasks_hash="0")

    env = {**os.environ, "SSH_CONNECTION": "10.0.0.1 5 10.0.0.2 22"}

    answer = under(asked, python, env=env)

    facts: Facts = answer["facts"]
    assert (facts.hostname, facts.ssh_address) == (socket.gethostname(), "10.0.0.2")
    assert facts.python.version == ".".join(str(part) for part in sys.version_info[:3])
    assert facts.python.error == ""
    assert [i.addresses[0] for i in facts.interfaces if i.loopback] == ["127.0.0.1/8"]
    assert facts.reserved_port == answer["held"] > 0
    assert 1 <= facts.cores <= len(os.sched_getaffinity(0)) <= facts.system.cpus
    assert facts.system.memory
    assert (facts.workdir, facts.workdir_error) == (str(Path.home() / ".runner"), "")
    assert facts.project_exists
    assert facts.script_exists
    assert not facts.has_tasks
    assert facts.disk_free
    assert facts.shm_free
    assert (facts.tmp, facts.tmp_free is not None) == (os.environ.get("TMPDIR", "/tmp"), True)
    assert set(facts.limits) == {"memlock", "nofile", "nproc"}
    assert answer["environ"]["PATH"] == os.environ["PATH"]


OUTER = {
    **{"RANK": "0", "LOCAL_RANK": "0", "NODE_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "::1"},
    **{
        "PET_NNODES": "3",
        "GROUP_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "TORCHELASTIC_RUN_ID": "outer",
    },
    **{"TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_USE_AGENT_STORE": "True"},
    **{"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "1", "SLURM_NODEID": "0"},
    **{"SLURM_NTASKS_PER_NODE": "1", "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_STEP_NUM_TASKS": "1"},
    **{"OMPI_COMM_WORLD_LOCAL_RANK": "0", "PMI_RANK": "0", "PMIX_RANK": "0"},
    **{"MV2_COMM_WORLD_SIZE": "1", "MPI_LOCALRANKID": "0", "FLUX_TASK_LOCAL_ID": "0"},
    **{"JSM_NAMESPACE_LOCAL_RANK": "0", "HOROVOD_LOCAL_RANK": "0", "PALS_LOCAL_RANKID": "0"},
}
SETTINGS = {"SLURM_JOB_ID": "4", "SLURM_CPUS_PER_TASK": "2", "OMPI_MCA_btl": "self"}
SETTINGS |= {"PMIX_MCA_gds": "hash", "FLUX_URI": "local:///f", "RANKS": "2", "MY_RANK": "0"}


@pytest.mark.parametrize("setup", [(), ("export RANK=7 A=1",)], ids=["", "setup"])
def test_what_a_launcher_around_us_told_its_ranks_is_left_out(
    monkeypatch: pytest.MonkeyPatch, setup: tuple[str, ...]
) -> None:
    """A login shell, or an srun, in which we run has no say in the numbers of our ranks."""
    for name, value in {**OUTER, **SETTINGS}.items():
        monkeypatch.setenv(name, value)
    environ = collect(request(skip_launch_facts=True, setup=setup)).environ
    known = {name: environ[name] for name in {**OUTER, **SETTINGS} if name in environ}
    assert known == {**SETTINGS, **({"RANK": "7"} if setup else {})}


def test_setup_changes_the_environment_and_nothing_else(tmp_path: Path) -> None:
    """Variables and functions are kept; it runs in the project, and asks nobody."""
    (tmp_path / "python3").symlink_to(sys.executable)
    lines = (
        "cd /; if read answer; then exit 9; fi",
        "export SHOWN=$(tr '\\0' ' ' < /proc/$$/cmdline)",
        "export A='x y'\nexport B=\"$A $OLDPWD\"",
        "f() { echo f; }; export -f f",
        f"export PATH={tmp_path}:$PATH",
    )
    answer = under(
        request(setup=lines, project=str(tmp_path), python="python3"),
        cwd=tmp_path,
        env={**os.environ, "GONE": "1", "PWD": str(tmp_path)},
    )

    environ = answer["environ"]
    assert (environ["A"], environ["B"]) == ("x y", f"x y {tmp_path}")
    assert "OLDPWD" not in environ["SHOWN"]
    assert answer["facts"].python.executable == f"{tmp_path}/python3"
    assert environ["BASH_FUNC_f%%"].startswith("() {")
    assert environ["PWD"] == str(tmp_path)
    assert {name for name in environ if name.startswith("__runner")} == set()
    assert set(environ) - {"A", "B", "SHOWN", "BASH_FUNC_f%%"} == (
        {*os.environ, "GONE", "PWD"} - {"PS1"}  # which bash drops where nobody is prompted
    )


LEFT = "the setup ended its shell (exit, exec): its environment is not known"


@pytest.mark.parametrize(
    ("lines", "code", "last"),
    [
        (("true", "false", "touch {tmp}/after"), 1, "setup line 2 (false) ended with exit code 1"),
        (("true\n\nf() {\n return 7\n}", "f"), 7, "setup line 6 (f) ended with exit code 7"),
        (("source {tmp}/none",), 1, "setup line 1 (source {tmp}/none) ended with exit code 1"),
        (("kill -KILL $$",), 137, "the setup ended with exit code 137"),
        (("exit 0",), 1, LEFT),
    ],
)
def test_a_failing_line_fails_the_setup(
    tmp_path: Path, lines: tuple[str, ...], code: int, last: str
) -> None:
    """The line is named, nothing after it runs, and the rest of the facts stays empty."""
    answer = setting_up(
        *(line.replace("{tmp}", str(tmp_path)) for line in lines), reserve_port=True
    )

    ended = answer.facts.setup
    assert (ended.exit_code, ended.output.splitlines()[-1]) == (
        code,
        last.replace("{tmp}", str(tmp_path)),
    )
    assert (answer.reserved.store, answer.facts.python.executable) == (None, "")
    assert answer.environ == dict(os.environ)
    assert list(tmp_path.iterdir()) == []


def test_a_shell_function_that_is_missing_is_found_on_that_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A login shell has conda by a file of conda's own, which `conda init` puts in ~/.bashrc.

    A program of that name on the PATH cannot activate, either.
    """
    monkeypatch.setenv("HOME", str(tmp_path))
    line = "set -eu; conda activate x"

    def last_words(*lines: str) -> str:
        return setting_up(*lines).facts.setup.output.splitlines()[-1]

    ended = f"setup line 1 ({line}) ended with exit code 127"
    assert last_words(line) == ended
    hint = ""
    for name in ("miniconda3", "sw"):
        defined_in = tmp_path / name / "etc/profile.d/conda.sh"
        defined_in.parent.mkdir(parents=True)
        defined_in.write_text("conda() { export ENV=$2; }")
        if name == "sw":
            (tmp_path / ".bashrc").write_text(f'    . "{defined_in}"\n')
        source = f"source ~/{name}/etc/profile.d/conda.sh"
        hint = f"; put a line before it that defines this command: {source}"
        assert last_words(line) == f"{ended}{hint}"
        assert setting_up(source, line).environ["ENV"] == "x"
    (tmp_path / "conda").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "conda").chmod(0o755)
    assert last_words("PATH=$HOME:$PATH", "conda activate x").endswith(f"exit code 1{hint}")
    assert last_words("PATH=$HOME:$PATH", "conda list").endswith("exit code 1")
    (tmp_path / "init").mkdir()
    (tmp_path / "init" / "bash").touch()
    assert last_words("MODULESHOME=$HOME", "module load y").endswith(": source ~/init/bash")


def test_a_failing_test_is_no_failing_line(tmp_path: Path) -> None:
    """As under `set -e`, conditions may be false; and what a sourced script does is its affair."""
    (tmp_path / "activate").write_text(
        "false\n[ -n '' ]\ng() { false; }\ng\nX=$(false)\nexport S=1\n"
    )

    answer = setting_up(
        "[ -f /none ] && source /none",
        "if false; then",
        "  exit 9",
        "fi",
        "set +e; false || true",
        f"source {tmp_path}/activate",
        "g() { false; true; }; g",
        "! true",
        "[ -f /none ] && source /none",
    )

    assert (answer.facts.setup.output, answer.environ["S"]) == ("", "1")


def test_setup_that_hangs_is_killed_with_all_it_started(tmp_path: Path) -> None:
    """Nothing waits for ever, and no process is left; other parts were not needed."""
    lines = ("echo before", f"sleep 900 & echo $! > {tmp_path}/pid", "sleep 900")

    facts = setting_up(*lines, setup_timeout_s=5.0).facts

    assert (facts.setup.exit_code, facts.setup.output) == (
        -1,
        "before\nthe setup did not end within 5 s",
    )
    wait_for_end_of(int((tmp_path / "pid").read_text()))


def fake_torch(folder: Path) -> Path:
    package = folder / "site" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package / "version.py").write_text("__version__ = '2.8.0+cu128'\ncuda: str = '12.8'\n")
    return package.parent


def test_torch_is_found_without_importing_it(tmp_path: Path) -> None:
    """Its version and CUDA come from a file; banners and exit noise do not matter."""
    site = fake_torch(tmp_path)
    (site / "sitecustomize.py").write_text(
        "import atexit\nprint('WELCOME', flush=True)\natexit.register(print, 'bye')\n"
    )

    answer = under(request(setup=(f"export PYTHONPATH={site}",), python=str(INTERPRETERS[-1])))

    found = answer["facts"].python
    assert (found.torch, found.torch_cuda, found.error) == ("2.8.0+cu128", "12.8", "")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("#!/none/python\n", "{path} cannot be started: the interpreter it names is not there"),
        (
            "#!/bin/sh\necho oh no; exit 3\n",
            "{path} ended with exit code 3 without an answer: oh no",
        ),
        ("#!/bin/sh\nkill -9 $$\n", "{path} was killed by signal 9 without an answer"),
        ("#!/bin/sh\nsleep 900\n", "starting {path}: no answer within 2 s"),
    ],
    ids=["moved", "fails", "killed", "hangs"],
)
def test_an_unusable_interpreter_is_told(tmp_path: Path, text: str, error: str) -> None:
    """Each way of being none has its own words, and none takes longer than its deadline."""
    path = tmp_path / "python"
    path.write_text(text)
    path.chmod(0o755)
    limit_s = 2.0 if "sleep" in text else 60.0

    answer = collect(request(python=str(path), tool_timeout_s=limit_s))

    assert answer.facts.python.error == error.format(path=path)


@pytest.mark.parametrize("path", [TOO_OLD, ANCIENT])
def test_an_interpreter_can_be_too_old(path: Path) -> None:
    """Even Python 2 answers, and is told apart from a broken one."""
    if not path.exists():
        pytest.skip(f"no {path}")

    error = collect(request(python=str(path))).facts.python.error

    assert error.endswith(f"is Python {path.parts[-3]}, older than 3.8")


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalGpus:
    return LocalGpus(tmp_path, monkeypatch)


def test_gpus_are_told_with_their_users_and_their_health(gpus: LocalGpus) -> None:
    """Health only where it is asked for; what a driver has no word for is left out."""
    gpus.set(FakeGpu(processes=((os.getpid(), 7), (999999999, 8))), FakeGpu(clock_reasons=0x48))

    facts = collect(request(thorough=True)).facts

    command, owner = procfs.process_command(os.getpid()), procfs.process_owner(os.getpid())
    users = (GpuProcess(os.getpid(), 7, owner, command), GpuProcess(999999999, 8))
    assert [(gpu.name, gpu.processes) for gpu in facts.gpus] == [(NAME, users), (NAME, ())]
    assert (facts.gpu_source, facts.driver) == ("nvml", Driver("550.54.15", "12.4"))
    first, second = (gpu.health for gpu in facts.gpus)
    assert first == GpuHealth("0000:3b:00", 1 << 32, True, False, 0)
    assert second == replace(first, throttle_reasons=0x48)
    assert collect(request()).facts.gpus[0].health is None


@pytest.mark.promise(4)
@pytest.mark.parametrize(
    ("mode", "what"),
    [
        ("hang", "the driver did not answer within 5 s"),
        ("crash", "ended by signal 11"),
        ("15", "NVML: GPU is lost"),
    ],
)
def test_an_ill_driver_takes_nobody_with_it(gpus: LocalGpus, mode: str, what: str) -> None:
    """It is asked in a child; everything else is known as usual."""
    gpus.set(mode=mode)

    facts = collect(request(tool_timeout_s=5.0 if mode == "hang" else 60.0)).facts

    assert what in facts.gpu_source
    assert facts.gpus == ()
    assert facts.interfaces


@pytest.mark.promise(11, 13)
def test_a_dead_disk_costs_its_deadline_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at a folder may never return; the rest of the facts does not wait for it."""
    monkeypatch.setattr("runner.host.facts.collect.unwritable_reason", lambda _: time.sleep(900))

    facts = collect(request(workdir="/nfs/x", tool_timeout_s=5.0)).facts

    assert facts.workdir_error == "looking at /nfs/x: no answer within 5 s"
    assert facts.shm_free
    assert facts.python.version


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def held(free_port: int) -> Iterator[socket.socket]:
    reserved, error = ports.reserve(free_port, free_port)
    assert error == ""
    assert reserved is not None
    with reserved:
        yield reserved


def bind(port: int, address: str = "127.0.0.1", *, shared: bool) -> socket.socket:
    """Return a socket bound there, with SO_REUSEADDR if `shared`."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    bound = socket.socket(family)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(shared))
        bound.bind((address, port))
    except OSError:
        bound.close()
        raise
    return bound


def test_two_runs_never_reserve_the_same_port(held: socket.socket) -> None:
    """Both would share it with a store, but not with each other."""
    port = held.getsockname()[1]

    again, error = ports.reserve(port, port)

    assert (again, error) == (
        None,
        f"port {port} is reserved by another run, or the near end of a connection",
    )


def test_the_connections_of_an_earlier_run_do_not_keep_its_port(free_port: int) -> None:
    """TIME_WAIT lasts a minute; nobody should have to wait for it."""
    with socket.create_server(("127.0.0.1", free_port)) as server:
        client = socket.create_connection(("127.0.0.1", free_port))
        server.accept()[0].close()  # the server's side closes first: TIME_WAIT is ours
        client.close()
    with pytest.raises(OSError, match="in use"):
        bind(free_port, "0.0.0.0", shared=False)

    reserved, error = ports.reserve(free_port, free_port)

    assert (reserved is not None, error) == (True, "")
    if reserved:
        reserved.close()


@pytest.mark.parametrize("address", ["127.0.0.1", "::"])
def test_who_listens_on_the_port_is_named(free_port: int, address: str) -> None:
    """At whatever address; with its pid and command."""
    with bind(free_port, address, shared=True) as other:
        other.listen()
        answer = collect(request(reserve_port=True, port_first=free_port, port_last=free_port))

    assert (answer.reserved.store, answer.facts.reserved_port) == (None, 0)
    shown = f"{procfs.process_command(os.getpid())} (pid {os.getpid()})"
    assert answer.facts.port_error == f"port {free_port} is taken by {shown}"


def test_children_do_not_hold_the_port(held: socket.socket) -> None:
    """A probe that hangs for ever must not keep it."""
    port = held.getsockname()[1]
    child = bounded_child.BoundedChild(lambda: time.sleep(900), 900)
    try:
        held.close()
        found: list[socket.socket] = []

        def is_free() -> bool:
            again, _ = ports.reserve(port, port)
            found.extend(filter(None, [again]))
            return again is not None

        wait_until(is_free, "the child to let go of the port")
        found[0].close()
    finally:
        child.kill()


@pytest.mark.parametrize("address", ["0.0.0.0", "::1"])
def test_a_reserved_port_is_kept_for_the_store_and_its_listener_is_found(
    address: str, held: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who does not share is refused; who does, as torch's store, can bind and listen.

    Before that every look costs one system call, however full /proc is.
    """
    port = held.getsockname()[1]
    with pytest.raises(OSError, match="in use"):
        bind(port, address, shared=False)
    reservation = ports.PortReservation(held, port)
    with monkeypatch.context() as without_proc:
        without_proc.setattr(procfs, "table", lambda: pytest.fail("/proc was read"))
        without_proc.setattr(procfs, "read_text", lambda _: pytest.fail("/proc was read"))
        assert reservation.release_if_listening() is None
    with bind(port, address, shared=True) as listener:
        assert reservation.release_if_listening() is None, "a bound socket is no listener"
        listener.listen()
        assert reservation.release_if_listening() == {os.getpid()}
        assert held.fileno() == -1, "it was not released"
        assert reservation.release_if_listening() is None


def test_what_cannot_be_started_is_an_answer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host at its limit of processes is told about, not stumbled over."""

    def fork() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", fork)

    facts = collect(request()).facts

    assert "cannot start a process" in facts.python.error
    assert "cannot start a process" in facts.workdir_error
    assert facts.interfaces
