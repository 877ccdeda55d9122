"""Notifications on real hosts: who tells of a run, once, and that nothing depends on it."""

from __future__ import annotations

import http.server
import json
import signal
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.lab import Lab
from tests.lab.launching import PLAIN_ENTRY, PROGRAMS, Launcher
from tests.lab.slurm import HPC, Slurm
from tests.lab.waiting import wait_until, wait_until_idle

TOKEN = "T0k3n-of-the-web-hook"


def command(folder: Path) -> str:
    """A command that keeps what it is told, in a folder that all hosts and the launch see."""
    variables = '"$RUNNER_RUN_ID $RUNNER_EVENT $RUNNER_STATE"'
    new = f"new=$(mktemp {folder}/new.XXXXXX)"
    return f"{new}; cat > $new; echo {variables} >> $new; mv $new {folder}/told.$(date +%s%N)"


def notify(*targets: str) -> str:
    """The override for these targets."""
    return f"notify={json.dumps(targets)}"


def told(folder: Path) -> list[dict[str, Any]]:
    """What was told so far."""
    texts = (path.read_text() for path in sorted(folder.glob("told.*")))
    found: list[dict[str, Any]] = []
    for text in texts:
        message, variables = text.splitlines()
        found.append(json.loads(message))
        assert variables == " ".join(found[-1][key] for key in ("run_id", "event", "state"))
    return found


def events_told(folder: Path) -> list[tuple[str, str, str]]:
    """The same, in short: the event, the state, who told."""
    return [(each["event"], each["state"], each["told_by"]) for each in told(folder)]


def test_a_launch_tells_once_and_no_target_changes_its_end(
    lab: Lab, on_lab: Launcher, steps: Path
) -> None:
    """Of two targets one fails, the other hangs and is cut off; the verdict stays."""
    hanging = f"echo $$ > {steps}/pid; sleep 600"
    targets = notify(command(steps), "echo no such channel; exit 3", hanging)
    failed = on_lab.run_ranks("fail=1:7 sleep=30", "cluster=lab", "grace_s=1", targets)
    assert failed.code == 1, failed
    (message,) = told(steps)
    assert message["v"] == 1
    assert message["event"] == "failure"
    assert (message["state"], message["exit_code"]) == ("failed", 1)
    assert (message["run_id"], message["task"]) == (failed.folder.name, "rank")
    assert (message["cluster"], message["told_by"]) == ("lab", "launch")
    assert message["nodes"] == [*lab.hosts]
    failure = message["first_failure"]
    assert (failure["node"], failure["rank"], failure["reason"]) == ("node2", 1, "exited with 7")
    assert "failed after" in message["text"]
    assert message["text"] == message["content"]
    assert message["hint"] == f"python -m runner why --run {failed.folder.name}"
    assert 'the notification "echo no such channel; exit 3" failed: exited with 3: no such' in (
        failed.err
    )
    assert "failed: it took longer than 3.75 s, and was killed" in failed.err
    assert not Path(f"/proc/{(steps / 'pid').read_text().strip()}").exists()
    recorded = [event for event in failed.events if event["kind"] == "notification_failed"]
    assert [(event["node"], event["event"]) for event in recorded] == [("", "failure")] * 2
    assert "no such channel" in on_lab(*message["hint"].split()[3:]).err
    ended = on_lab.run_ranks("print=x", "cluster=lab", notify(command(steps), "false"))
    assert ended.code == 0, ended
    assert events_told(steps)[1:] == [("end", "succeeded", "launch")]
    dry = on_lab.run_ranks("print=x", "cluster=lab", "dry_run=true", notify(command(steps)))
    assert dry.code == 0
    assert len(told(steps)) == 2


def test_a_run_that_nobody_watches_is_told_of_by_its_hub(
    lab: Lab, on_lab: Launcher, steps: Path
) -> None:
    """Detached, or left by a launch that died: once, by the master, which goes on record."""
    targets = notify(command(steps), "exit 5")
    where = ("cluster=lab", "grace_s=1", targets)
    ended = on_lab.run_ranks("sleep=2", *where, "detach=true")
    assert ended.code == 0, ended
    wait_until(lambda: told(steps), "the end")
    failing = on_lab.run_ranks("sleep=2 fail=2:9 sleep=60", *where, "detach=true")
    wait_until(lambda: len(told(steps)) > 1, "the failure")
    words = on_lab.rank_overrides("print=up", "sleep=60")
    left = on_lab.start(*words, *where, "disconnect_s=5")
    left.until_printed("up", 4)
    left.process.send_signal(signal.SIGKILL)
    wait_until(lambda: len(told(steps)) > 2, "the end for want of a controller", 40)
    wait_until_idle(lab)
    assert events_told(steps) == [
        ("end", "succeeded", "node1"),
        ("failure", "failed", "node1"),
        ("failure", "stopped", "node1"),
    ]
    first, second, third = told(steps)
    assert (first["exit_code"], first["first_failure"]) == (0, None)
    assert first["hint"] == f"python -m runner why --run {ended.folder.name}"
    assert "  notify: node1 tells, and runs the commands\n" in ended.err
    failure = second["first_failure"]
    assert (failure["node"], failure["rank"], failure["reason"]) == ("node3", 2, "exited with 9")
    assert third["exit_code"] == 1
    run_id = failing.folder.name
    record = f"~/.runner/runs/{run_id}/node1/events.jsonl"
    wait_until(lambda: "notification_failed" in lab["node1"].sh(f"cat {record}"), "its failure")
    said = on_lab("why", "--cluster", "lab", "--run", run_id)
    assert said.code == 0, said
    assert 'node1: the notification "exit 5" failed: exited with 5' in said.err


@pytest.fixture
def hook(lab: Lab, tmp_path: Path) -> Iterator[tuple[str, list[tuple[str, Any]], Path]]:
    """A server that speaks TLS: its address, what it got, and the certificate to trust."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    address = lab.address
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-keyout", str(key), "-out", str(cert), "-subj", "/CN=hook"),
            *("-addext", f"subjectAltName=IP:{address}"),
        ],
        check=True,
        capture_output=True,
    )
    cert.chmod(0o644)
    received: list[tuple[str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            """Keep what was posted; the first time it is busy."""
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            received.append((self.path, body))
            self.send_response(503 if len(received) == 1 else 204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server = http.server.ThreadingHTTPServer((address, 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"https://{address}:{server.server_port}", received, cert
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_web_hook_is_told_and_its_secret_is_on_no_record(
    lab: Lab, on_lab: Launcher, hook: tuple[str, list[tuple[str, Any]], Path]
) -> None:
    """By the launch, then by the hub; a certificate that nobody vouches for is refused."""
    address, received, cert = hook
    on_lab.env["HOOK"] = TOKEN
    url = f"{address}/services/$HOOK"
    where = ("cluster=lab", "cluster.only=[node1,node2]", "cluster.secrets=[HOOK]", notify(url))
    trusted = {"SSL_CERT_FILE": str(cert)}
    ended = on_lab.run_ranks("print=x", *where, env=trusted)
    assert ended.code == 0, ended
    assert "notification" not in ended.err
    path = f"/services/{TOKEN}"
    assert [(path, "launch")] * 2 == [(at, body["told_by"]) for at, body in received]
    setup = f'cluster.setup=["export SSL_CERT_FILE={cert}"]'
    detached = on_lab.run_ranks("env=HOOK sleep=2 fail=1:3", *where, setup, "detach=true")
    assert detached.code == 0, detached
    wait_until(lambda: len(received) > 2, "the hub's")
    wait_until_idle(lab)
    at, body = received[-1]
    assert (at, body["told_by"], body["state"]) == (path, "node1", "failed")
    assert TOKEN not in json.dumps(body)
    refused = on_lab.run_ranks("print=x", *where)
    assert refused.code == 0, refused
    assert f'the notification "{address}/…" failed: ' in refused.err
    assert "certificate" in refused.err.lower()
    assert len(received) == 3
    for folder in (ended.folder, refused.folder):
        found = subprocess.run(["grep", "-rl", TOKEN, folder], check=False, capture_output=True)
        assert found.stdout == b""
    for name in ("node1", "node2"):  # but what a rank itself has printed
        there = lab[name].sh(f"grep -rl {TOKEN} ~/.runner/runs || true").split()
        assert [each for each in there if "/attempt_0/rank_" not in each] == []


def test_the_hosts_tell_of_their_relaunch(lab: Lab, on_lab: Launcher, steps: Path) -> None:
    """Who leads tells, here the second node: of the relaunch, and as the hub of the end."""
    words = json.dumps([str(steps), "30", "0.3/0.1"])
    done = on_lab(
        *("cluster=lab", "detach=true", "grace_s=1", "lost_s=4", "task.nnodes=3"),
        *("relaunch.max=1", "relaunch.backoff_s=0.5", f"task.script={PROGRAMS / 'steps.py'}"),
        *(PLAIN_ENTRY, "task.args_style=raw", f"task.args={words}", notify(command(steps))),
    )
    assert done.code == 0, done
    wait_until((steps / "rank_2").exists, "the first steps", 30)
    lab["node1"].power_off()
    wait_until(lambda: len(told(steps)) > 1, "the end", 60, detail=lambda: told(steps))
    assert events_told(steps) == [
        ("relaunch", "restarting", "node2"),
        ("end", "succeeded", "node2"),
    ]
    relaunch, end = told(steps)
    assert (relaunch["attempt"], end["attempt"]) == (1, 1)
    assert relaunch["nodes"] == end["nodes"] == ["node2", "node3", "node4"]
    assert "is relaunched as attempt 2 on node2, node3, node4: lost node1: " in relaunch["text"]
    left = [name for name in lab.hosts if name != "node1"]
    wait_until(lambda: not any(lab[name].leftovers() for name in left), "the end", 30)


def test_a_launch_tells_of_its_relaunch_and_a_survivor_of_a_lost_hub(
    lab: Lab, on_lab: Launcher, steps: Path
) -> None:
    """Watched: relaunch, then end. Detached without one: the second node tells that it is lost."""
    words = json.dumps([str(steps), "6", "0.1", "fail=1:3:7"])
    task = (f"task.script={PROGRAMS / 'steps.py'}", PLAIN_ENTRY, "task.args_style=raw")
    where = ("cluster=lab", "grace_s=1", "lost_s=4", "task.nnodes=3", notify(command(steps)))
    relaunch = ("relaunch.max=1", "relaunch.backoff_s=0.1")
    done = on_lab(*where, *task, *relaunch, f"task.args={words}")
    assert done.code == 0, done
    assert events_told(steps) == [
        ("relaunch", "restarting", "launch"),
        ("end", "succeeded", "launch"),
    ]
    assert "rank 1 on node2 exited with 7" in told(steps)[0]["text"]
    args = f"task.args={json.dumps([str(steps), '900', '0.1'])}"
    detached = on_lab(*where, *task, args, "detach=true")
    assert detached.code == 0, detached
    lab["node1"].power_off()
    wait_until(lambda: len(told(steps)) > 2, "the loss", 40)
    left = [name for name in lab.hosts if name != "node1"]
    wait_until(lambda: not any(lab[name].leftovers() for name in left), "the end", 30)
    assert events_told(steps)[2:] == [("failure", "lost", "node2")]
    assert told(steps)[2]["exit_code"] == 4


def test_a_stall_is_told_once(lab: Lab, on_lab: Launcher, steps: Path) -> None:
    """By the launch, and where nobody watches by the hub, whose own rank has ended."""
    hanging = (f"task.script={PROGRAMS / 'hanging.py'}", "task.args_style=raw", PLAIN_ENTRY)
    where = ("cluster=lab", *hanging, 'task.args=["wait","2"]', "watch.stall_s=2", "grace_s=1")
    running = on_lab.start(*where, notify(command(steps)))
    wait_until(lambda: told(steps), "the stall", 40)
    for name in lab.hosts:
        lab[name].sh('for work in ~/.runner/runs/*/*/work; do touch "$work/go"; done')
    ended = running.wait()
    assert ended.code == 0, ended
    assert events_told(steps) == [("stall", "running", "launch"), ("end", "succeeded", "launch")]
    script = steps / "one_ends.py"
    script.write_text(
        "import os, time\n"
        "rank = os.environ['RANK']\n"
        "end = time.time() + (8 if rank == '1' else 0)\n"
        "while rank == '1' and time.time() < end: print('at work', flush=True); time.sleep(0.2)\n"
        "if rank != '0': time.sleep(600)\n"
    )
    task = (f"task.script={script}", PLAIN_ENTRY, "watch.stall_s=3", "watch.action=stop")
    detached = on_lab("cluster=lab", *task, "grace_s=1", "detach=true", notify(command(steps)))
    assert detached.code == 0, detached
    wait_until(lambda: len(told(steps)) > 3, "stall and end", 60, detail=lambda: told(steps))
    wait_until_idle(lab)
    assert events_told(steps)[2:] == [("stall", "running", "node1"), ("failure", "failed", "node1")]
    assert told(steps)[2]["seconds"] > 8  # not while one rank had progress


def test_a_job_of_slurm_is_told_of_by_its_first_node(
    slurm: Slurm, hpc: Launcher, steps: Path
) -> None:
    """Slurm ends whatever outlives a job: that is not over before all are told."""
    failed = hpc.run_ranks("fail=1:7 sleep=300", HPC, notify(f"sleep 2; {command(steps)}"))
    assert failed.code == 1, failed
    wait_until(lambda: told(steps), "the failure", 20)
    wait_until(lambda: not slurm.jobs(), "the end of the job", 20)
    assert events_told(steps) == [("failure", "failed", "node1")]
    failure = told(steps)[0]["first_failure"]
    assert (failure["node"], failure["rank"], failure["reason"]) == ("node2", 1, "exited with 7")
