"""A rank without torch that tells ten steps: rank 0 prints them, others write $RUNNER_METRICS."""

import json
import os
import time
from pathlib import Path

rank = int(os.environ["RANK"])
for step in range(1, 11):
    loss = float("nan") if step == 10 else 1 / step
    record = {"step": step, "steps": 10, "loss": loss, "rate": 64.0, "unit": "samples"}
    if rank == 0:
        print(json.dumps(record), flush=True)
    else:
        with Path(os.environ["RUNNER_METRICS"]).open("a") as file:
            file.write(json.dumps(record) + "\n")
    if step == 3:
        print('{"step": 2.5}' if rank == 0 else "a line", flush=True)
    time.sleep(0.02)
