"""What this host's resolver says of the names and addresses of a cluster; run in a child."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any, Callable, List, Tuple

from runner.core.model.network_probe import Names, Questions

STACK = 1 << 20
"""Of each thread: there may be hundreds, and a resolver needs little."""

Tell = Callable[..., None]


def look_up(questions: Questions, tell: Tell) -> None:
    """Ask everything side by side, and report each answer when it comes."""
    asked: List[Tuple[Callable[..., None], Tuple[Any, ...]]] = [(_own, (tell,))]
    if questions.master:
        asked.append((_master, (questions.master, tell)))
    asked += [(_name, (node, at, tell)) for node, at in questions.addresses.items()]
    threading.stack_size(STACK)
    threads = []
    for work, words in asked:
        thread = threading.Thread(target=work, args=words, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads: what was not asked is not known
            break
        threads.append(thread)
        if work is _name:
            tell(**{f"asked {words[0]}": True})
    until = time.monotonic() + questions.limit_s
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))


def gathered(told: Any) -> Names:
    """Return what was reported by `look_up`."""

    def of(word: str) -> Any:
        return {key.partition(" ")[2]: told[key] for key in told if key.startswith(f"{word} ")}

    return Names(
        asked=tuple(of("asked")),
        seconds=of("seconds"),
        own=tuple(told.get("own", ())),
        own_known="own" in told,
        master=tuple(told.get("master", ())),
        master_error=told.get("master_error", ""),
    )


def _name(node: str, address: str, tell: Tell) -> None:
    """Time it: torch's store waits for this answer, whatever it is."""
    began = time.monotonic()
    try:
        socket.getnameinfo((address, 0), 0)
    except OSError:
        pass
    finally:
        tell(**{f"seconds {node}": round(time.monotonic() - began, 3)})


def _own(tell: Tell) -> None:
    try:
        tell(own=_addresses(socket.gethostname()))
    except OSError:
        tell(own=[])


def _master(name: str, tell: Tell) -> None:
    try:
        tell(master=_addresses(name))
    except OSError as error:
        tell(master_error=error.strerror or str(error))


def _addresses(name: str) -> List[str]:
    found = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]).partition("%")[0] for each in found))
