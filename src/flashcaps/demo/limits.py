"""Limits before anything is parsed: host, size and number of requests; and the headers of every answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from .inputs import MAX_BODY

AT_ONCE = 64  # requests with a body: they take at most AT_ONCE * MAX_BODY bytes
PATIENCE = 20.0  # seconds a body may take to arrive
DRAINED = 64 << 20  # bytes of a refused body that are read and dropped, so that the client gets the answer
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")

Scope = Any
Receive = Any
Send = Any


class Limits:
    """ASGI middleware. hosts: further names the server goes by; "*" for any."""

    def __init__(self, app: Any, hosts: Sequence[str] = (), headers: Mapping[str, str] | None = None) -> None:
        self.app, self.hosts = app, {*LOOPBACK, *hosts}
        self.headers = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        self.active = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(h for h in self.headers if h[0] not in given)]
            await send(message)

        asked = dict(scope["headers"])
        host = asked.get(b"host", b"").decode("latin-1")
        name = host if host.endswith("]") else host.rsplit(":", 1)[0]
        if "*" not in self.hosts and name not in self.hosts:
            await refuse(with_headers, 400, f"host: this server is not called {name[:80]!r}")
        elif scope["method"] in ("GET", "HEAD"):
            await self.app(scope, receive, with_headers)
        elif self.active >= AT_ONCE:
            await drain(receive)
            await refuse(with_headers, 503, "too busy: too many requests at once; try again in a moment")
        else:
            self.active += 1
            try:
                await self.with_body(scope, asked, receive, with_headers)
            finally:
                self.active -= 1

    async def with_body(self, scope: Scope, asked: dict[bytes, bytes], receive: Receive, send: Send) -> None:
        """Reads the whole body, bounded in bytes and time, and hands it to the application."""
        declared = asked.get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > MAX_BODY:
            await drain(receive)
            await refuse(send, 413, f"body: expected at most {MAX_BODY >> 20} MiB")
            return
        body = bytearray()
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return
                    body += message.get("body", b"")
                    if len(body) > MAX_BODY:
                        body.clear()
                        if message.get("more_body"):
                            await drain(receive)
                        await refuse(send, 413, f"body: expected at most {MAX_BODY >> 20} MiB")
                        return
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            await refuse(send, 408, f"body: expected within {PATIENCE:g} s")
            return
        whole = iter([{"type": "http.request", "body": bytes(body), "more_body": False}])

        async def replay() -> Any:
            return next(whole, None) or await receive()

        await self.app(scope, replay, send)


async def drain(receive: Receive) -> None:
    """Reads a body to its end without keeping it; gives up on an endless one."""
    size = 0
    try:
        async with asyncio.timeout(PATIENCE):
            while size <= DRAINED:
                message = await receive()
                size += len(message.get("body", b""))
                if not message.get("more_body"):
                    return
    except TimeoutError:
        return


async def refuse(send: Send, status: int, message: str) -> None:
    body = json.dumps({"error": message}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()),
               (b"connection", b"close")]  # fmt: skip
    if status == 503:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
