"""A rank without torch: does one thing at a time, in the order of its arguments.

print=TEXT  err=TEXT  lines=N  sleep=SECONDS  exit=CODE  deaf  daemon  touch=PATH
rank=RANK:WORD  fail=RANK:CODE  once=RANK:TEXT_WITH_UNDERSCORES  raise=RANK:TEXT_WITH_UNDERSCORES  count=N/SECONDS  env=NAME  cat  wait=PATH  and what unruly.py knows
"""

import os
import signal
import subprocess
import sys
import time

import unruly  # type: ignore[import-not-found]  # beside this file

RANK = os.environ.get("RANK", "0")


def do(word: str) -> None:
    name, _, value = word.partition("=")
    if name == "print":
        print(value)
    elif name == "err":
        print(value, file=sys.stderr)
    elif name == "lines":
        for number in range(int(value)):
            sys.stdout.write(f"{RANK} {number:08d} ".ljust(99, "x") + "\n")
    elif name == "count":
        total, _, pause = value.partition("/")
        for each in range(int(total)):
            print(f"line {each}", flush=True)
            time.sleep(float(pause or 0))
    elif name == "sleep":
        time.sleep(float(value))
    elif name == "exit":
        sys.exit(int(value))
    elif name == "fail":
        rank, _, code = value.partition(":")
        if rank == RANK:
            sys.exit(int(code))
    elif name == "raise":
        rank, _, text = value.partition(":")
        if rank == RANK:
            raise RuntimeError(text.replace("_", " "))
    elif name == "once":
        fail_once(*value.split(":"))
    elif name == "deaf":
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
    elif name == "daemon":
        argv = [sys.executable, __file__, "deaf", "print=deaf", "sleep=600"]
        child = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True)
        child.stdout and child.stdout.readline()  # it is deaf now
    elif name == "touch":
        open(value.replace("RANK", RANK), "w").close()
    elif name == "wait":
        while not os.path.exists(value):
            time.sleep(0.02)
    elif name == "env":
        print(f"{value}={os.environ.get(value)}")
    elif name == "cat":
        print(f"stdin: {sys.stdin.read()!r}")
    elif name == "rank":
        rank, _, other_word = value.partition(":")
        if rank == RANK:
            do(other_word)
    elif not unruly.did(name, value, __file__):
        sys.exit(f"rank.py knows no {word!r}")


def fail_once(rank: str, text: str) -> None:
    """Raise in that rank at its first start; in the others, when torch ends them for it."""
    mark = os.path.expanduser(f"~/.once-{os.environ['RUNNER_RUN_ID']}-{RANK}")
    if not os.path.exists(mark):
        open(mark, "w").close()
        signal.signal(
            signal.SIGTERM,
            lambda *_: do(
                f"raise={RANK}:[gloo/transport/tcp/pair.cc:553]_Connection_closed_by_peer"
            ),
        )
        do(f"raise={rank}:{text}")
        time.sleep(60)


for argument in sys.argv[1:]:
    do(argument)
    sys.stdout.flush()
