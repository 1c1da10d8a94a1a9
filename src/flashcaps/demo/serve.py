"""Serves a built page to this machine, with the server of the standard library."""

import threading
import webbrowser
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HOST = "127.0.0.1"


class Handler(SimpleHTTPRequestHandler):
    """Files of the folder, never from a cache: the next page may be another."""

    extensions_map = SimpleHTTPRequestHandler.extensions_map | {".js": "text/javascript"}  # some systems say otherwise

    def end_headers(self) -> None:
        self.send_header("cache-control", "no-cache")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


def make_server(folder: Path, port: int) -> ThreadingHTTPServer:
    """A server that listens; OSError if the port is in use. port 0: any free one."""
    try:
        return ThreadingHTTPServer((HOST, port), partial(Handler, directory=str(folder)))
    except OSError as error:
        raise OSError(f"--port: cannot listen on {HOST}, port {port} ({error.strerror}); is the page open already? "
                      f"Another port: --port {port + 1}") from None  # fmt: skip


def serve(server: ThreadingHTTPServer, *, browser: bool = True) -> None:
    """Serves until interrupted. browser: open the page."""
    if browser:
        threading.Timer(0.2, webbrowser.open, [address(server)]).start()
    with server:
        server.serve_forever()


def address(server: ThreadingHTTPServer) -> str:
    return f"http://{HOST}:{server.server_address[1]}/"
