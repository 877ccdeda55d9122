"""`python -m runner`."""

from runner.cli import entry

if __name__ == "__main__":
    entry()
