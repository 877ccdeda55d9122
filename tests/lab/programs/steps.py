"""A rank without torch that goes on where it was: steps.py FOLDER STEPS SECONDS[/LATER] [WHEN...]

Each step is a line in FOLDER/rank_R, which all hosts see. It takes SECONDS, in attempts after the
first LATER. WHEN is fail=RANK:STEP:CODE, hang=RANK:STEP or wait=RANK:STEP (for FOLDER/go): what
that rank does at that step in the first attempt; with another ":ATTEMPT" in that one, with
":always" in all.
"""

import os
import sys
import time

FOLDER, STEPS, PAUSE, *WHEN = sys.argv[1:]
RANK, NODE = os.environ["RANK"], os.environ["RUNNER_NODE"]
ATTEMPT = os.environ.get("RUNNER_ATTEMPT", "0")
SECONDS, _, LATER = PAUSE.partition("/")
PATH = f"{FOLDER}/rank_{RANK}"


def done() -> int:
    try:
        with open(PATH) as file:
            return file.read().count("\n")
    except FileNotFoundError:
        return 0


def act(step: int) -> None:
    for each in WHEN:
        name, _, rest = each.partition("=")
        rank, at, *more = rest.split(":")
        code = int(more.pop(0)) if name == "fail" else 0
        when = more[0] if more else "0"
        if rank != RANK or int(at) != step or when not in (ATTEMPT, "always"):
            continue
        if name == "fail":
            sys.exit(code)
        if name == "wait":
            while not os.path.exists(f"{FOLDER}/go"):
                time.sleep(0.05)
            continue
        print("hanging", flush=True)
        time.sleep(600)


print(f"attempt {ATTEMPT} from step {done()}", flush=True)
for step in range(done(), int(STEPS)):
    act(step)
    time.sleep(float(SECONDS if ATTEMPT == "0" else LATER or SECONDS))
    with open(PATH, "a") as file:
        file.write(f"{step} {ATTEMPT} {NODE}\n")
    print(f"step {step}", flush=True)
