"""What this host knows of etcd: its own program, and whether the run's endpoint answers it."""

from __future__ import annotations

import functools
import json
import re
import subprocess
from typing import TYPE_CHECKING, Any, Dict, Sequence, Tuple

from runner.core.codec import decode, encode
from runner.core.model.facts import FactsRequest
from runner.core.planning.etcd import NAME, Answer, Etcd
from runner.host.process import bounded_child

if TYPE_CHECKING:
    from http.client import HTTPConnection

ANSWER_S = 5.0
"""How long an endpoint may take for each of two small answers."""

_LONGEST = 64 << 10
_NOT_FOUND = 404


def start(request: FactsRequest, environ: Dict[str, str]) -> Tuple[bounded_child.Child, ...]:
    """Learn what is asked of it, in a child; of nothing there is none."""
    if not request.serves and not request.endpoint:
        return ()
    return (bounded_child.Child(functools.partial(_look, request, environ), request.deadline_s),)


def result(children: Sequence[bounded_child.Child]) -> Etcd:
    """Return what was learned."""
    told: Dict[str, Any] = {}
    for child in children:
        told.update(child.told())
        if child.late and "asked" in told:
            told["answer"] = encode(Answer(f"no answer within {child.limit_s:g} s"))
    answer = decode(Answer, told["answer"]) if "answer" in told else None
    return Etcd(told.get("program", ""), told.get("version", ""), answer)


def _look(request: FactsRequest, environ: Dict[str, str]) -> None:
    if request.serves:
        program = bounded_child.find(NAME, environ)
        bounded_child.tell(program=program)
        if program:
            bounded_child.tell(version=_version(program, environ))
    if request.endpoint:
        bounded_child.tell(asked=request.endpoint)
        bounded_child.tell(answer=encode(ask(request.endpoint)))


def _version(program: str, environ: Dict[str, str]) -> str:
    said = subprocess.run(
        [program, "--version"],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    ).stdout
    return version_in(said.decode(errors="replace"))


def version_in(text: str) -> str:
    """Return the version in what `etcd --version` prints."""
    found = re.search(r"^etcd Version: *([0-9][^\s]*)", text, re.MULTILINE)
    return found.group(1) if found else ""


def ask(endpoint: str, limit_s: float = ANSWER_S) -> Answer:
    """Return how HOST:PORT answers, as torch's client would ask it: by HTTP."""
    from http.client import HTTPConnection, HTTPException  # noqa: PLC0415 (others are spared 10 ms)

    host, _, port = endpoint.rpartition(":")
    connection = HTTPConnection(host.strip("[]"), int(port), timeout=limit_s)
    try:
        status, text = _get(connection, "/version")
        version = _etcdserver(text)
        if not version:
            return Answer(f"what answers there is no etcd (GET /version: {status})")
        status, _ = _get(connection, "/v2/keys/")
        return Answer(version=version, v2=status != _NOT_FOUND)
    except OSError as error:
        late = isinstance(error, TimeoutError) or not error.strerror
        return Answer(f"no answer within {limit_s:g} s" if late else str(error.strerror))
    except (HTTPException, ValueError):
        return Answer("what answers there speaks no HTTP")
    finally:
        connection.close()


def _get(connection: HTTPConnection, path: str) -> Tuple[int, str]:
    connection.request("GET", path, headers={"Connection": "keep-alive"})
    response = connection.getresponse()
    return response.status, response.read(_LONGEST).decode(errors="replace")


def _etcdserver(text: str) -> str:
    try:
        told = json.loads(text)
    except ValueError:
        return ""
    return str(told.get("etcdserver", "")) if isinstance(told, dict) else ""
