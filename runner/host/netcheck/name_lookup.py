"""Name lookups: this host's resolver, asked for the names and addresses of a cluster."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Any, Callable, List, Tuple

from runner.core.model.network_probe import NameLookups, NameResults

THREAD_STACK_BYTES = 1 << 20
"""Stack size of each thread: there may be hundreds, and a resolver needs little."""

Report = Callable[..., None]


def look_up(lookups: NameLookups, report: Report) -> None:
    """Do all lookups in parallel, and report each answer as it arrives; for use in a child."""
    calls: List[Tuple[Callable[..., None], Tuple[Any, ...]]] = [(_resolve_own_name, (report,))]
    if lookups.master_name:
        calls.append((_resolve_master, (report, lookups.master_name)))
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
        own_name_answered="own" in report,
        master_addresses=tuple(report.get("master", ())),
        master_error=report.get("master_error", ""),
    )


def _time_reverse_lookup(report: Report, node: str, address: str) -> None:
    """Time a reverse lookup: torch's store waits for its answer, whatever that is."""
    began = time.monotonic()
    with contextlib.suppress(OSError):
        socket.getnameinfo((address, 0), 0)
    report(**{f"seconds {node}": round(time.monotonic() - began, 3)})


def _resolve_own_name(report: Report) -> None:
    try:
        report(own=_resolve(socket.gethostname()))
    except OSError:
        report(own=[])


def _resolve_master(report: Report, name: str) -> None:
    try:
        report(master=_resolve(name))
    except OSError as error:
        report(master_error=error.strerror or str(error))


def _resolve(name: str) -> List[str]:
    infos = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]).partition("%")[0] for info in infos))
