"""A rank that waits: hanging.py HOW RANK. That rank never joins what the others wait in."""

import os
import sys
import time

HOW, LATE = sys.argv[1], int(sys.argv[2])
RANK = int(os.environ["RANK"])


def load_batch() -> None:
    print("loading", flush=True)
    while not os.access("go", os.F_OK):  # no Python function, which could be on top of a stack
        time.sleep(0.05)


def collective() -> None:
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    if HOW == "before" and RANK == LATE:
        load_batch()
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    print(f"sum {total.item():g}", flush=True)
    if RANK == LATE and HOW == "leave":
        print("done", flush=True)
        os._exit(0)  # others see its sockets close when it has ended, not a moment before
    if RANK == LATE and HOW == "raise":
        raise ValueError("lr must be positive")
    if RANK == LATE:
        load_batch()
    dist.all_reduce(total)


def wait() -> None:
    print("waiting", flush=True)
    while not os.access("go", os.F_OK):  # no Python function, which could be on top of a stack
        time.sleep(0.05)


def read_shard() -> None:
    os.mkfifo("shard")
    open("shard").read()


def spin() -> None:
    with open("metrics.jsonl", "a") as file:
        file.write("{}\n")
    while True:
        sum(range(1_000_000))
        print("busy", flush=True)


if HOW in ("before", "collective", "leave", "raise"):
    collective()
elif HOW == "spin" and RANK == LATE:
    spin()
elif HOW == "pipe" and RANK == LATE:
    read_shard()
elif RANK == LATE:
    load_batch()
else:
    wait()
print("done", flush=True)
