"""A rank that serves at 127.0.0.1, or SERVE_AT: its host's name by HTTP, and an echo that waits for the end.

serving.py HTTP_PORT ECHO_PORT [PATH]: it prints `serving`, and ends when there is PATH.
"""

import os
import socket
import socketserver
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Page(BaseHTTPRequestHandler):
    """Answers each request with the host's name."""

    def do_GET(self) -> None:
        """Answer."""
        body = socket.gethostname().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class Echo(socketserver.BaseRequestHandler):
    """Sends all back once the client has sent all."""

    def handle(self) -> None:
        """Answer."""
        received = b"".join(iter(lambda: self.request.recv(65536), b""))
        self.request.sendall(received[::-1])


HOST = os.environ.get("SERVE_AT", "127.0.0.1")
http = ThreadingHTTPServer((HOST, int(sys.argv[1])), Page)
echo = socketserver.ThreadingTCPServer((HOST, int(sys.argv[2])), Echo)
for server in (http, echo):
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
print("serving", flush=True)
while not (sys.argv[3:] and os.path.exists(sys.argv[3])):
    time.sleep(0.05)
