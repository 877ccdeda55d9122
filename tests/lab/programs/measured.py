"""A rank without torch that tells its steps, in order: `measured.py LAST_STEP FILE LAST_STEP`.

Rank 0 prints them, the others append them to `$RUNNER_METRICS`; between the numbers it waits for
a file.
"""

import json
import os
import sys
import time
from pathlib import Path

first, awaited, last = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
rank = int(os.environ["RANK"])

for step in range(1, last + 1):
    loss = float("nan") if step == last else 1 / step
    record = {"step": step, "steps": last, "loss": loss, "rate": 64.0, "unit": "samples"}
    if rank == 0:
        print(json.dumps(record), flush=True)
    else:
        with Path(os.environ["RUNNER_METRICS"]).open("a") as file:
            file.write(json.dumps(record) + "\n")
    if step == first:
        print('{"step": 2.5}' if rank == 0 else "a line", flush=True)
        while not awaited.exists():
            time.sleep(0.01)
    time.sleep(0.02)
