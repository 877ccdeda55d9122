"""Name lookups: this host's resolver, asked for the names and addresses of a cluster."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Any, Callable, List, Tuple

from runner.core.model.network_probe import NameLookups, NameResults

THREAD_STACK_BYTES = 1 << 20  # of each thread: there may be hundreds, and a resolver needs little
Report = Callable[..., None]


def look_up(lookups: NameLookups, report: Report) -> None:
    """Do all lookups in parallel, and report each answer as it arrives; for use in a child."""
    names = {"own": socket.gethostname(), "master": lookups.master_name}
    calls: List[Tuple[Callable[..., None], Tuple[Any, ...]]]
    calls = [(_resolve, (report, key, name)) for key, name in names.items() if name]
    calls += [(_time_reverse_lookup, (report, *item)) for item in lookups.addresses.items()]
    threading.stack_size(THREAD_STACK_BYTES)
    threads = []
    for target, args in calls:
        thread = threading.Thread(target=target, args=args, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads: the other answers stay unknown
            break
        threads.append(thread)
        if target is _time_reverse_lookup:
            report(**{f"asked {args[1]}": True})
    deadline = time.monotonic() + lookups.timeout_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def parse_results(report: Any) -> NameResults:
    """Return the results that `look_up` reported."""

    def with_prefix(word: str) -> Any:
        return {key.partition(" ")[2]: report[key] for key in report if key.startswith(f"{word} ")}

    return NameResults(
        queried=tuple(with_prefix("asked")),
        seconds=with_prefix("seconds"),
        own_addresses=tuple(report.get("own", ())),
        own_name_answered="own" in report or "own_error" in report,
        master_addresses=tuple(report.get("master", ())),
        master_error=report.get("master_error", ""),
    )


def _time_reverse_lookup(report: Report, node: str, address: str) -> None:
    """Time a reverse lookup: torch's store waits for its answer, whatever that is."""
    began = time.monotonic()
    with contextlib.suppress(OSError):
        socket.getnameinfo((address, 0), 0)
    report(**{f"seconds {node}": round(time.monotonic() - began, 3)})


def _resolve(report: Report, key: str, name: str) -> None:
    """Report the addresses of a name, or the error as `KEY_error`."""
    try:
        infos = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)
        addresses = [str(info[4][0]).partition("%")[0] for info in infos]
        report(**{key: list(dict.fromkeys(addresses))})
    except OSError as error:
        report(**{f"{key}_error": error.strerror or str(error)})
