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


def wait() -> None:
    print("waiting", flush=True)
    while not os.access("go", os.F_OK):  # no Python function, which could be on top of a stack
        time.sleep(0.05)


def collective() -> None:
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    if RANK == LATE and HOW == "leave":
        os._exit(0)  # others see its sockets close when it has ended, not a moment before
    if RANK == LATE:
        load_batch()
    dist.all_reduce(total)


if HOW in ("collective", "leave"):
    collective()
elif RANK == LATE:
    load_batch()
else:
    wait()
print("done", flush=True)
