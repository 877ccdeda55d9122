"""`python -m runner`."""

import os
import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
    # Nothing is begun while modules are imported, so there is nothing to end or to say.
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))

from runner.cli.main import entry

if __name__ == "__main__":
    entry()
