"""Pictures in, names out: the requests and responses of `POST /predict`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import numpy as np
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from dsnet.errors import DataError
from dsnet.images import ImageFile
from dsnet.manifest import Manifest
from dsnet.pictures import as_input
from dsnet.prediction.answers import CONFIDENCE, Input, answers_of, finds_boxes, plain
from dsnet.routing.parts import as_array
from dsnet.serve.engine import Served
from dsnet.serve.limits import Limits, Refusal
from dsnet.serve.model import Ask
from dsnet.serve.protocol import asked, check_images, whole

TOP = 5  # classes of an answer, unless `top` says otherwise
OWN = ("top", "confidence")
FIELD = 200  # bytes of a field's name or value in a form
NAME = 100  # characters of a file's name that are kept
PART_HEADERS = 8


@dataclass(eq=False)
class Encoded:
    """A picture as it was sent. A worker decodes it."""

    name: str
    data: bytes
    manifest: Manifest
    limits: Limits
    size: tuple[int, int] = (0, 0)

    def __len__(self) -> int:
        return len(self.data)

    def decoded(self) -> np.ndarray:
        try:
            image = ImageFile(PurePath(self.name), max_pixels=self.limits.pixels, data=self.data)  # type: ignore[arg-type]
            self.size = image.width, image.height
            return as_input(image, self.manifest)
        except DataError as error:
            raise Refusal(400, str(error)) from None


@dataclass(frozen=True)
class Asked:
    """A request: pictures, what it asks for, and how the answers shall look."""

    pictures: list[Encoded]
    ask: Ask
    deadline_ms: float | None
    top: int
    confidence: float


@dataclass
class Form:
    """A body of several parts: the files in it, each with its name, and its fields."""

    files: list[tuple[str, bytes]] = field(default_factory=list)
    fields: dict[str, str] = field(default_factory=dict)


def read(body: bytes, content_type: str, query: Mapping[str, str], manifest: Manifest, limits: Limits) -> Asked:
    """Read a request whose body is one picture, or a form with several."""
    form = Form([("image 0", body)])
    if content_type.lower().startswith("multipart/"):
        form = read_form(body, content_type, limits)
    check_images(len(form.files), limits)
    given: dict[str, Any] = {**form.fields, **query}
    ask, deadline = asked({name: value for name, value in given.items() if name not in OWN}, manifest, limits)
    top = whole("top", given.get("top", str(min(TOP, max(1, manifest.num_classes)))), 1, max(1, manifest.num_classes))
    pictures = [Encoded(name, data, manifest, limits) for name, data in form.files]
    return Asked(pictures, ask, deadline, top, probability("confidence", given.get("confidence", str(CONFIDENCE))))


def probability(name: str, given: str) -> float:
    try:
        value = float(given[:40])
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise Refusal(400, f"{name} is {given[:40]!r}; it must lie between 0 and 1")
    return value


def read_form(body: bytes, content_type: str, limits: Limits) -> Form:
    """The parts of a form. Parts with a file name are pictures, the others are parameters."""
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise Refusal(415, f"content-type {content_type[:60]!r} is not understood; use multipart/form-data or an image")
    form = Form()
    headers: list[tuple[bytes, bytes]] = []
    name, value, data, ended = bytearray(), bytearray(), list[bytes](), list[bool]()

    def finish_header() -> None:
        headers.append((bytes(name).lower(), bytes(value)))
        if len(headers) > PART_HEADERS:
            raise Refusal(400, f"a part of the form has more than {PART_HEADERS} headers")
        name.clear()
        value.clear()

    def finish_part() -> None:
        _, about = parse_options_header(dict(headers).get(b"content-disposition", b""))
        content = b"".join(data)
        headers.clear()
        data.clear()
        if b"filename" in about:
            file = PurePath(about[b"filename"].decode(errors="replace")).name[:NAME]
            form.files.append((file or f"image {len(form.files)}", content))
            check_images(len(form.files), limits)
            return
        key = about.get(b"name", b"")
        if not key or len(key) > FIELD or len(content) > FIELD or len(form.fields) > len(OWN) + FIELD:
            raise Refusal(
                400, f"a field of the form has no name, or is longer than {FIELD} bytes; pictures need a file name"
            )
        form.fields[key.decode(errors="replace")] = content.decode(errors="replace").strip()

    parser = MultipartParser(
        boundary,
        {
            "on_header_field": lambda chunk, start, end: name.extend(chunk[start:end]),
            "on_header_value": lambda chunk, start, end: value.extend(chunk[start:end]),
            "on_header_end": finish_header,
            "on_part_data": lambda chunk, start, end: data.append(chunk[start:end]),
            "on_part_end": finish_part,
            "on_end": lambda: ended.append(True),
        },
    )
    try:
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise Refusal(400, f"the form cannot be read ({str(error)[:100]}); send it again") from None
    if not ended:
        raise Refusal(400, "the form ends before its last boundary; send all of it")
    return form


def answer(name: str, request: Asked, served: Served, manifest: Manifest, seconds: float) -> dict[str, Any]:
    """The response to a request. seconds: what it took from its last byte on."""
    nothing = np.zeros(0)
    inputs = [Input(one.name, one.size, nothing) for one in request.pictures]
    routed = served.routed
    found = answers_of(
        manifest,
        routed.outputs,
        inputs,
        as_array(routed.paths),
        as_array(routed.madds),
        confidence=request.confidence,
        top=0 if finds_boxes(manifest) else request.top,
    )
    return {
        "model": name,
        "budget": round(served.share, 6),
        "level": served.level,
        "ms": round(1e3 * seconds, 3),
        "network_ms": round(1e3 * served.seconds, 3),
        "predictions": [plain(one) for one in found],
    }
