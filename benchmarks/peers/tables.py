"""placeholder."""
from benchmarks.peers.results import Record


def write(record: Record) -> None:
    """x."""
