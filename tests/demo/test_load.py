"""Many at once, on a real server: answered or refused, memory bounded, and the page still answers."""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest
import torch

from tests.demo.served import IMAGES, image, server
from tests.demo.test_inputs import png_header

MANY = 200


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with server() as opened:
        yield opened


def all_at_once(address: str, path: str, bodies: list[dict]) -> list[httpx.Response]:
    async def ask() -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=address, limits=limits, timeout=120, trust_env=False) as client:
            return await asyncio.gather(*(client.post(path, **body) for body in bodies))

    return asyncio.run(ask())


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def still_answers(address: str) -> None:
    request = {"model": "demo_dynamic", "image": image(IMAGES[0])}
    answer = httpx.post(f"{address}/api/route", json=request, timeout=30, trust_env=False)
    assert answer.status_code == 200
    assert answer.json()["predicted"] == [0]


def test_two_hundred_drawings_at_once(address: str) -> None:
    still_answers(address)
    before = peak_mib()
    bodies = []
    for k in range(MANY):
        drawing = IMAGES[k % 30].clone()
        drawing[0, 0] = k  # no two alike: none is answered from memory
        bodies.append({"json": {"model": "demo_attention", "image": image(drawing)}})
    answers = all_at_once(address, "/api/route", bodies)
    kinds = Counter(a.status_code for a in answers)
    assert set(kinds) <= {200, 503}
    assert kinds[200] >= 32
    assert all(a.json()["error"].startswith("too busy") for a in answers if a.status_code == 503)
    assert all(a.headers["retry-after"] for a in answers if a.status_code == 503)
    assert peak_mib() - before < 300
    still_answers(address)


def test_two_hundred_of_the_same_are_one(address: str) -> None:
    request = {"json": {"model": "demo_em", "image": image(IMAGES[17])}}
    answers = all_at_once(address, "/api/route", [request] * MANY)
    good = [a.content for a in answers if a.status_code == 200]
    assert len(set(good)) == 1
    assert {a.status_code for a in answers} <= {200, 503}


@pytest.mark.parametrize("content", [torch.arange(1 << 20).byte().numpy().tobytes(), png_header(40_000, 40_000)],
                         ids=["noise", "bomb"])  # fmt: skip
def test_two_hundred_bad_uploads(address: str, content: bytes) -> None:
    still_answers(address)
    before = peak_mib()
    uploads = [{"content": content + b"%d" % k, "headers": {"content-type": "image/png"}} for k in range(MANY)]
    answers = all_at_once(address, "/api/upload", uploads)
    assert {a.status_code for a in answers} <= {413, 415, 503}
    assert all(a.json()["error"] for a in answers)
    assert peak_mib() - before < 600  # 200 MiB of it are what this test holds itself, once more in the client
    still_answers(address)
