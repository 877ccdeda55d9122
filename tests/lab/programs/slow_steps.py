"""A training whose steps take 0.5 s more until a file is there: for tests that disturb it.

Its arguments are those of $SLOW_SCRIPT, and the file is $SLOW_UNTIL.
"""

import os
import runpy
import sys
import time

from torch.optim.optimizer import register_optimizer_step_post_hook


def wait(*_: object) -> None:
    if not os.path.exists(os.environ["SLOW_UNTIL"]):
        time.sleep(0.5)


register_optimizer_step_post_hook(wait)
sys.argv[0] = os.environ["SLOW_SCRIPT"]
runpy.run_path(sys.argv[0], run_name="__main__")
