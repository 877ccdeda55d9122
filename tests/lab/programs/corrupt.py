"""Another program, on which one rank's operation of torch.distributed changes what it brings.

    corrupt.py RANK OPERATION PROGRAM ARGS...

After the operation, 1 is added to the first number of its first argument (of the first tensor of
it, where that is a list).
"""

import os
import runpy
import sys
from typing import Any

import torch.distributed as dist

rank, operation, program = sys.argv[1:4]
genuine = getattr(dist, operation)


def corrupt(first: Any, *args: Any, **kwargs: Any) -> Any:
    """Do as the operation does, but for one number."""
    result = genuine(first, *args, **kwargs)
    (first[0] if isinstance(first, list) else first).flatten()[0] += 1
    return result


if os.environ["RANK"] == rank:
    setattr(dist, operation, corrupt)
sys.argv = sys.argv[3:]
runpy.run_path(program, run_name="__main__")
