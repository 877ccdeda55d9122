"""Another program, with one operation of torch.distributed changed in one rank.

    MEDDLE="RANK OPERATION HOW PROGRAM" meddling.py ARGS...

HOW is `corrupt`: after the operation, 1 is added to the first number of its first argument; or
`late`: each takes 20 ms more.
"""

import os
import runpy
import sys
import time
from typing import Any

import torch.distributed as dist

rank, operation, how, program = os.environ["MEDDLE"].split()
genuine = getattr(dist, operation)


def meddle(first: Any, *args: Any, **kwargs: Any) -> Any:
    if how == "late":
        time.sleep(0.02)
    result = genuine(first, *args, **kwargs)
    if how == "corrupt":
        first.flatten()[0] += 1
    return result


if os.environ["RANK"] == rank:
    setattr(dist, operation, meddle)
sys.argv[0] = program
runpy.run_path(program, run_name="__main__")
