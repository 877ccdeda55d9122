"""`python -m runner`."""

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", sys.flags.isolated):
    del sys.path[0]  # the user's folder, which may have a `queue.py`

import os
import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
    # Nothing is begun while modules are imported, so there is nothing to end or to say.
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))

from runner.cli.main import entry

if __name__ == "__main__":
    entry()
