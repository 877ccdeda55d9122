"""A registry of images on this host, which makes them up.

    registry.py PORT TORCH

What it has: `arm` (for another processor), `with_torch` (a torch of the version TORCH below /opt/lib).
Whoever asks for `slow` gets no answer. Others are not there.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import sys
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
TORCH = sys.argv[2]
IMAGES = {
    "arm": {"file": b"arm"},
    "with_torch": {
        "opt/lib/torch/__init__.py": b"",
        "opt/lib/torch/version.py": f"__version__ = '{TORCH}'\n".encode(),
    },
}
blobs: dict[str, bytes] = {}


def keep(data: bytes) -> dict[str, object]:
    """Keep a blob; return what a manifest says of it."""
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    blobs[digest] = data
    return {"size": len(data), "digest": digest}


def manifest(name: str) -> bytes:
    """Return the manifest of an image; its blobs are kept."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        for path, data in IMAGES[name].items():
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    layer = f"sha256:{hashlib.sha256(tar.getvalue()).hexdigest()}"
    config = {
        "os": "linux",
        "architecture": "arm64" if name == "arm" else "amd64",
        "config": {"Env": ["PATH=/usr/bin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [layer]},
    }
    parts = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": CONFIG, **keep(json.dumps(config).encode())},
        "layers": [{"mediaType": LAYER, **keep(gzip.compress(tar.getvalue(), 1))}],
    }
    return json.dumps(parts).encode()


class Handler(BaseHTTPRequestHandler):
    """Answers what `docker pull` asks."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer with a body."""
        _, _, rest = self.path.partition("/v2/")
        name, _, what = rest.partition("/")
        if name == "slow":
            threading.Event().wait()
        if not rest:
            self.send("application/json", b"{}")
        elif name in IMAGES and what.startswith("manifests/"):
            self.send(MANIFEST, manifest(name))
        elif blob := blobs.get(what.rpartition("/")[2]):
            self.send("application/octet-stream", blob)
        else:
            error = {"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}
            self.send("application/json", json.dumps({"errors": [error]}).encode(), 404)

    do_HEAD = do_GET  # noqa: N815 (the base class calls it by this name)

    def send(self, kind: str, body: bytes, code: int = 200) -> None:
        """Send an answer."""
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Docker-Content-Digest", f"sha256:{hashlib.sha256(body).hexdigest()}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
