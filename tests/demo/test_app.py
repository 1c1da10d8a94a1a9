"""The HTTP surface: every answer of the contract, every refusal in one line."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

from flashcaps import __version__
from flashcaps.demo.centering import ink_box
from flashcaps.demo.serve import DEMO
from tests.demo.served import ALGORITHMS, IMAGES, LABELS, client, image
from tests.demo.test_inputs import picture, png_header

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def page() -> Iterator[TestClient]:
    with client() as opened:
        yield opened


def refused(response: Any, *statuses: int) -> str:
    """One line that says why."""
    assert response.status_code in statuses, response.text
    said = response.json()
    assert list(said) == ["error"]
    assert said["error"]
    assert "\n" not in said["error"]
    assert "Traceback" not in said["error"]
    return said["error"]


def test_health(page: TestClient) -> None:
    assert page.get("/health").json() == {"status": "ok", "models": 6, "version": __version__}


def test_models_and_samples(page: TestClient) -> None:
    listed = page.get("/api/models").json()
    assert [m["name"] for m in listed["models"]] == list(DEMO)
    assert [m["algorithm"] for m in listed["models"]] == [*ALGORITHMS, "dynamic"]
    for m in listed["models"]:
        assert m["classes"] == list("0123456789")
        assert m["decoder"] is True
        assert m["pairs"] == (m["name"] == "demo_pairs")
        assert m["image"] == ([1, 36, 36] if m["pairs"] else [1, 28, 28])
        assert m["iterations"] == (None if m["algorithm"] == "discriminative" else 3)
        assert m["pose_dim"] == len(m["dimensions"]) == 16
        assert m["parents"] == 10
        assert 0 < m["result"]["error"] < (15 if m["pairs"] else 1)
        assert f"# {m['name']}" in m["card"]
        assert m["reach"] > 0
    assert [s["label"] for s in listed["samples"]] == LABELS.tolist()
    assert all(len(base64.b64decode(s["image"])) == 784 for s in listed["samples"])


def test_the_page_and_its_files(page: TestClient) -> None:
    index = page.get("/")
    assert index.status_code == 200
    assert index.headers["content-type"].startswith("text/html")
    assert "http" not in index.headers["content-security-policy"]
    script = page.get("/page/main.js")
    assert script.headers["content-type"].startswith("text/javascript")


@pytest.mark.parametrize("path", [
    "/page/../app.py", "/page/%2e%2e/app.py", "/page/..%2fapp.py", "/page/%2e%2e%2f%2e%2e%2fcheckpoint.py",
    "/page//etc/passwd", "/page/....//app.py", "/..%2f..%2fetc/passwd", "/page/main.js%00.py", "/page/", "/app.py",
    "/docs", "/openapi.json", "/nothing",
])  # fmt: skip
def test_paths_lead_nowhere_else(page: TestClient, path: str) -> None:
    refused(page.get(path), 404)


def test_a_drawing_is_centred(page: TestClient) -> None:
    digit = IMAGES[4]
    large = digit[ink_box(digit)].repeat_interleave(3, 0).repeat_interleave(3, 1)
    sheet = torch.zeros(100, 90, dtype=torch.uint8)
    sheet[30 : 30 + large.shape[0], 7 : 7 + large.shape[1]] = large
    answer = page.post("/api/center", json=image(sheet)).json()
    assert answer == {"image": image(digit)["pixels"], "empty": False}
    empty = page.post("/api/center", json=image(torch.zeros(9, 9, dtype=torch.uint8))).json()
    assert empty == {"image": base64.b64encode(bytes(784)).decode(), "empty": True}


@pytest.mark.parametrize("name", DEMO)
def test_route_has_every_field_of_the_contract(page: TestClient, name: str) -> None:
    side = 36 if name == "demo_pairs" else 28
    answer = page.post("/api/route", json={"model": name, "image": image(IMAGES[20]) | {"center": True}}).json()
    assert set(answer) == {"model", "shape", "scores", "activation", "lengths", "predicted", "poses",
                           "reconstructions", "routing", "ms"}  # fmt: skip
    assert answer["shape"] == [side, side]
    assert len(answer["scores"]) == len(answer["activation"]) == len(answer["lengths"]) == len(answer["poses"]) == 10
    assert len(answer["predicted"]) == len(answer["reconstructions"]) == (2 if name == "demo_pairs" else 1)
    assert int(LABELS[20]) in answer["predicted"]
    assert len(base64.b64decode(answer["reconstructions"][0]["image"])) == side * side
    routing = answer["routing"]
    assert set(routing) == {"signed", "iterations", "steps", "grid", "field", "presence", "top", "votes", "measure",
                            "formula", "agreement_formula"}  # fmt: skip
    assert set(routing["steps"][0]) == {"coupling", "flow", "coupling_sum", "entropy", "agreement", "activation"}
    assert set(routing["field"]) == {"size", "stride", "offset"}
    assert len(routing["top"]) == len(routing["steps"])
    assert "=" in routing["formula"]
    votes = routing["votes"]
    assert [v["class"] for v in votes][:-1] == answer["predicted"]
    assert all(0 <= v["aligned"] <= 1 and v["spread"] >= 0 and len(v["points"][0]) == 4 for v in votes)


def test_compare_is_route_of_each(page: TestClient) -> None:
    names = [f"demo_{a}" for a in ALGORITHMS]
    answer = page.post("/api/compare", json={"models": names, "image": image(IMAGES[8])}).json()
    assert [r["model"] for r in answer["results"]] == names
    alone = page.post("/api/route", json={"model": names[2], "image": image(IMAGES[8])}).json()
    assert alone["scores"] == answer["results"][2]["scores"]
    mixed = page.post("/api/compare", json={"models": ["demo_pairs", "demo_em"], "image": image(IMAGES[8]),
                                            "center": True}).json()  # fmt: skip
    assert [r["shape"] for r in mixed["results"]] == [[36, 36], [28, 28]]


def test_decode_and_dimensions(page: TestClient) -> None:
    request = {"model": "demo_em", "pose": [0.1] * 16, "class": 3}
    drawn = page.post("/api/decode", json=request).json()
    assert drawn["shape"] == [28, 28]
    rows = page.post("/api/dimensions", json=request).json()["rows"]
    assert len(rows) == 16
    assert all(row["images"][5] == drawn["image"] for row in rows)


def test_the_same_drawing_is_answered_from_memory(page: TestClient) -> None:
    request = {"model": "demo_dynamic", "image": image(IMAGES[11])}
    first, second = (page.post("/api/route", json=request) for _ in range(2))
    assert first.content == second.content  # the milliseconds, too


def test_an_upload_is_read(page: TestClient) -> None:
    answer = page.post("/api/upload", content=picture(), headers={"content-type": "image/png"})
    assert answer.status_code == 200
    assert answer.json()["empty"] is False


@pytest.mark.parametrize(("content", "kind", "status"), [
    (b"no picture", "image/png", 415), (b"", "image/png", 415), (picture()[:60], "image/png", 415),
    (png_header(50_000, 50_000), "image/png", 413), (png_header(5000, 5000, bytes(99)), "image/jpeg", 413),
    (picture(), "text/plain", 415), (picture(), "application/json", 415), (bytes(5 << 20), "image/png", 413),
])  # fmt: skip
def test_bad_uploads_are_refused(page: TestClient, content: bytes, kind: str, status: int) -> None:
    refused(page.post("/api/upload", content=content, headers={"content-type": kind}), status)
    refused(page.post("/api/upload", content=iter([content]), headers={"content-type": kind}), status)  # no length


GOOD = {"model": "demo_dynamic", "image": image(IMAGES[0])}
POSE = {"model": "demo_dynamic", "pose": [0.0] * 16, "class": 0}


@pytest.mark.parametrize(("path", "body", "status"), [
    ("route", b"{", 400), ("route", b"\xff\xfe", 400), ("route", b"[" * 200_000, 400), ("route", b"", 422),
    ("route", b"null", 422), ("route", b"[]", 422), ("route", b"3", 422),
    ("route", {"model": "demo_dynamic"}, 422), ("route", GOOD | {"model": "nobody"}, 404),
    ("route", GOOD | {"model": "../../etc/passwd"}, 404), ("route", GOOD | {"model": 3}, 422),
    ("route", GOOD | {"model": "x" * 500}, 422), ("route", GOOD | {"extra": 1}, 422),
    ("route", GOOD | {"image": GOOD["image"] | {"width": 0}}, 422),
    ("route", GOOD | {"image": GOOD["image"] | {"width": 27}}, 400),
    ("route", GOOD | {"image": GOOD["image"] | {"width": 1e9}}, 422),
    ("route", GOOD | {"image": GOOD["image"] | {"width": -28, "height": -28}}, 422),
    ("route", GOOD | {"image": GOOD["image"] | {"pixels": "%%%"}}, 400),
    ("route", GOOD | {"model": "demo_pairs"}, 422),
    ("center", {"width": 4096, "height": 4096, "pixels": ""}, 413),
    ("compare", {"models": [], "image": GOOD["image"]}, 422),
    ("compare", {"models": ["demo_em"] * 13, "image": GOOD["image"]}, 422),
    ("compare", {"models": ["demo_em", "nobody"], "image": GOOD["image"]}, 404),
    ("decode", POSE | {"pose": [0.0] * 15}, 422), ("decode", POSE | {"class": 10}, 422),
    ("decode", POSE | {"class": -1}, 422), ("decode", POSE | {"class": 0.5}, 422), ("decode", POSE | {"pose": []}, 422),
    ("decode", POSE | {"pose": [1e30] * 16}, 422), ("decode", POSE | {"pose": ["a"] * 16}, 422),
    ("decode", b'{"model": "demo_dynamic", "class": 0, "pose": [NaN' + b", 0.0" * 15 + b"]}", 422),
    ("dimensions", b'{"model": "demo_dynamic", "class": 0, "pose": [Infinity' + b", 0.0" * 15 + b"]}", 422),
])  # fmt: skip
def test_bad_requests_are_refused(page: TestClient, path: str, body: Any, status: int) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    refused(page.post(f"/api/{path}", content=content, headers=JSON), status)


def test_wrong_methods_types_and_hosts(page: TestClient) -> None:
    refused(page.get("/api/route"), 405)
    refused(page.put("/api/route", json=GOOD), 405)
    refused(page.post("/api/route", content=json.dumps(GOOD), headers={"content-type": "text/plain"}), 415)
    refused(page.post("/api/route", content=b"x" * (5 << 20), headers=JSON), 413)
    refused(page.get("/", headers={"host": "elsewhere.example"}), 400)
    refused(page.post("/api/route", json=GOOD, headers={"content-length": "many"}), 400, 413)
    assert page.get("/health", headers={"host": "localhost:8000"}).status_code == 200
    assert page.get("/health", headers={"host": "[::1]:8000"}).status_code == 200


def test_other_names_are_allowed_when_the_server_is_opened_to_others() -> None:
    with client(hosts=("*",)) as opened:
        assert opened.get("/health", headers={"host": "elsewhere.example"}).status_code == 200


def test_an_error_of_ours_is_one_line_and_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> None:
        raise RuntimeError("secret\npath")

    monkeypatch.setattr("flashcaps.demo.app.centred", broken)
    with client() as opened:
        said = refused(opened.post("/api/center", json=image(IMAGES[0])), 500)
        assert "secret" not in said
        assert opened.get("/health").status_code == 200
