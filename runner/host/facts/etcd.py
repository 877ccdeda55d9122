"""Etcd facts: the host's own etcd program, and whether the run's endpoint answers."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from typing import TYPE_CHECKING, Dict, Tuple

from runner.core.codec import decode, encode
from runner.core.model.facts import SIDECAR_NAME, EndpointReply, EtcdFacts, FactsRequest
from runner.host.process import bounded_child

if TYPE_CHECKING:
    from http.client import HTTPConnection

REQUEST_TIMEOUT_S = 5.0  # for each of an endpoint's two small responses
_MAX_RESPONSE = 64 << 10
_NOT_FOUND = 404


def start(request: FactsRequest, environ: Dict[str, str]) -> bounded_child.BoundedChild:
    """Look for etcd, or ask the endpoint, in a child."""
    return bounded_child.BoundedChild(lambda: _query(request, environ), request.tool_timeout_s)


def result(child: bounded_child.BoundedChild) -> EtcdFacts:
    """Return the facts of `start`."""
    report = child.report()
    if child.timed_out and "asked" in report:
        report["answer"] = encode(EndpointReply(f"no answer within {child.limit_s:g} s"))
    answer = decode(EndpointReply, report["answer"]) if "answer" in report else None
    return EtcdFacts(report.get("program", ""), report.get("version", ""), answer)


def _query(request: FactsRequest, environ: Dict[str, str]) -> None:
    if request.find_etcd:
        program = bounded_child.find_program(SIDECAR_NAME, environ)
        bounded_child.report_facts(program=program)
        if program:
            argv, null = [program, "--version"], subprocess.DEVNULL
            done = subprocess.run(argv, env=environ, stdin=null, capture_output=True, check=False)
            text = (done.stdout + done.stderr).decode(errors="replace")
            bounded_child.report_facts(version=parse_version(text))
    if request.etcd_endpoint:
        bounded_child.report_facts(asked=request.etcd_endpoint)
        bounded_child.report_facts(answer=encode(query_endpoint(request.etcd_endpoint)))


def parse_version(text: str) -> str:
    """Return the version in what `etcd --version` prints."""
    match = re.search(r"^etcd Version: *([0-9][^\s]*)", text, re.MULTILINE)
    return match.group(1) if match else ""


def query_endpoint(endpoint: str, limit_s: float = REQUEST_TIMEOUT_S) -> EndpointReply:
    """Return how HOST:PORT answers HTTP requests, as torch's client makes them."""
    from http.client import HTTPConnection, HTTPException  # noqa: PLC0415 (it takes 10 ms)

    host, _, port = endpoint.rpartition(":")
    connection = HTTPConnection(host.strip("[]"), int(port), timeout=limit_s)
    try:
        status, text = _http_get(connection, "/version")
        version = ""
        with contextlib.suppress(ValueError, TypeError, KeyError):
            version = str(json.loads(text)["etcdserver"])
        if not version:
            return EndpointReply(f"what answers there is not etcd (GET /version: {status})")
        status, _ = _http_get(connection, "/v2/keys/")
        return EndpointReply(version=version, has_v2=status != _NOT_FOUND)
    except OSError as error:
        timed_out = isinstance(error, TimeoutError) or not error.strerror
        late = f"no answer within {limit_s:g} s"
        return EndpointReply(late if timed_out else str(error.strerror))
    except (HTTPException, ValueError):
        return EndpointReply("what answers there does not speak HTTP")
    finally:
        connection.close()


def _http_get(connection: HTTPConnection, path: str) -> Tuple[int, str]:
    connection.request("GET", path, headers={"Connection": "keep-alive"})
    response = connection.getresponse()
    return response.status, response.read(_MAX_RESPONSE).decode(errors="replace")
