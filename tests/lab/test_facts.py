"""Facts of this very machine: real shells, interpreters, drivers, folders and ports."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.core.codec import decode, encode
from runner.core.model.facts import Facts, FactsRequest, Gpu, GpuProcess
from runner.core.model.hardware import Driver, GpuHealth
from runner.core.model.release import tasks_digest
from runner.host.facts import collect as collecting
from runner.host.facts import interpreter, machine, ports, setup
from runner.host.facts.collect import FactsResult
from runner.host.gpu import activity, nvml, query
from runner.host.gpu.activity import GpuActivity
from runner.host.process import bounded_child, procfs
from runner.host.process.event_loop import run_steps
from tests.lab.waiting import wait_until

pytestmark = [pytest.mark.promise(3)]

REPO = Path(__file__).parents[2]
PYENV = Path("/root/.pyenv/versions")
OLDEST, NEWEST, TOO_OLD, ANCIENT = (
    PYENV / name / "bin/python" for name in ("3.8.18", "3.13.0", "3.7.16", "2.7.18")
)
INTERPRETERS = [Path(sys.executable), *(path for path in (OLDEST, NEWEST) if path.exists())]

DRIVER = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from runner.core.codec import decode, encode
from runner.core.model.facts import FactsRequest
from runner.host.facts.collect import collect
from runner.host.process.event_loop import run_steps
told = run_steps(collect(decode(FactsRequest, json.loads(sys.argv[2]))))
held = told.reserved.numbers[0]
print(json.dumps({"facts": encode(told.facts), "environ": told.environ, "held": held}))
"""


FAKE_DRIVER = """\
from runner.host.gpu import query
query.DRIVER_PATHS = ("/",)
"""
"""Makes the agent look for NVML: every host has this path."""


def request(**wanted: Any) -> FactsRequest:
    """Return a request that asks for as little as can be, but for what is `wanted`."""
    return replace(FactsRequest("n1", python=sys.executable), **wanted)


def collect(asked: FactsRequest) -> FactsResult:
    """Collect what is asked for."""
    return run_steps(collecting.collect(asked))


def under(python: Path, asked: FactsRequest, code: Path = REPO, **options: Any) -> dict[str, Any]:
    """Collect in a process of its own; its standard output must be the answer and nothing else."""
    argv = [str(python), "-I", "-c", DRIVER, str(code), json.dumps(encode(asked))]
    done = subprocess.run(argv, capture_output=True, check=False, timeout=60, **options)
    assert (done.returncode, done.stderr) == (0, b"")
    answer: dict[str, Any] = json.loads(done.stdout)
    answer["facts"] = decode(Facts, answer["facts"])
    return answer


@contextlib.contextmanager
def within(limit_s: float) -> Iterator[None]:
    """Fail if the block takes longer."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < limit_s


def setting_up(*lines: str, **wanted: Any) -> FactsResult:
    """Collect with these setup lines."""
    return collect(request(setup=lines, **wanted))


def program(path: Path, text: str) -> Path:
    """Write an executable file."""
    path.write_text(text)
    path.chmod(0o755)
    return path


def wait_for_text(path: Path) -> None:
    """Return once somebody has written the file."""
    wait_until(lambda: path.exists() and path.read_text(), f"a text in {path}")


def wait_for_end_of(pid: int) -> None:
    """Return once the process is gone, or but a zombie that its new parent has yet to reap."""
    status = Path(f"/proc/{pid}/stat")
    wait_until(
        lambda: not status.exists() or status.read_text().rpartition(")")[2].split()[0] in "ZX",
        f"the end of process {pid}",
    )


@pytest.fixture(params=INTERPRETERS, ids=lambda path: path.parts[-3])
def python(request: pytest.FixtureRequest) -> Path:
    """Each interpreter our host-side code has to run under."""
    path: Path = request.param
    return path


# --- the whole answer ---


def test_everything_is_known_at_once(python: Path, tmp_path: Path) -> None:
    """One call fills every part, under the oldest Python as under the newest."""
    (tmp_path / "train.py").write_text("")
    asked = request(project=str(tmp_path), script="train.py", reserve_port=True, tasks_hash="0")

    answer = under(python, asked, env={**os.environ, "SSH_CONNECTION": "10.0.0.1 5 10.0.0.2 22"})

    facts: Facts = answer["facts"]
    assert (facts.node, facts.hostname, facts.ssh_address) == (
        "n1",
        socket.gethostname(),
        "10.0.0.2",
    )
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
    assert (facts.tmp, facts.tmp_free is not None) == (os.environ.get("TMPDIR", "/tmp"), True)
    assert set(facts.limits) == {"memlock", "nofile", "nproc"}
    assert answer["environ"]["PATH"] == os.environ["PATH"]


def test_nothing_is_written(python: Path, tmp_path: Path) -> None:
    """A dry run leaves no file behind: not in the home, not in the work folder, not in TMPDIR."""
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    before = set(Path("/tmp").iterdir())

    answer = under(
        python,
        request(workdir="~/deep/er", project="~/none", setup=("true",), reserve_port=True),
        env={**os.environ, "HOME": str(home), "TMPDIR": str(temporary)},
    )

    assert answer["facts"].workdir == f"{home}/deep/er"
    assert not answer["facts"].project_exists
    assert [*home.iterdir(), *temporary.iterdir()] == []
    assert [path for path in set(Path("/tmp").iterdir()) - before if "runner" in path.name] == []


def test_code_from_a_zip_in_memory_is_enough(python: Path, tmp_path: Path) -> None:
    """The code that travels has no file name; children can still import the rest of it."""
    path = tmp_path / "code.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("runner/__init__.py", "")
        for room in ("core", "host"):
            for module in (REPO / "runner" / room).rglob("*.py"):
                archive.write(module, module.relative_to(REPO))
    boot = f"""
import os, sys
zipped = os.memfd_create("code")
os.write(zipped, open({str(path)!r}, "rb").read())
sys.argv[1] = "/proc/self/fd/%d" % zipped
{DRIVER.replace("told = ", f"{FAKE_DRIVER}told = ")}
"""
    argv = [str(python), "-I", "-c", boot, "", json.dumps(encode(request()))]

    done = subprocess.run(argv, capture_output=True, check=True, timeout=60)

    source = json.loads(done.stdout)["facts"]["gpu_source"]
    assert source == "nvml" or source.startswith("NVML: libnvidia-ml.so.1: cannot")


def test_it_may_be_called_from_a_thread() -> None:
    """The children of a thread are like any other."""
    answers: list[FactsResult] = []
    thread = threading.Thread(target=lambda: answers.append(setting_up("export A=1")))
    thread.start()
    thread.join(30)

    (answer,) = answers
    assert (answer.environ["A"], answer.facts.python.error) == ("1", "")


def test_a_parent_without_standard_streams_gets_an_answer(tmp_path: Path) -> None:
    """Descriptors 0 to 2 may be closed; the pipes then have their numbers."""
    out = tmp_path / "answer"
    code = DRIVER.replace("print(", f"print(file=open({str(out)!r}, 'w'), *[").replace(
        "}))", "})])"
    )
    argv = [
        sys.executable,
        "-I",
        "-c",
        code,
        str(REPO),
        json.dumps(encode(request(setup=("A=1",)))),
    ]

    line = 'exec "$@" <&- >&- 2>&-'
    subprocess.run(["/bin/bash", "-c", line, "bash", *argv], check=True, timeout=60)

    facts = decode(Facts, json.loads(out.read_text())["facts"])
    assert (facts.setup.exit_code, facts.python.error) == (0, "")


# --- setup lines ---


def test_setup_changes_the_environment_and_nothing_else(python: Path, tmp_path: Path) -> None:
    """Variables and functions are kept; where the shell went and how deep it was are not."""
    answer = under(
        python,
        request(setup=("cd /", "export A='x y'\nexport B=\"$A\"", "f() { echo f; }; export -f f")),
        cwd=tmp_path,
        env={**os.environ, "GONE": "1", "PWD": str(tmp_path)},
    )

    environ = answer["environ"]
    assert (environ["A"], environ["B"]) == ("x y", "x y")
    assert environ["BASH_FUNC_f%%"].startswith("() {")
    assert environ["PWD"] == str(tmp_path)
    assert {name for name in environ if name.startswith("__runner")} == set()
    assert set(environ) - {"A", "B", "BASH_FUNC_f%%"} == (
        {*os.environ, "GONE", "PWD"} - {"PS1"}  # which bash drops where nobody is prompted
    )


LEFT = "the setup ended its shell (exit, exec): its environment is not known"


@pytest.mark.parametrize(
    ("lines", "code", "last"),
    [
        (("true", "false", "touch {tmp}/after"), 1, "setup line 2 (false) ended with exit code 1"),
        (("module load cuda",), 127, "setup line 1 (module load cuda) ended with exit code 127"),
        (("true\n\nf() {\n return 7\n}", "f"), 7, "setup line 6 (f) ended with exit code 7"),
        (
            ("if true; then", "  (exit 5)", "fi"),
            5,
            "setup line 2 ((exit 5)) ended with exit code 5",
        ),
        (
            ("set -o pipefail", "false | true"),
            1,
            "setup line 2 (false | true) ended with exit code 1",
        ),
        (("source {tmp}/none",), 1, "setup line 1 (source {tmp}/none) ended with exit code 1"),
        (("exit 4",), 4, "the setup ended with exit code 4"),
        (("set -u", "echo $NONE"), 127, "the setup ended with exit code 127"),
        (("kill -KILL $$",), 137, "the setup ended with exit code 137"),
        (("exit 0",), 1, LEFT),
        (("exec true",), 1, LEFT),
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


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("if true; then",), "unexpected end of file"),
        (("echo 'x",), "unexpected EOF"),
        (("true", ")"), "line 2: syntax error"),
    ],
)
def test_a_line_bash_cannot_read_fails_the_setup(lines: tuple[str, ...], message: str) -> None:
    """Bash's own message is what the user gets to see; it counts the lines as the user does."""
    ended = setting_up(*lines).facts.setup

    assert ended.exit_code > 0
    assert message in ended.output
    assert ended.output.endswith("\nbash cannot read the setup lines")


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


def test_setup_that_hangs_is_killed_with_all_it_started(python: Path, tmp_path: Path) -> None:
    """Nothing waits for ever, and no process is left; other parts were not needed."""
    began = time.monotonic()

    facts = under(
        python,
        request(
            setup=("echo before", f"sleep 300 & echo $! > {tmp_path}/pid", "sleep 300"),
            setup_timeout_s=1.0,
        ),
    )["facts"]

    assert time.monotonic() - began < 5
    assert (facts.setup.exit_code, facts.setup.output) == (
        -1,
        "before\nthe setup did not end within 1 s",
    )
    wait_for_end_of(int((tmp_path / "pid").read_text()))


def test_setup_that_talks_a_lot_is_cut_short() -> None:
    """10 MB of output cost neither memory nor much time; its end is kept."""
    with within(5):
        answer = setting_up("head -c 10000000 /dev/zero | tr '\\0' x", "echo; echo the end")

    assert answer.facts.setup.output.endswith("xx\nthe end")
    assert len(answer.facts.setup.output) <= bounded_child.MAX_OUTPUT


def test_setup_reads_nothing_and_asks_nobody() -> None:
    """Its standard input is empty: a prompt fails instead of waiting."""
    assert setting_up("read answer").facts.setup.exit_code == 1


def test_a_background_process_does_not_hold_up_the_answer() -> None:
    """It may keep the shell's output open as long as it likes."""
    with within(5):
        answer = setting_up("sleep 20 & export SLEEPER=$!")

    os.kill(int(answer.environ["SLEEPER"]), signal.SIGKILL)


def test_setup_may_break_the_path() -> None:
    """We still can read the environment; the interpreter is looked up in the new PATH."""
    facts = setting_up("export PATH=/none", python="python3").facts

    assert (facts.setup.exit_code, facts.python.error) == (0, "no python3 on PATH (/none)")


def test_without_a_bash_setup_says_so(python: Path, tmp_path: Path) -> None:
    """Not every host has one."""
    ended = under(python, request(setup=("true",)), env={"PATH": str(tmp_path)})["facts"].setup

    assert ended.exit_code == 126
    assert ended.output.startswith(f"no bash on PATH ({tmp_path}): setup needs one")


def test_setup_runs_in_the_project(tmp_path: Path) -> None:
    """`source .venv/bin/activate` means the project's own."""
    answer = setting_up("export WHERE=$PWD", project=str(tmp_path))

    assert answer.environ["WHERE"] == str(tmp_path)


def test_setup_lines_do_not_show_in_ps() -> None:
    """They may hold what is nobody's business."""
    answer = setting_up("export SHOWN=$(tr '\\0' ' ' < /proc/$$/cmdline)", ": s3cret")

    assert "s3cret" not in answer.environ["SHOWN"]


# --- the interpreter ---


def fake_torch(folder: Path) -> Path:
    """Make a torch that must not be imported."""
    package = folder / "site" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package / "version.py").write_text("__version__ = '2.8.0+cu128'\ncuda: str = '12.8'\n")
    return package.parent


def test_torch_is_found_without_importing_it(python: Path, tmp_path: Path) -> None:
    """Its version and CUDA come from a file; banners and exit noise do not matter."""
    site = fake_torch(tmp_path)
    (site / "sitecustomize.py").write_text(
        "import atexit\nprint('WELCOME', flush=True)\natexit.register(print, 'bye')\n"
    )

    answer = under(python, request(setup=(f"export PYTHONPATH={site}",), python=str(NEWEST)))

    found = answer["facts"].python
    assert (found.torch, found.torch_cuda, found.error) == ("2.8.0+cu128", "12.8", "")


def test_the_interpreter_is_that_of_the_setup_environment(tmp_path: Path) -> None:
    """An activated environment's python is first on its PATH."""
    (tmp_path / "python3").symlink_to(sys.executable)

    found = setting_up(f"export PATH={tmp_path}:$PATH", python="python3").facts.python

    assert found.executable == f"{tmp_path}/python3"


def test_a_relative_interpreter_belongs_to_the_project(tmp_path: Path) -> None:
    """`.venv/bin/python` is the project's, and the answer is absolute."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / ".venv"], check=True)

    found = collect(request(project=str(tmp_path), python=".venv/bin/python")).facts.python

    assert found.executable == f"{tmp_path}/.venv/bin/python"


UNUSABLE = [
    ("none", None, "{path} is not there"),
    ("folder", "", "{path} is a folder, not an interpreter"),
    ("notes", "text", "{path} is not executable"),
    (
        "moved",
        "#!/none/python\n",
        "{path} cannot be started: the interpreter it names is not there",
    ),
    ("text", "hello", "{path} cannot be started: Exec format error"),
    (
        "crash",
        "#!/bin/sh\necho oh no; exit 3\n",
        "{path} ended with exit code 3 without an answer: oh no",
    ),
    ("killed", "#!/bin/sh\nkill -11 $$\n", "{path} was killed by signal 11 without an answer"),
    ("hang", "#!/bin/sh\nsleep 60\n", "starting {path}: no answer within 0.5 s"),
]


@pytest.mark.parametrize(("name", "text", "error"), UNUSABLE, ids=[row[0] for row in UNUSABLE])
def test_an_unusable_interpreter_is_told(
    tmp_path: Path, name: str, text: str | None, error: str
) -> None:
    """Each way of being none has its own words, and nothing takes longer than its deadline."""
    path = tmp_path / name
    if name == "folder":
        path.mkdir()
    elif text is not None:
        path.write_text(text)
        path.chmod(0o644 if name == "notes" else 0o755)

    limit_s = 0.5 if name == "hang" else 15.0
    with within(5):
        answer = collect(request(python=str(path), tool_timeout_s=limit_s))

    assert answer.facts.python.error == error.format(path=path)


@pytest.mark.parametrize("path", [TOO_OLD, ANCIENT])
def test_an_interpreter_can_be_too_old(path: Path) -> None:
    """Even Python 2 answers, and is told apart from a broken one."""
    if not path.exists():
        pytest.skip(f"no {path}")

    error = collect(request(python=str(path))).facts.python.error

    assert error.endswith(f"is Python {path.parts[-3]}, older than 3.8")


def test_our_home_may_be_in_the_interpreters_path(tmp_path: Path) -> None:
    """`~/` is expanded as for folders."""
    (tmp_path / "python").symlink_to(sys.executable)

    answer = under(
        Path(sys.executable), request(python="~/python"), env={**os.environ, "HOME": str(tmp_path)}
    )

    assert answer["facts"].python.executable == f"{tmp_path}/python"


# --- GPUs ---

FAKE_NVML = r"""
#include <string.h>
#include <unistd.h>
#include <signal.h>
typedef unsigned int u; typedef unsigned long long ull;
u nvmlInit_v2(void) {
#ifdef HANG
  for (;;) pause();
#endif
#ifdef CRASH
  signal(SIGSEGV, SIG_DFL);  /* no traceback of pytest's faulthandler in the log */
  raise(SIGSEGV);
#endif
#ifdef MISMATCH
  return 18;
#endif
  return 0; }
const char *nvmlErrorString(u code) {
  return code == 18 ? "Driver/library version mismatch"
       : code == 15 ? "GPU is lost" : code == 16 ? "GPU requires reset" : "?"; }
u nvmlSystemGetDriverVersion(char *s, u n) { strncpy(s, "550.54.15", n); return 0; }
u nvmlDeviceGetCount_v2(u *n) { *n = 3; return 0; }
u nvmlDeviceGetHandleByIndex_v2(u i, void **d) {
  if (i == 1) return 15;
  *d = (void *)(unsigned long)(0x7f0000001000UL + i); return 0; }
u nvmlDeviceGetName(void *d, char *s, u n) { strncpy(s, "NVIDIA H100 80GB HBM3", n); return 0; }
u nvmlDeviceGetUUID(void *d, char *s, u n) { strncpy(s, "GPU-0000", n); return 0; }
#ifdef OLD
typedef struct { u pid; ull mem; } info;
#define PROCESSES nvmlDeviceGetComputeRunningProcesses
#define REST
#else
#ifdef LONG
typedef struct { u pid; ull mem; u gi, ci; ull cc; } info;
#define REST , 0xFFFFFFFF, 0xFFFFFFFF, 0
#else
typedef struct { u pid; ull mem; u gi, ci; } info;
#define REST , 0xFFFFFFFF, 0xFFFFFFFF
#endif
#define PROCESSES nvmlDeviceGetComputeRunningProcesses_v3
#endif
#ifdef HEALTH
#ifdef BROKEN
#define RESET 16
#else
#define RESET 3
#endif
#define SECOND (d == (void *)0x7f0000001002UL)
typedef struct { char old[16]; u domain, bus, device, id, subsystem; char text[32]; } pci;
u nvmlSystemGetCudaDriverVersion_v2(int *v) { *v = 12040; return 0; }
u nvmlDeviceGetPciInfo_v3(void *d, pci *p) {
  memset(p, 0xff, sizeof *p); p->domain = 0; p->bus = SECOND ? 0xda : 0x3b; p->device = 0;
  return 0; }
u nvmlDeviceGetTotalEccErrors(void *d, u type, u counter, ull *n) {
  if (type != 1 || counter > 1) return 2;
  *n = SECOND ? 0x100000000ULL + counter : counter; return 0; }
u nvmlDeviceGetCurrentClocksThrottleReasons(void *d, ull *n) { *n = SECOND ? 0x48 : 1; return 0; }
u nvmlDeviceGetPersistenceMode(void *d, u *n) { *n = SECOND; return 0; }
u nvmlDeviceGetMigMode(void *d, u *now, u *next) { *now = SECOND; *next = 0; return 0; }
u nvmlDeviceGetMaxMigDeviceCount(void *d, u *n) { *n = 7; return 0; }
u nvmlDeviceGetMigDeviceHandleByIndex(void *d, u i, void **mig) {
  if (i % 3) return 6;
  *mig = d; return 0; }
u nvmlDeviceGetRetiredPagesPendingStatus(void *d, u *n) { return 3; }
u nvmlDeviceGetRemappedRows(void *d, u *c, u *n, u *pending, u *failed) {
  if (SECOND) return RESET;
  *c = 9; *n = 8; *pending = 1; *failed = 0; return 0; }
u nvmlDeviceGetCurrPcieLinkWidth(void *d, u *n) { *n = 8; return 0; }
u nvmlDeviceGetMaxPcieLinkWidth(void *d, u *n) { *n = 16; return SECOND ? 999 : 0; }
#endif
#ifdef WAITS
u nvmlDeviceGetUtilizationRates(void *d, u *rates) { rates[0] = 100; rates[1] = 0; return 0; }
#endif
#ifdef WORKS
u nvmlDeviceGetUtilizationRates(void *d, u *rates) { rates[0] = 80; rates[1] = 9; return 0; }
#endif
u PROCESSES(void *d, u *n, info *list) {
  info two[] = {{getppid(), 7 REST}, {999999999, ~0ULL REST}};
  if (*n < 2) return 7;
  if (d == (void *)0x7f0000001002UL) return 4;
  memcpy(list, two, sizeof two); *n = 2; return 0; }
"""


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes this machine believe in a driver, compiled as told."""
    monkeypatch.setattr(query, "DRIVER_PATHS", ("/",))

    def install(*flags: str) -> None:
        if not shutil.which("gcc"):
            pytest.skip("no gcc")
        source, library = tmp_path / "nvml.c", tmp_path / "libnvidia-ml.so.1"
        source.write_text(FAKE_NVML)
        argv = ["gcc", "-w", "-shared", "-fPIC", *(f"-D{flag}" for flag in flags)]
        subprocess.run([*argv, "-o", library, source], check=True)
        monkeypatch.setattr(nvml, "LIBRARIES", (str(library),))

    return install


@pytest.mark.parametrize("flags", [(), ("LONG",), ("OLD",)])
def test_nvml_of_all_ages_tells_of_gpus_and_their_users(
    driver: Any, flags: tuple[str, ...]
) -> None:
    """A lost GPU has but its number; one that keeps its processes to itself tells the rest."""
    driver(*flags)

    facts = collect(request()).facts

    ours = GpuProcess(
        os.getpid(), 7, procfs.process_owner(os.getpid()), procfs.process_command(os.getpid())
    )
    named = ("NVIDIA H100 80GB HBM3", "GPU-0000")
    lost = Gpu(1, error="GPU is lost")
    assert facts.gpus == (Gpu(0, *named, (ours, GpuProcess(999999999))), lost, Gpu(2, *named))
    assert (facts.gpu_source, facts.driver) == ("nvml", Driver("550.54.15"))


def test_the_health_of_gpus_is_told_where_it_is_asked_for(driver: Any) -> None:
    """What a driver has no word for, or does not support, is left out; the rest is told."""
    driver("HEALTH")

    facts = collect(request(thorough=True)).facts

    first, lost, last = (gpu.health for gpu in facts.gpus)
    assert facts.driver == Driver("550.54.15", "12.4")
    assert first == GpuHealth("0000:3b:00", 0, 1, True, False, 1, False, False, 0, 8, 16)
    assert lost is None
    errors = (1 << 32, (1 << 32) + 1)
    assert last == GpuHealth("0000:da:00", *errors, None, None, 0x48, True, True, 3, 8, None)
    assert collect(request()).facts.gpus[0].health is None


def test_a_gpu_may_have_a_name_and_no_use(driver: Any) -> None:
    """The driver refuses one of the later questions, and says that it needs a reset."""
    driver("HEALTH", "BROKEN")

    first, _, last = (gpu.health for gpu in collect(request(thorough=True)).facts.gpus)

    assert first
    assert last
    assert (first.error, last.error, last.pcie_width) == ("", "GPU requires reset", 8)


def test_an_old_driver_is_asked_for_its_health_in_vain(driver: Any) -> None:
    """It lacks the functions; that costs nothing else."""
    driver("OLD")

    facts = collect(request(thorough=True)).facts

    assert facts.gpus[0].health == GpuHealth(instances=0)
    assert facts.gpu_source == "nvml"


@pytest.mark.parametrize(
    ("flags", "doing"),
    [
        (("WAITS",), GpuActivity.WAITING),
        (("WORKS",), GpuActivity.WORKING),
        ((), GpuActivity.IDLE_OR_UNKNOWN),
    ],
)
def test_what_gpus_do_is_told_by_the_driver(
    driver: Any, flags: tuple[str, ...], doing: GpuActivity
) -> None:
    """Of those that answer; one that does not know it tells nothing."""
    driver(*flags)

    child = activity.start(None)

    assert child is not None
    run_steps(bounded_child.wait_all([child]))
    assert activity.result(child) is doing


def test_what_a_host_has_is_told() -> None:
    """Memory, cores and NUMA nodes of this machine, at every launch."""
    facts = collect(request()).facts

    assert facts.system.cpus >= len(os.sched_getaffinity(0))
    assert facts.system.memory
    assert facts.system.memory_free
    assert facts.system.load is not None
    assert facts.top_process is None


def test_who_keeps_the_cores_busy_is_told_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop of ours has had half a second of a core, however long that took."""
    monkeypatch.setattr(machine, "MIN_TOP_CORES", 0.001)
    spin = (
        "import sys, time\nwhile time.process_time() < 0.5: pass\n"
        "open(sys.argv[1], 'w').write('x')\nwhile True: pass"
    )
    with subprocess.Popen([sys.executable, "-c", spin, str(tmp_path / "up")]) as loop:
        try:
            wait_for_text(tmp_path / "up")
            found = collect(request(thorough=True)).facts.top_process
        finally:
            loop.kill()

    assert found is not None
    assert found.user


def test_a_driver_that_hangs_costs_its_deadline_and_no_more(driver: Any) -> None:
    """Everything else is known as usual."""
    driver("HANG")

    with within(5):
        facts = collect(request(tool_timeout_s=0.5)).facts

    assert facts.gpu_source == "the driver did not answer within 0.5 s"
    assert facts.interfaces


def test_a_driver_that_hangs_is_asked_while_setup_runs(driver: Any) -> None:
    """Its time passes beside that of the setup lines, not after it."""
    driver("HANG")

    with within(2.9):
        facts = setting_up("sleep 1.5", tool_timeout_s=1.5).facts

    assert facts.gpu_source == "the driver did not answer within 1.5 s"


def test_a_driver_that_crashes_takes_nobody_with_it(driver: Any) -> None:
    """It was asked in a child."""
    driver("CRASH")

    assert "ended by signal 11" in collect(request()).facts.gpu_source


def test_a_driver_that_refuses_says_why(driver: Any) -> None:
    """A driver that was updated under a running kernel looks like this."""
    driver("MISMATCH")

    assert collect(request()).facts.gpu_source == "NVML: Driver/library version mismatch"


def test_a_machine_without_a_driver_is_asked_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No child is started for GPUs that cannot be."""
    monkeypatch.setattr(query, "DRIVER_PATHS", ("/none",))

    facts = collect(request()).facts

    assert (facts.gpus, facts.gpu_source) == ((), "none")


# --- folders ---


@pytest.mark.promise(11, 13)
def test_a_dead_disk_costs_its_deadline_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at a folder may never return; the rest of the facts does not wait for it."""
    monkeypatch.setattr("runner.host.facts.collect.unwritable_reason", lambda _: time.sleep(60))

    with within(5):
        facts = collect(request(workdir="/nfs/x", tool_timeout_s=0.5)).facts

    assert facts.workdir_error == "looking at /nfs/x: no answer within 0.5 s"
    assert facts.shm_free
    assert facts.python.version


def test_folders_are_as_another_user_sees_them() -> None:
    """Without root, a folder of somebody else is no place for a run."""
    python = shutil.which("python3", path="/usr/bin")
    if os.geteuid() != 0 or python is None:
        pytest.skip("only root can become somebody else, who needs a python of the system")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        code = Path(folder)
        code.chmod(0o755)
        shutil.copytree(REPO / "runner" / "host", code / "runner" / "host")
        shutil.copytree(REPO / "runner" / "core", code / "runner" / "core")
        environ = {"PATH": os.environ["PATH"], "HOME": "/"}
        asked = request(workdir="/var/lib/x", python=python)
        nobody: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": []}

        facts = under(Path(python), asked, code, env=environ, **nobody)["facts"]

    assert (facts.user, facts.workdir_error) == ("nobody", "no permission to write in /var/lib")


def test_a_read_only_disk_is_named(tmp_path: Path) -> None:
    """Root may write everywhere but there."""
    mount = ["unshare", "--mount", "sh", "-c"]
    inside = f'mount -t tmpfs -o ro none {tmp_path} && exec "$@"'
    if subprocess.run([*mount, inside, "sh", "true"], capture_output=True, check=False).returncode:
        pytest.skip("cannot mount here")
    argv = [*mount, inside, "sh", sys.executable, "-I", "-c", DRIVER, str(REPO)]
    asked = json.dumps(encode(request(workdir=str(tmp_path / "runs"))))

    done = subprocess.run([*argv, asked], capture_output=True, check=True, timeout=60)

    error = json.loads(done.stdout)["facts"]["workdir_error"]
    assert error == f"{tmp_path} is on a read-only file system"


def test_a_script_may_be_anywhere(tmp_path: Path) -> None:
    """Below the project, or absolute; a folder of that name is no script."""
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "train.py").write_text("")

    there = [
        collect(request(project=str(project), script=script)).facts.script_exists
        for script in ("../train.py", f"{tmp_path}/train.py", "train.py", ".")
    ]

    assert there == [True, True, False, False]


def test_shipped_tasks_are_known_by_their_hash(tmp_path: Path) -> None:
    """A host that holds them need not get them again; a folder of that name is not enough."""
    digest = tasks_digest([("train.py", b"print(1)")])
    folder = tmp_path / "tasks" / digest
    folder.mkdir(parents=True)
    (folder / "train.py").write_text("print(1)")

    def held(name: str) -> bool:
        return collect(request(workdir=str(tmp_path), tasks_hash=name)).facts.has_tasks

    assert [held(name) for name in (digest, "abd", "")] == [True, False, False]
    (folder / "train.py").write_text("print(2)")
    assert not held(digest)


# --- ports ---


@pytest.fixture
def free_port() -> int:
    """A port that nobody has a moment ago."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def held(free_port: int) -> Iterator[socket.socket]:
    """A reserved port."""
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


@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.1", "::", "::1"])
@pytest.mark.parametrize("anywhere", [True, False])
def test_a_reserved_port_is_kept_from_others_but_not_from_the_store(
    free_port: int, address: str, *, anywhere: bool
) -> None:
    """Who does not share is refused; who does, as torch's store, can bind and listen."""
    reserved, _ = ports.reserve(*((0, 0) if anywhere else (free_port, free_port)))
    assert reserved is not None
    port = reserved.getsockname()[1]

    with reserved:
        with pytest.raises(OSError, match="in use"):
            bind(port, address, shared=False)
        with bind(port, address, shared=True) as store:
            store.listen()
            assert len(ports.listening_inodes(port)) == 1
        assert ports.listening_inodes(port) == set()


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


LISTEN = """
import socket, sys
address, port = sys.argv[1:]
family = socket.AF_INET6 if ":" in address else socket.AF_INET
server = socket.socket(family)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind((address, int(port)))
server.listen()
print("listening", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_who_listens_on_the_port_is_named(free_port: int, address: str) -> None:
    """At whatever address; with its pid and command."""
    argv = [sys.executable, "-c", LISTEN, address, str(free_port)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin
        assert other.stdout
        other.stdout.readline()
        answer = collect(request(reserve_port=True, port_first=free_port, port_last=free_port))
        shown = procfs.process_command(other.pid)
        other.stdin.close()

    assert (answer.reserved.store, answer.facts.reserved_port) == (None, 0)
    assert answer.facts.port_error == f"port {free_port} is taken by {shown} (pid {other.pid})"


def test_the_near_end_of_a_connection_is_no_free_port() -> None:
    """The kernel may have given the port to somebody's outgoing connection."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        port = client.getsockname()[1]
        reserved, error = ports.reserve(port, port)

    assert reserved is None
    assert "near end of a connection" in error


def test_a_range_is_searched_and_named_when_all_of_it_is_taken(held: socket.socket) -> None:
    """Random order finds the free ones; the error names the range, and the first few by name."""
    first = held.getsockname()[1]
    others = []
    while (found := ports.reserve(first, min(first + 4, 65535)))[0]:
        others.append(found[0])

    assert {other.getsockname()[1] for other in others} <= set(range(first + 1, first + 5))
    assert found[1].startswith(
        f"no port from {first} to {min(first + 4, 65535)} is free: {first} is"
    )
    for other in others:
        other.close()


def test_a_reserved_port_can_be_handed_on(held: socket.socket) -> None:
    """A child that inherits the socket keeps the port after its parent let go."""
    port = held.getsockname()[1]
    held.set_inheritable(True)
    argv = [sys.executable, "-c", "input()"]
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, pass_fds=[held.fileno()])
    held.close()
    try:
        assert ports.reserve(port, port)[0] is None
    finally:
        child.communicate(b"\n", timeout=20)
    again, _ = ports.reserve(port, port)
    assert again is not None
    again.close()


def test_children_do_not_hold_the_port(held: socket.socket) -> None:
    """A probe that hangs for ever must not keep it."""
    port = held.getsockname()[1]
    child = bounded_child.BoundedChild(lambda: time.sleep(60), 60)
    try:
        held.close()
        deadline = time.monotonic() + 5
        while (again := ports.reserve(port, port)[0]) is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        again.close()
    finally:
        child.kill()


STORE = """
import sys
from datetime import timedelta
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), None, True, timedelta(seconds=20), False,
                 use_libuv=sys.argv[2] == "libuv")
store.set("a", "b")
print(store.get("a").decode(), flush=True)
input()
"""


@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.1", "::", "::1"])
def test_a_listener_on_a_reserved_port_is_found(
    address: str, held: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any address; before that every look costs one system call, however full /proc is."""
    port = held.getsockname()[1]
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


@pytest.mark.parametrize("backend", ["libuv", "sockets"])
def test_torchs_store_listens_on_a_reserved_port(held: socket.socket, backend: str) -> None:
    """While we hold it, and keeps it after we let go; whoever comes later is refused."""
    pytest.importorskip("torch")
    port = held.getsockname()[1]
    store = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", STORE, str(port), backend],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert store.stdout is not None
        assert store.stdout.readline() == b"b\n"
        assert ports.socket_owners(ports.listening_inodes(port), [store.pid, os.getpid()]) == {
            store.pid
        }
        held.close()
        for shared in (True, False):
            with pytest.raises(OSError, match="in use") as refused:
                bind(port, "0.0.0.0", shared=shared)
            assert refused.value.errno == errno.EADDRINUSE
        assert f"(pid {store.pid})" in ports.reserve(port, port)[1]
    finally:
        store.communicate(b"\n", timeout=30)


# --- children ---


def test_a_child_that_is_not_waited_for_is_ended_with_its_group(tmp_path: Path) -> None:
    """Whatever way `collect` is left."""
    child = setup.start(
        [f"sleep 300 & echo $! > {tmp_path}/pid; sleep 300"], dict(os.environ), "", 60
    )
    wait_for_text(tmp_path / "pid")

    child.kill()

    assert child.code == -signal.SIGKILL
    wait_for_end_of(int((tmp_path / "pid").read_text()))


def test_a_child_outlives_its_parent_by_its_deadline_only(tmp_path: Path) -> None:
    """Should the link be killed, the interpreter it asked still ends."""
    pid = tmp_path / "pid"
    hang = program(tmp_path / "hang", f"#!/bin/sh\necho $$ > {pid}\nexec sleep 300\n")

    def serve() -> None:
        interpreter.start(str(hang), dict(os.environ), "", 1.0)
        time.sleep(60)

    link = bounded_child.BoundedChild(serve, 60)
    wait_for_text(pid)
    link.kill()

    assert Path(f"/proc/{pid.read_text().strip()}").exists()
    wait_for_end_of(int(pid.read_text()))


def test_what_cannot_be_started_is_an_answer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host at its limit of processes is told about, not stumbled over."""

    def fork() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", fork)

    facts = collect(request()).facts

    assert "cannot start a process" in facts.python.error
    assert "cannot start a process" in facts.workdir_error
    assert facts.interfaces


# --- packages, and the login shell ---


def test_packages_are_found_by_their_folders(tmp_path: Path) -> None:
    """In every form that installers leave; leftovers are none, and what is like it is told."""
    site = tmp_path / "site"
    for folder, text in {
        "Foo_Bar-1.2.dist-info/METADATA": "Name: foo-bar",
        "leftover-3.0.dist-info/RECORD": "",
        "~roken-1.0.dist-info/METADATA": "",
        "zope.deep-4.1-py3.8.egg-info/PKG-INFO": "Name: zope.deep",
        "editable.egg-info/PKG-INFO": "Metadata-Version: 2.1\nName: editable\nVersion: 0.3.dev1\n",
        "packed-2.0-py3.8.egg/EGG-INFO/PKG-INFO": "",
        "opencv_python_headless-4.9.0.80.dist-info/METADATA": "",
        "bare/__init__.py": "",
    }.items():
        path = site / folder
        path.parent.mkdir(parents=True)
        path.write_text(text)
    (site / "flat-5.0.egg-info").write_text("Name: flat")
    paths = os.pathsep.join(map(str, [site, site / "packed-2.0-py3.8.egg", tmp_path / "none"]))
    wanted = ("foo-bar", "leftover", "roken", "zope-deep", "editable", "packed", "flat")
    others = ("opencv-python", "bare", "nowhere")
    for python in INTERPRETERS:
        asked = interpreter.start(
            str(python), {**os.environ, "PYTHONPATH": paths}, "", 15.0, (*wanted, *others)
        )
        run_steps(bounded_child.wait_all([asked]))
        told = interpreter.result(asked, str(python))
        assert told.packages == {
            "foo-bar": "1.2",
            "zope-deep": "4.1",
            "editable": "0.3.dev1",
            "packed": "2.0",
            "flat": "5.0",
        }
        similar = {name: told.substitutes.get(name) for name in others}
        assert similar == {
            "opencv-python": "opencv_python_headless",
            "bare": "bare",
            "nowhere": None,
        }


def test_packages_that_nobody_asked_for_are_not_listed() -> None:
    """The answer stays small."""
    assert collect(request()).facts.python.packages is None
    told = collect(request(packages=("pytest", "no-such-thing"))).facts.python
    assert told.packages == {"pytest": pytest.__version__}


@pytest.mark.parametrize("shell", ["bash", "sh", "zsh", "fish", "tcsh", "dash"])
def test_every_login_shell_can_be_asked(shell: str, tmp_path: Path) -> None:
    """Whatever its start-up files print."""
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"no {shell} here")
    (tmp_path / "python-of-mine").symlink_to(sys.executable)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path), "ENV": ""}
    (tmp_path / ".profile").write_text(f"echo Welcome; export PATH={tmp_path}:$PATH\n")
    argv = interpreter.login_argv(path, "python-of-mine")
    done = subprocess.run(
        argv, env=environ, capture_output=True, check=False, timeout=20, stdin=subprocess.DEVNULL
    )
    assert interpreter.parse_path(done.stdout.decode()) == str(tmp_path / "python-of-mine")


def test_what_a_login_shell_says_is_its_last_word() -> None:
    """Not what a start-up file prints; nothing where there is no such program."""
    assert interpreter.parse_path("hello\nrunner-login:/a/python3\nbye") == "/a/python3"
    assert interpreter.parse_path("runner-login:\n") == ""
    assert interpreter.parse_path("no job control in this shell") == ""
