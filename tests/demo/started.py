"""`flashcaps demo` as a process of its own."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from typing import Any
from urllib.request import urlopen


def start_demo() -> tuple[str, subprocess.Popen[str]]:
    """Its address, on a free port, and the process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "flashcaps", "demo", "--no-browser", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return f"http://127.0.0.1:{port}/", process


def wait_for(url: str, process: subprocess.Popen[str]) -> Any:
    """What /health says, once it answers."""
    for _ in range(600):
        if process.poll() is not None:
            raise RuntimeError(f"flashcaps demo ended: {process.communicate()[0]}")
        try:
            with urlopen(f"{url}health", timeout=5) as answer:
                return json.load(answer)
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("flashcaps demo did not answer within a minute")
