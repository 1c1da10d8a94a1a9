"""The requests that the page may send, and their limits."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from .inputs import MAX_BODY, MAX_SIDE, read_pixels

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
