"""The verbs as a user types them, on real hosts: what they print, how they end, what they leave."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from runner.cli.scaffold import FABFILE
from tests.lab.lab import Lab
from tests.lab.launching import ROOT, VERBS, Controller, Launcher, Result
from tests.lab.waiting import wait_until

FAB = str(Path(sys.executable).with_name("fab"))
AWKWARD = ["a b", "$HOME", "it's", '"quoted"', "", "*", "-x", "--cluster", "k=v", "a\nb", "--", "ü"]
REFUSED = {
    "verb": (["depoly"], "'depoly' is neither", "deploy"),
    "flag": (["exec", "--nope", "--", "ls"], "'--nope'", "exec --help"),
    "cluster": (["exec", "--cluster", "nope", "--", "ls"], "no cluster 'nope'", "looked in"),
    "value": (["deploy", "--cluster"], "cluster", "deploy --help"),
    "number": (["exec", "--timeout", "soon", "--", "ls"], "soon", "--timeout"),
    "no time": (["exec", "--timeout", "-1", "--", "ls"], "-1", "--timeout"),
    "no limit": (["exec", "--timeout", "nan", "--", "ls"], "nan", "--timeout"),
    "command": (["exec"], "no command", "exec --cluster"),
    "key": (["explain"], "key", "explain --help"),
    "no such key": (["config", "cluster.backnd"], "cluster.backnd", "cluster.backend"),
    "second subject": (["config", "task", "cluster"], "cluster", "config --help"),
    "program": (["train.py"], "'train.py' is neither", "task.script=train.py"),
}


def fab(user: Launcher, *words: str) -> Result:
    """Run `fab WORDS` where the user stands."""
    with closing(Controller([FAB, *words], user.folder, user.env)) as controller:
        return controller.wait(60)


def on_lab_exec(user: Launcher, *words: str) -> Result:
    """Run words on every host of the lab."""
    return user("exec", "--cluster", "lab", "--quiet-equal", "--", *words)


def data(done: Result) -> dict[str, dict[str, object]]:
    """What `exec --json` said of each host."""
    found: dict[str, dict[str, object]] = json.loads(done.out)
    return found


def answer(out: str, code: int = 0, err: str = "", problem: str = "") -> dict[str, object]:
    """What `exec --json` says of one host."""
    return {"code": code, "out": out, "err": err, "problem": problem, "dropped": False}


def test_equal_answers_are_one_and_others_stand_apart(on_lab: Launcher) -> None:
    """`--quiet-equal` folds by output and end, in the order of the YAML; the worst exit code."""
    same = on_lab_exec(on_lab, "echo", "same")
    assert (same.code, same.out) == (0, "── node[1-4] (4) ──\nsame\n"), same
    line = "if [ $(hostname) = node3 ]; then echo odd >&2; exit 3; fi; echo same"
    mixed = on_lab_exec(on_lab, line)
    assert mixed.code == 3, mixed
    assert mixed.out == "── node[1-2,4] (3) ──\nsame\n── node3: exit 3 ──\nodd\n"
    apart = on_lab_exec(on_lab, "hostname")
    assert apart.code == 0, apart
    assert apart.out == "".join(f"── node{n} ──\nnode{n}\n" for n in (1, 2, 3, 4))


def test_a_host_that_runs_a_command_keeps_our_code(lab: Lab, on_lab: Launcher) -> None:
    """Later connections are not sent it; what only looks at a host leaves nothing there."""
    kept = "ls ~/.runner/code 2>/dev/null | wc -l"
    lab["node1"].sh("rm -rf ~/.runner/code")
    only = "cluster.only=[node1]"
    looked = on_lab("ps", "--cluster", "lab", only)
    assert (looked.code, lab["node1"].sh(kept).strip()) == (0, "0"), looked
    done = on_lab("exec", "--cluster", "lab", only, "--", "true")
    assert (done.code, lab["node1"].sh(kept).strip()) == (0, "1"), done


def test_output_is_shown_as_it_comes(lab: Lab, on_lab: Launcher) -> None:
    """By whole lines with their host; failures at the end, and the worst of them is the code."""
    wait = "while [ ! -e /tmp/go ]; do sleep 0.05; done; rm /tmp/go"
    line = (
        f"hostname; echo half; {wait}; echo of it >&2; case $(hostname) in node[34]) exit 3;; esac"
    )
    running = on_lab.start("exec", line, "cluster=lab")
    running.until_printed("half", times=4)
    assert sorted(running.out.splitlines()) == sorted(
        f"[{name}] {text}" for name in lab.hosts for text in (name, "half")
    )
    for host in lab.hosts.values():
        host.sh("touch /tmp/go")
    done = running.wait(30)
    assert done.code == 3, done
    *lines, failures = done.err.splitlines()
    assert sorted(lines) == [f"[{name}] of it" for name in sorted(lab.hosts)]
    assert failures == "node[3-4]: exit 3"


def test_more_output_than_anybody_reads_waits_on_the_hosts(lab: Lab, on_lab: Launcher) -> None:
    """A command that prints without end is held up, and ended when its reader goes away."""
    argv = [sys.executable, "-m", "runner", "exec", "cluster=lab", "cluster.only=[node1]"]
    pipe = subprocess.Popen(
        [*argv, "--", "yes"], cwd=on_lab.folder, env=on_lab.env, stdout=subprocess.PIPE
    )
    assert pipe.stdout is not None
    with pipe.stdout:
        assert pipe.stdout.readline() == b"[node1] y\n"
        wait_until(lambda: _sleeps_in_a_pipe(lab), "the command to wait for its reader")
        memory = Path(f"/proc/{pipe.pid}/status").read_text()
    assert int(re.findall(r"VmHWM:\s+(\d+) kB", memory)[0]) < 300_000
    assert pipe.wait(20) == 128 + signal.SIGPIPE
    assert not lab["node1"].processes("yes")


def _sleeps_in_a_pipe(lab: Lab) -> bool:
    """Whether `yes` makes no progress: its CPU time stays as it is."""
    times = "for p in $(pgrep -x yes); do cut -d' ' -f14,15 /proc/$p/stat; done"
    first = lab["node1"].sh(times)
    time.sleep(0.5)
    return bool(first) and lab["node1"].sh(times) == first


def test_streams_and_ends_are_told_apart_for_programs(lab: Lab, on_lab: Launcher) -> None:
    """`--json` has code, output, errors and problem of every host, and nothing else."""
    line = "echo out; echo err >&2; case $(hostname) in node2) exit 7;; node3) kill -9 $$;; esac"
    done = on_lab("exec", line, "cluster=lab", "--json")
    assert done.code == 128 + signal.SIGKILL, done
    codes = {"node1": 0, "node2": 7, "node3": -9, "node4": 0}
    assert data(done) == {node: answer("out\n", codes[node], "err\n") for node in lab.hosts}


def test_a_signal_without_a_name_is_an_answer_too(on_lab: Launcher) -> None:
    """A real-time signal ends the command, not the verb."""
    done = on_lab_exec(on_lab, "kill -35 $$")
    assert done.code == 128 + 35, done
    assert re.fullmatch(r"── node\[1-4\] \(4\): killed by [^\n]*35[^\n]* ──\n", done.out), done


@pytest.mark.parametrize("way", ["runner", "fab"])
def test_several_words_are_exact(lab: Lab, on_lab: Launcher, way: str) -> None:
    """No shell sees them, here or there; flags of ours after `--` are the command's."""
    (on_lab.folder / "fabfile.py").write_text(FABFILE)
    script = "import json, sys; print(json.dumps(sys.argv[1:]))"
    words = ["exec", "--cluster", "lab", "--json", "--", "python3", "-c", script, *AWKWARD]
    done = fab(on_lab, *words) if way == "fab" else on_lab(*words)
    assert done.code == 0, done
    assert data(done).keys() == lab.hosts.keys()
    for said in data(done).values():
        assert json.loads(str(said["out"])) == AWKWARD


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["runner"], "echo z; echo $((1+2)) >&2; exit 4"),
        (["runner"], "A='x y'; echo ${A#x y}z; echo $((1+2)) >&2; exit 4"),
        (["runner", "--"], "A='x'; echo $A | tr x z; echo $((1+2)) >&2; exit 4"),
        (["fab", "--command"], "A='x'; echo $A | tr x z; echo $((1+2)) >&2; exit 4"),
    ],
    ids=["alone", "an assignment", "after --", "fab --command"],
)
def test_one_word_is_a_line_for_the_shell(
    lab: Lab, on_lab: Launcher, words: list[str], line: str
) -> None:
    """It has variables, pipes and an exit code, wherever it stands on the command line."""
    (on_lab.folder / "fabfile.py").write_text(FABFILE)
    given = ["exec", "--cluster", "lab", "--json", *words[1:], line]
    done = fab(on_lab, *given) if words[0] == "fab" else on_lab(*given)
    assert done.code == 4, done
    assert data(done) == dict.fromkeys(lab.hosts, answer("z\n", 4, "3\n"))


def test_commands_have_the_environment_of_the_setup_and_no_input(
    lab: Lab, on_lab: Launcher
) -> None:
    """What `cluster.setup` exports is there, and reading input ends at once."""
    setup = 'cluster.setup=["export FROM_SETUP=yes"]'
    done = on_lab(
        "exec",
        "--cluster",
        "lab",
        setup,
        "--json",
        'cat; echo "$FROM_SETUP"; [ "$(pwd)" = "$HOME" ] && echo at home',
    )
    assert done.code == 0, done
    assert data(done) == dict.fromkeys(lab.hosts, answer("yes\nat home\n"))


def test_long_output_is_whole_or_said_not_to_be(lab: Lab, on_lab: Launcher) -> None:
    """1 MB of every host arrives; of 9 MB of one, the limit does, and that is said."""
    done = on_lab("exec", "--cluster", "lab", "--json", "--", "seq -w 0 149999")
    assert done.code == 0, done
    whole = "".join(f"{number:06}\n" for number in range(150_000))
    assert {node: said["out"] == whole for node, said in data(done).items()} == dict.fromkeys(
        lab.hosts, True
    )
    words = ("--set", "cluster.only=[node1]", "--", "head -c 9000000 /dev/zero | tr '\\0' x")
    cut = on_lab("exec", "--cluster", "lab", "--json", *words)
    said = data(cut)["node1"]
    assert (said["out"] == "x" * (4 << 20), said["dropped"]) == (True, True)


def test_the_commands_of_a_killed_agent_are_ended(lab: Lab, on_lab: Launcher) -> None:
    """Also in sessions of their own; the host is named, since nobody could say so."""
    line = "setsid sleep 600 & sleep 600"
    running = on_lab.start("exec", "--cluster", "lab", "--", line)

    def sleepers() -> int:
        return sum(each.cmdline.startswith("sleep 600") for each in lab["node2"].processes())

    running.until(lambda: sleepers() == 2, "the command")
    links = [each.pid for each in lab["node2"].processes() if " node2 v1" in each.cmdline]
    lab["node2"].kill(min(links))
    wait_until(lambda: sleepers() == 0, "nothing left", timeout=5)
    running.send()
    done = running.wait(30)
    assert done.code == 5, done
    assert "node2: lost: the connection to it broke" in done.err
    assert "node[1,3-4]: interrupted" in done.err


def test_a_cut_cable_is_noticed(lab: Lab, on_lab: Launcher) -> None:
    """However often the host is pinged: the command ends there once the host hears of it."""
    limits = ("--set", "lost_s=3", "--set", "cluster.only=[node2]")
    running = on_lab.start("exec", "--cluster", "lab", *limits, "--", "sleep 600")
    host = lab["node2"]
    running.until(lambda: len(host.processes("sleep\x00600")) == 1, "the command")
    with lab.cut_off("node2"):
        done = running.wait(15)
    assert done.code == 4, done
    assert "node2: lost: nothing was heard from it for " in done.err
    wait_until(lambda: not host.processes("sleep\x00600"), "nothing left", timeout=30)


def test_what_takes_too_long_is_killed_on_the_host(lab: Lab, on_lab: Launcher) -> None:
    """With what it started in sessions of its own, and its output so far is shown."""
    line = "trap '' TERM INT HUP; setsid sleep 600 & echo begun; sleep 600"
    done = on_lab("exec", "--cluster", "lab", "--timeout", "1", "--", line)
    assert done.code == 128 + signal.SIGKILL, done
    assert sorted(done.out.splitlines()) == [f"[{name}] begun" for name in sorted(lab.hosts)]
    assert done.err == "node[1-4]: did not end in time and was killed\n"
    assert done.seconds < 10
    assert not [host for host in lab.hosts.values() if host.processes("sleep\x00600")]


@pytest.mark.parametrize(
    ("program", "signum", "code"),
    [
        ([sys.executable, "-m", "runner"], signal.SIGINT, 130),
        pytest.param([sys.executable, "-m", "runner"], signal.SIGTERM, 143, marks=pytest.mark.all),
        pytest.param([FAB], signal.SIGINT, 130, marks=pytest.mark.all),
    ],
    ids=["runner INT", "runner TERM", "fab INT"],
)
def test_ctrl_c_ends_it_on_every_host(
    lab: Lab, on_lab: Launcher, program: list[str], signum: signal.Signals, code: int
) -> None:
    """Exit 130 (143 for SIGTERM) without a traceback, and nothing is left, not even daemons."""
    (on_lab.folder / "fabfile.py").write_text(FABFILE)
    line = "trap '' TERM INT HUP; setsid sleep 600 & sleep 600"
    argv = [*program, "exec", "--cluster", "lab", "--", line]
    with closing(Controller(argv, on_lab.folder, on_lab.env)) as running:
        running.until(
            lambda: all(len(host.processes("sleep\x00600")) == 2 for host in lab.hosts.values()),
            "the command on every host",
        )
        running.send(signum)
        done = running.wait(10)
    assert done.code == code, done
    assert "Traceback" not in done.err
    wait_until(lambda: not lab.leftovers(), "the hosts to be idle")


def test_a_host_that_falls_silent_is_lost_and_the_others_answer(lab: Lab, on_lab: Launcher) -> None:
    """Exit 4, and whose answer is missing is said."""
    line = "if [ $(hostname) = node3 ]; then sleep 600; fi; echo here"
    flags = ("--cluster", "lab", "--set", "lost_s=2", "--quiet-equal")
    running = on_lab.start("exec", *flags, "--", line)
    running.until(lambda: lab["node3"].processes("sleep\x00600"), "the command on node3")
    lab["node3"].unplug()
    done = running.wait(30)
    assert done.code == 4, done
    assert re.fullmatch(
        r"── node\[1-2,4\] \(3\) ──\nhere\n── node3: lost: [^\n]+ ──\n", done.out
    ), done
    lab["node3"].plug()
    wait_until(lambda: not lab.leftovers(), "node3 to end it by itself", timeout=30)


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_understood_is_said_once_with_a_hint(launcher: Launcher, case: str) -> None:
    """Exit 2, one message, one way on, and nothing on standard output."""
    words, what, hint = REFUSED[case]
    (launcher.folder / "train.py").touch()
    done = launcher(*words)
    assert (done.code, done.out) == (2, ""), done
    assert "Traceback" not in done.err
    message, *rest = done.err.splitlines()
    assert message.startswith("error: ")
    assert what in message
    assert "error:" not in "".join(rest)
    assert hint in done.err.partition("\n")[2] or hint in message


def test_fab_refuses_what_is_wrong_as_we_do(launcher: Launcher) -> None:
    """Our exit codes and messages come through Fabric."""
    (launcher.folder / "fabfile.py").write_text(FABFILE)
    done = fab(launcher, "exec", "--cluster", "nope", "--", "ls")
    assert (done.code, done.out) == (2, ""), done
    assert done.err.startswith("error: cluster=nope: there is no cluster 'nope'; ")
    assert "Traceback" not in done.err


@pytest.mark.parametrize("verb", [["exec", "--", "touch", "/tmp/ran"], ["deploy"]])
def test_a_host_out_of_reach_is_exit_3(lab: Lab, on_lab: Launcher, verb: list[str]) -> None:
    """It is named with what to change, and nothing is done on the others either."""
    words = ["--cluster", "lab", "--set", "cluster.nodes.node2.port=23"]
    done = on_lab(verb[0], *words, *verb[1:])
    assert (done.code, done.out) == (3, ""), done
    assert done.err.count("error: ") == 1
    assert re.search(r"^error: node2: .*refused", done.err, re.MULTILINE), done
    for host in lab.hosts.values():
        assert host.sh("ls -A /tmp/ran ~/.runner 2>/dev/null || true") == ""


def test_words_and_flags_say_the_same(on_lab: Launcher) -> None:
    """`--set KEY=VALUE` and KEY=VALUE alone, any number of times."""
    flags = on_lab(
        "config", "--cluster", "lab", "--set=cluster.only=[node2,node3]", "--set", "lost_s=9"
    )
    words = ("cluster=lab", "cluster.only=[node2,node3]", "lost_s=9")
    assert flags.code == 0, flags
    assert on_lab("config", *words).out == flags.out
    config = yaml.safe_load(flags.out)
    assert config["lost_s"] == 9
    assert config["cluster"]["only"] == ["node2", "node3"]
    done = on_lab("exec", *words, "--json", "--", "hostname")
    assert done.code == 0, done
    assert data(done) == {node: answer(f"{node}\n") for node in ("node2", "node3")}


def test_a_deploy_says_what_is_where(lab: Lab, on_lab: Launcher) -> None:
    """For people and for programs; what a host has is not sent again."""
    (on_lab.folder / "train.py").write_text("print('hi')\n")
    first = on_lab("deploy", "--cluster", "lab")
    assert first.code == 0, first
    title, *rows = first.out.splitlines()
    found = re.fullmatch(r"release ([0-9a-f]+)", title)
    assert found, first
    assert re.fullmatch(r"  2 files, [\d.]+ k?B", rows[0]), first
    assert re.fullmatch(r"  node\[1-4\]  stored, [\d.]+ k?B sent", rows[1]), first
    assert len(rows) == 2
    assert lab["node4"].sh(f"cat ~/.runner/releases/{found[1]}/code/train.py") == "print('hi')\n"
    again = json.loads(on_lab("deploy", "--cluster", "lab", "--json").out)
    keys = {"release", "commit", "files", "size", "seconds", "sent", "holders"}
    assert again.keys() == keys
    assert (again["release"], again["commit"], again["files"]) == (found[1], "", 2)
    assert again["sent"] == dict.fromkeys(lab.hosts)


def test_a_plan_is_ready_to_paste_and_writes_nothing(lab: Lab, on_lab: Launcher) -> None:
    """One template and a line per host, the same for programs; offline it asks nobody."""
    words = ("cluster=lab", "task=env", "run_id=one")
    told = on_lab(*words, "dry_run=true")
    assert told.code == 0, told
    assert [told.out.count(f"  node_rank={rank}\n") for rank in range(5)] == [1, 1, 1, 1, 0]
    assert told.out.count(f"--master_addr={lab['node1'].address} ") == 1
    offline = on_lab(*words, "dry_run=[offline,json]", "cluster.nodes.node1.port=23")
    assert offline.code == 0, offline
    asked = json.loads(on_lab(*words, "dry_run=json").out)
    assert asked["master_addr"] == lab["node1"].address
    plan = json.loads(offline.out)
    assert [each["node"] for each in plan["nodes"]] == list(lab.hosts)
    assert [each["ranks"] for each in plan["nodes"]] == [[0], [1], [2], [3]]
    assert (plan["run_id"], plan["task"], plan["world_size"]) == ("one", "env", 4)
    assert (plan["rendezvous_reason"], plan["master_addr"]) == ("assumed", lab["node1"].address)
    assert not (on_lab.folder / "runs").exists()
    for host in lab.hosts.values():
        assert host.sh("ls -A ~/.runner 2>/dev/null || true") == ""


def test_the_configuration_composes_again(on_lab: Launcher) -> None:
    """What `config` prints, used as the primary file, means the same; so does a part of it."""
    words = ("cluster=lab", "task=env", "cluster.env.A=${oc.env:HOME}", "run_id=one")
    first = on_lab("config", *words)
    assert first.code == 0, first
    head = (
        "defaults: [runner_base, cluster: base, task: base, _self_,"
        " override hydra/hydra_logging: none, override hydra/job_logging: none]\n"
    )
    again = on_lab.folder / "again"
    (again / "cluster").mkdir(parents=True)
    (again / "runner.yaml").write_text(head + first.out)
    second = on_lab("config", "--config-dir", "again")
    assert (second.code, second.out) == (0, first.out), second
    (again / "runner.yaml").unlink()
    part = on_lab("config", "cluster", *words)
    assert yaml.safe_load(part.out) == yaml.safe_load(first.out)["cluster"]
    (again / "cluster" / "part.yaml").write_text(f"defaults: [base]\n{part.out}")
    flags = ("--config-dir=again", "--json", "--resolve")
    third = json.loads(on_lab("config", "cluster", "cluster=part", *flags).out)
    assert third["env"] == {"A": on_lab.env["HOME"]}
    assert third["nodes"] == yaml.safe_load(part.out)["nodes"]


def test_explain_names_file_and_line(on_lab: Launcher) -> None:
    """The winner first, what it overrides below; the same for programs."""
    file = on_lab.conf / "cluster" / "lab.yaml"
    lines = file.read_text().splitlines()
    at = next(n for n, line in enumerate(lines, start=1) if line.startswith("python:"))
    plain = on_lab("explain", "cluster.python", "cluster=lab")
    assert plain.code == 0, plain
    key, *settings = plain.out.splitlines()
    assert key == f"cluster.python: {sys.executable}"
    torch = "interpreter of the task on the hosts, with torch"
    assert settings == [
        f"  conf/cluster/lab.yaml:{at}",
        "  default (overridden: python3)",
        f"  # {torch}; a path puts its folder first on PATH (path)",
    ]
    over = on_lab("explain", "cluster.python", "cluster=lab", "cluster.python=/mine", "--json")
    (origin,) = json.loads(over.out)
    assert origin.keys() == {"key", "value", "written", "settings", "problem", "meaning"}
    assert (origin["key"], origin["value"]) == ("cluster.python", "/mine")
    assert [(each["where"], each["value"]) for each in origin["settings"]] == [
        ("command line: cluster.python=/mine", "/mine"),
        (f"conf/cluster/lab.yaml:{at}", sys.executable),
        ("default", "python3"),
    ]


FOR_PEOPLE = ("attach", "export", "forward", "logs", "note", "plot", "report")
"""Verbs that print as they go, or write files."""


def test_help_and_list_name_every_verb(launcher: Launcher) -> None:
    """In the repository itself, `fab -l` has all of them; each has help of its own."""
    env = {**launcher.env, "PYTHONPATH": ""}
    with closing(Controller([FAB, "-l", "-F", "json"], ROOT, env)) as controller:
        listed = json.loads(controller.wait(30).out)["tasks"]
    assert sorted(each["name"] for each in listed) == VERBS
    for each in listed:
        done = launcher(each["name"], "--help")
        assert done.code == 0, done
        assert done.out.splitlines()[0] == each["help"]
        has_hosts = each["name"] not in ("compare", "export", "note", "plot")
        assert bool(re.search(r"^  --cluster=CLUSTER {2,}\S", done.out, re.MULTILINE)) == has_hosts
        is_for_people = each["name"] in FOR_PEOPLE
        assert bool(re.search(r"^  --json {2,}\S", done.out, re.MULTILINE)) != is_for_people
