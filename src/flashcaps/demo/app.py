"""The HTTP interface: requests are validated and limited, the worker computes answers, page/ is served as files."""

from __future__ import annotations

import hashlib
import json
import mimetypes
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from torch import Tensor

from .. import __version__
from .centering import SIDE, center, fit
from .explainer import Explainer
from .inputs import MAX_BODY, MAX_SIDE, Refused, read_pixels, read_upload, write_pixels
from .limits import Limits
from .samples import describe_samples
from .worker import Worker

PAGE = Path(__file__).with_name("page")
# Nothing is loaded from another host. 'unsafe-inline' is for style attributes of drawings that the page makes.
HEADERS = {
    "content-security-policy": "default-src 'self' data: blob:; style-src 'self' 'unsafe-inline'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
MAX_POSE = 4096
MAX_COMPARED = 12
Number = Annotated[float, Field(ge=-1e4, le=1e4, allow_inf_nan=False)]


class Strict(BaseModel):
    """Unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, protected_namespaces=())

    def key(self) -> list[Any]:
        return [type(self).__name__, self.model_dump()]


class Drawing(Strict):
    """Grey bytes, ink high, row by row, as base64."""

    width: int = Field(ge=1, le=MAX_SIDE)
    height: int = Field(ge=1, le=MAX_SIDE)
    pixels: str = Field(max_length=MAX_BODY)

    def read(self) -> Tensor:
        return read_pixels(self.width, self.height, self.pixels)


class Image(Drawing):
    """center: an image of any size, to be centred and scaled like MNIST."""

    center: bool = False


class Route(Strict):
    model: str = Field(max_length=200)
    image: Image
    center: bool = False


class Compare(Strict):
    models: list[str] = Field(min_length=1, max_length=MAX_COMPARED)
    image: Image
    center: bool = False


class Pose(Strict):
    """The pose of one class capsule."""

    model: str = Field(max_length=200)
    pose: list[Number] = Field(min_length=1, max_length=MAX_POSE)
    label: int = Field(alias="class")


def create_app(explainers: Sequence[Explainer], *, worker: Worker | None = None, hosts: Sequence[str] = ()) -> FastAPI:
    """The application for these models. hosts: names it may be called by (see `Limits`)."""
    worker = worker or Worker()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        worker.start()
        yield
        worker.stop()

    app = FastAPI(title="flashcaps", version=__version__, docs_url=None, redoc_url=None, openapi_url=None,
                  lifespan=lifespan)  # fmt: skip
    app.add_middleware(Limits, hosts=tuple(hosts), headers=HEADERS)
    add_errors(app)
    add_page(app)
    add_lists(app, explainers)
    add_answers(app, {x.name: x for x in explainers}, worker)
    return app


def add_lists(app: FastAPI, explainers: Sequence[Explainer]) -> None:
    """Routes that list models and samples; encoded once."""
    listed = encode({"models": [x.info() for x in explainers], "samples": describe_samples()})

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "models": len(explainers), "version": __version__}

    @app.get("/api/models")
    async def list_models() -> Response:
        return answered(listed)


def add_answers(app: FastAPI, models: Mapping[str, Explainer], worker: Worker) -> None:
    """Routes whose answers the worker computes."""

    def model(name: str) -> Explainer:
        if name not in models:
            raise Refused(404, f"model: there is no {name[:80]!r}; there are {', '.join(models)}")
        return models[name]

    async def compute(request: Any, work: Callable[[], dict[str, Any]], *, quick: bool = False) -> Response:
        return answered(await worker.answer(key_of(request), lambda: encode(work()), quick=quick))

    @app.post("/api/center")
    async def center_drawing(drawing: Drawing) -> Response:
        return await compute(drawing, lambda: centred(drawing.read()), quick=True)

    @app.post("/api/upload")
    async def upload(request: Request) -> Response:
        kind = request.headers.get("content-type", "")
        if not kind.startswith("image/"):
            raise Refused(415, f"content-type: expected image/*, got {kind[:80] or 'none'}")
        content = await request.body()
        return await compute(content, lambda: centred(read_upload(content)))

    @app.post("/api/route")
    async def route(request: Route) -> Response:
        x = model(request.model)
        return await compute(request, lambda: x.route(sized(request.image, x, request.center)))

    @app.post("/api/compare")
    async def compare(request: Compare) -> Response:
        chosen = [model(name) for name in request.models]
        return await compute(request, lambda: {
            "results": [x.route(sized(request.image, x, request.center)) for x in chosen]})  # fmt: skip

    @app.post("/api/decode")
    async def decode(request: Pose) -> Response:
        x = model(request.model)
        return await compute(request, lambda: x.decode(request.pose, request.label), quick=True)

    @app.post("/api/dimensions")
    async def dimensions(request: Pose) -> Response:
        x = model(request.model)
        return await compute(["dimensions", request.key()], lambda: x.dimensions(request.pose, request.label))


def encode(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer, separators=(",", ":"), allow_nan=False).encode()


def answered(content: bytes) -> Response:
    return Response(content, media_type="application/json")


def key_of(request: Any) -> str:
    """The key of a request's content in the cache."""
    if not isinstance(request, bytes):
        own = request.key() if hasattr(request, "key") else request
        request = json.dumps(own, sort_keys=True).encode()
    return hashlib.sha256(request).hexdigest()


def centred(ink: Tensor) -> dict[str, Any]:
    digit = center(ink)
    empty = ink.new_zeros(SIDE, SIDE)
    return {"image": write_pixels(empty if digit is None else digit), "empty": digit is None}


def sized(image: Image, explainer: Explainer, also: bool) -> Tensor:
    """An image of the model's size: unchanged, or centred like MNIST."""
    pixels = read_pixels(image.width, image.height, image.pixels)
    if not (image.center or also):
        return pixels
    digit = center(pixels)
    return fit(pixels.new_zeros(SIDE, SIDE) if digit is None else digit, *explainer.image[1:])


def add_page(app: FastAPI) -> None:
    mimetypes.add_type("text/javascript", ".js")  # a browser refuses modules of another type

    @app.get("/")
    async def index() -> FileResponse:
        return FileResponse(PAGE / "index.html", media_type="text/html")

    app.mount("/page", StaticFiles(directory=PAGE))


def add_errors(app: FastAPI) -> None:
    """Handlers that turn every error into one line of JSON."""

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> JSONResponse:
        return JSONResponse({"error": error.message}, error.status)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": f"{request.url.path}: {error.detail}"}, error.status_code)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(x) for x in first["loc"] if x != "body") or "body"
        if first["type"] == "json_invalid":
            return JSONResponse({"error": "body: expected JSON, got something else"}, 400)
        if not request.headers.get("content-type", "").startswith("application/json"):
            return JSONResponse({"error": "content-type: expected application/json"}, 415)
        return JSONResponse({"error": " ".join(f"{where}: {first['msg']}".split())}, 422)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": f"the server failed: {type(error).__name__}"}, 500)
