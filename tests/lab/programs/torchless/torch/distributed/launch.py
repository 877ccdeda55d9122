"""A stand-in for torch's older launcher, which with `--use_env` is torchrun by another name."""

import sys

from torch.distributed.run import main

if __name__ == "__main__":
    sys.exit(main())
