"""Facts of this very machine: real shells, interpreters, drivers, folders and ports."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.core.wire.codec import decode, encode
from runner.core.wire.facts import Driver, Facts, FactsRequest, GpuHealth, GpuProcess
from runner.host.facts.collect import FactsResult, collect
from runner.host.process import procfs
from tests.golden.here import write
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
from runner.core.wire.codec import decode, encode
from runner.core.wire.facts import FactsRequest
from runner.host.facts.collect import collect
told = collect(decode(FactsRequest, json.loads(sys.argv[2])))
held = told.reserved.numbers["reserved_port"]
print(json.dumps({"facts": encode(told.facts), "environ": told.environ, "held": held}))
"""


def request(**wanted: Any) -> FactsRequest:
    """Return a request that asks for as little as can be, but for what is `wanted`."""
    return replace(FactsRequest("n1", python=sys.executable), **wanted)


def under(asked: FactsRequest, python: Path = HERE, **options: Any) -> dict[str, Any]:
    """Collect in a process of its own; its standard output must be the answer and nothing else."""
    argv = [str(python), "-I", "-c", DRIVER, str(REPO), json.dumps(encode(asked))]
    done = subprocess.run(argv, capture_output=True, check=False, timeout=60 * PATIENCE, **options)
    assert (done.returncode, done.stderr) == (0, b"")
    answer: dict[str, Any] = json.loads(done.stdout)
    answer["facts"] = decode(Facts, answer["facts"])
    return answer


def setting_up(*lines: str, **wanted: Any) -> FactsResult:
    return collect(request(setup=lines, **wanted))


@pytest.mark.parametrize("python", INTERPRETERS, ids=lambda path: path.parts[-3])
def test_everything_is_known_at_once(python: Path, tmp_path: Path) -> None:
    """One call fills every part, under the oldest Python as under the newest."""
    (tmp_path / "train.py").write_text("")
    asked = request(project=str(tmp_path), script="train.py", reserve_port=True, tasks_hash="0")

    env = {**os.environ, "SSH_CONNECTION": "fe80::5%eth0 51234 fe80::7%eth0 22"}
    answer = under(asked, python, env=env)
    facts: Facts = answer["facts"]
    assert (facts.hostname, facts.ssh_address) == (socket.gethostname(), "fe80::7")
    assert facts.python.version == ".".join(str(part) for part in sys.version_info[:3])
    assert facts.python.error == ""
    assert [i.addresses[0] for i in facts.interfaces if i.loopback] == ["127.0.0.1/8"]
    assert facts.reserved_port == answer["held"] > 0
    assert 1 <= facts.cores <= len(os.sched_getaffinity(0))
    assert (facts.workdir, facts.workdir_error) == (str(Path.home() / ".runner"), "")
    assert facts.project_exists
    assert facts.script_exists
    assert not facts.has_tasks
    assert facts.disk_free
    assert facts.shm_free
    assert set(facts.limits) == {"memlock", "nofile", "nproc"}
    assert answer["environ"]["PATH"] == os.environ["PATH"]


OUTER = """RANK LOCAL_RANK NODE_RANK WORLD_SIZE MASTER_ADDR PET_NNODES GROUP_RANK LOCAL_WORLD_SIZE
TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT TORCHELASTIC_USE_AGENT_STORE
SLURM_PROCID SLURM_LOCALID SLURM_NTASKS SLURM_NODEID SLURM_NTASKS_PER_NODE
SLURM_STEP_TASKS_PER_NODE SLURM_STEP_NUM_TASKS OMPI_COMM_WORLD_LOCAL_RANK PMI_RANK PMIX_RANK
MV2_COMM_WORLD_SIZE MPI_LOCALRANKID FLUX_TASK_LOCAL_ID JSM_NAMESPACE_LOCAL_RANK
HOROVOD_LOCAL_RANK PALS_LOCAL_RANKID"""
SETTINGS = "SLURM_JOB_ID SLURM_CPUS_PER_TASK OMPI_MCA_btl PMIX_MCA_gds FLUX_URI RANKS MY_RANK"


@pytest.mark.parametrize("setup", [(), ("export RANK=7 A=1",)], ids=["", "setup"])
def test_what_a_launcher_around_us_told_its_ranks_is_left_out(
    monkeypatch: pytest.MonkeyPatch, setup: tuple[str, ...]
) -> None:
    """A login shell, or an srun, in which we run has no say in the numbers of our ranks."""
    for name in (*OUTER.split(), *SETTINGS.split()):
        monkeypatch.setenv(name, "1")
    environ = collect(request(skip_launch_facts=True, setup=setup)).environ
    known = {name: environ[name] for name in OUTER.split() if name in environ}
    assert known == ({"RANK": "7"} if setup else {})
    assert {*SETTINGS.split()} <= environ.keys()


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
        (("true\n\nf() {\n return 7\n}", "f"), 7, "setup line 6 (return 7) ended with exit code 7"),
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
    assert ended.exit_code == code
    assert ended.output.splitlines()[-1] == last.replace("{tmp}", str(tmp_path))
    assert (answer.reserved.store, answer.facts.python.executable) == (None, "")
    assert answer.environ == dict(os.environ)
    assert list(tmp_path.iterdir()) == []


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


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("conda activate x", "miniconda3/etc/profile.d/conda.sh"),
        ("module load cuda", "modules/init/bash"),
    ],
)
def test_the_line_that_defines_a_shell_function_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, file: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MODULESHOME", str(tmp_path / "modules"))
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).touch()
    output = setting_up(line).facts.setup.output
    assert f"which this line before it defines: source {tmp_path / file}\n" in output


def test_setup_that_hangs_is_killed_with_all_it_started(tmp_path: Path) -> None:
    """Nothing waits for ever, and no process is left; other parts were not needed."""
    lines = ("echo before", f"sleep 900 & echo $! > {tmp_path}/pid", "sleep 900")

    ended = setting_up(*lines, setup_timeout_s=5.0).facts.setup
    assert (ended.exit_code, ended.output) == (-1, "before\nthe setup did not end within 5 s")
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not procfs.is_running(pid), f"the end of process {pid}")


def test_torch_is_found_without_importing_it(tmp_path: Path) -> None:
    """Its version and CUDA come from a file; banners and exit noise do not matter."""
    site = tmp_path / "site"
    write(
        site,
        {
            "torch/__init__.py": "raise SystemExit('imported')",
            "torch/version.py": "__version__ = '2.8.0+cu128'\ncuda: str = '12.8'\n",
            "sitecustomize.py": "import atexit\nprint('WELCOME', flush=True)\n"
            "atexit.register(print, 'bye')\n",
        },
    )

    answer = under(request(setup=(f"export PYTHONPATH={site}",), python=str(INTERPRETERS[-1])))

    found = answer["facts"].python
    assert (found.torch, found.torch_cuda, found.error) == ("2.8.0+cu128", "12.8", "")


NO_PYTHON = {
    "#!/none/python": "{path} cannot be started: the interpreter it names is not there",
    "#!/bin/sh\necho oh no; exit 3": "{path} ended with exit code 3 without an answer: oh no",
    "#!/bin/sh\nsleep 900": "starting {path}: no answer within 2 s",
}
for old in filter(Path.exists, (TOO_OLD, ANCIENT)):
    error = f"{old} is Python {old.parts[-3]}, older than 3.8"
    NO_PYTHON[f'#!/bin/sh\nexec {old} "$@"'] = error


@pytest.mark.parametrize("text", NO_PYTHON)
def test_an_unusable_interpreter_is_told(tmp_path: Path, text: str) -> None:
    """Each way of being none has its own words, and none takes longer than its deadline."""
    path = tmp_path / "python"
    path.write_text(f"{text}\n")
    path.chmod(0o755)
    limit_s = 2.0 if "sleep" in text else 60.0
    facts = collect(request(python=str(path), tool_timeout_s=limit_s)).facts
    assert facts.python.error == NO_PYTHON[text].format(path=path)


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalGpus:
    return LocalGpus(tmp_path, monkeypatch)


def test_gpus_are_told_with_their_users_and_their_health(gpus: LocalGpus) -> None:
    """Health only where it is asked for; what a driver has no word for is left out."""
    gpus.set(FakeGpu(processes=((os.getpid(), 7), (999999999, 8))), FakeGpu())

    facts = collect(request(gpu_health=True)).facts

    command, owner = procfs.process_command(os.getpid()), procfs.process_owner(os.getpid())
    users = (GpuProcess(os.getpid(), 7, owner, command), GpuProcess(999999999, 8))
    assert [(gpu.name, gpu.processes) for gpu in facts.gpus] == [(NAME, users), (NAME, ())]
    assert (facts.gpu_source, facts.driver) == ("nvml", Driver("550.54.15", "12.4"))
    for gpu in facts.gpus:
        assert gpu.health == GpuHealth(1 << 32, repair_pending=True, repair_failed=False)
    assert collect(request()).facts.gpus[0].health is None


@pytest.mark.promise(4)
@pytest.mark.parametrize(
    ("mode", "what"),
    [
        ("hang", "the driver did not answer within 5 s"),
        ("crash", "ended by signal 11"),
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


def test_what_cannot_be_started_is_an_answer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host at its limit of processes is told about, not stumbled over."""

    def fork() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", fork)

    facts = collect(request()).facts

    assert "cannot start a process" in facts.python.error
    assert "cannot start a process" in facts.workdir_error
    assert facts.interfaces
