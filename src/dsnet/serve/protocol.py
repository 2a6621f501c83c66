"""The Open Inference Protocol, version 2, with binary tensors: from bytes to arrays and back.

Names, types and shapes are checked against the model's metadata. Whatever is wrong is a Refusal with status 400.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsnet.manifest import Manifest
from dsnet.prediction.answers import softmax
from dsnet.routing.budgets import read_budget, read_latency
from dsnet.routing.parts import Routed, as_array
from dsnet.serve.limits import Limits, Refusal
from dsnet.serve.model import Ask
from dsnet.version import __version__

VERSION = "1"  # of every model
IMAGE, BINARY, SIZE = "image", "binary_data", "binary_data_size"
ALL_BINARY = "binary_data_output"
LENGTH = "Inference-Header-Content-Length"
JSON_NUMBER = 20  # bytes of a number
KINDS: dict[str, np.dtype[Any]] = {"FP32": np.dtype("<f4"), "UINT8": np.dtype("u1"), "INT64": np.dtype("<i8")}
ASKED = ("budget", "min_budget", "latency_ms", "max_width", "max_size", "path", "deadline_ms")


@dataclass(frozen=True)
class Tensor:
    """What metadata says about an input or an output. -1 stands for any number."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def plain(self) -> dict[str, Any]:
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}


@dataclass(frozen=True)
class Inference:
    """A request: images, what it asks for, and the outputs that it wants, each as binary data or as JSON."""

    id: str
    images: np.ndarray | list[np.ndarray]
    ask: Ask
    deadline_ms: float | None
    outputs: tuple[tuple[str, bool], ...]


def server_metadata() -> dict[str, Any]:
    return {"name": "dsnet", "version": __version__, "extensions": ["binary_tensor_data"]}


def input_of(manifest: Manifest) -> Tensor:
    if manifest.raw:
        return Tensor(IMAGE, "UINT8", (-1, -1, 3))
    return Tensor(IMAGE, "FP32", (-1, manifest.in_channels, manifest.image_size, manifest.image_size))


def outputs_of(manifest: Manifest) -> list[Tensor]:
    found = [Tensor(name, "FP32", (-1, *shape)) for name, shape in manifest.outputs.items()]
    if "logits" in manifest.outputs:
        found.append(Tensor("probabilities", "FP32", (-1, *manifest.outputs["logits"])))
    return [*found, Tensor("path", "INT64", (-1, manifest.points)), Tensor("madds", "INT64", (-1,))]


def model_metadata(name: str, manifest: Manifest) -> dict[str, Any]:
    return {
        "name": name,
        "versions": [VERSION],
        "platform": f"dsnet_{manifest.kind}",
        "inputs": [input_of(manifest).plain()],
        "outputs": [tensor.plain() for tensor in outputs_of(manifest)],
    }


# Requests


def parse(body: bytes, length: str | None, manifest: Manifest, limits: Limits) -> Inference:
    """Read a request. length: the header with the size of the JSON part, if binary data follows it."""
    size = len(body) if length is None else whole(LENGTH, length, 0, len(body))
    if size > limits.json:
        raise Refusal(413, f"the request has {size} bytes of JSON, the limit is {limits.json}; send binary tensors")
    said, rest = read_json(body[:size] if size < len(body) else body), memoryview(body)[size:]
    given = parameters(said, "the request")
    wanted = entries(said, "outputs")
    inputs = entries(said, "inputs")
    if len(inputs) != 1 or inputs[0].get("name") != IMAGE:
        names = ", ".join(str(one.get("name"))[:40] for one in inputs[:4]) or "none"
        raise Refusal(400, f"the inputs are {names}; this model takes one input, {IMAGE}")
    images = images_of(inputs[0], rest, manifest, limits)
    ask, deadline = asked({name: value for name, value in given.items() if name != ALL_BINARY}, manifest, limits)
    binary = boolean(ALL_BINARY, given.get(ALL_BINARY, False))
    known = [tensor.name for tensor in outputs_of(manifest)]
    outputs = [(name, binary) for name in known] if not wanted else [output_of(one, known, binary) for one in wanted]
    check_answer(outputs, 1 if manifest.raw else len(images), manifest, limits)
    return Inference(str(said.get("id", ""))[:200], images, ask, deadline, tuple(dict(outputs).items()))


def check_answer(outputs: Sequence[tuple[str, bool]], images: int, manifest: Manifest, limits: Limits) -> None:
    """Refuse an answer of too much JSON. Writing it would keep all other requests waiting."""
    numbers = {tensor.name: math.prod(tensor.shape[1:]) for tensor in outputs_of(manifest)}
    size = JSON_NUMBER * images * sum(numbers[name] for name, binary in outputs if not binary)
    if size > limits.json:
        raise Refusal(
            400,
            f"the answer would have about {size:,} bytes of JSON, the limit is {limits.json:,}; ask for binary tensors "
            f"({ALL_BINARY}), or send fewer images",
        )


def read_json(body: bytes) -> dict[str, Any]:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the request is not JSON ({str(error)[:100]}); see the Open Inference Protocol") from None
    if not isinstance(said, dict):
        raise Refusal(400, f"the request is a JSON {type(said).__name__}; it must be an object with inputs")
    return said


def entries(said: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = said.get(name, [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise Refusal(400, f"{name} must be a list of objects")
    return found


def parameters(said: Mapping[str, Any], where: str) -> dict[str, Any]:
    found = said.get("parameters", {})
    if not isinstance(found, dict):
        raise Refusal(400, f"the parameters of {where} must be an object")
    return found


def output_of(wanted: Mapping[str, Any], known: Sequence[str], binary: bool) -> tuple[str, bool]:
    name = wanted.get("name")
    if name not in known:
        raise Refusal(400, f"the output {str(name)[:40]!r} is unknown; this model gives {', '.join(known)}")
    given = parameters(wanted, f"the output {name}")
    if unknown := [key for key in given if key != BINARY]:
        raise Refusal(400, f"the parameter {unknown[0][:40]!r} of the output {name} is unknown; {BINARY} is known")
    return str(name), boolean(BINARY, given.get(BINARY, binary))


def images_of(
    given: Mapping[str, Any], rest: memoryview, manifest: Manifest, limits: Limits
) -> np.ndarray | list[np.ndarray]:
    """The images of the input: a batch, or a list of one picture for a raw file."""
    tensor = input_of(manifest)
    if (kind := given.get("datatype")) != tensor.datatype:
        raise Refusal(400, f"{IMAGE} is {str(kind)[:20]}; this model takes {tensor.datatype}")
    shape = given.get("shape")
    right = isinstance(shape, list) and len(shape) == len(tensor.shape) and all(type(one) is int for one in shape)
    if not right or any(one < 0 or limit not in (-1, one) for one, limit in zip(shape, tensor.shape, strict=True)):  # type: ignore[arg-type]
        raise Refusal(400, f"{IMAGE} has shape {str(shape)[:60]}; this model takes {list(tensor.shape)}")
    assert isinstance(shape, list)
    if manifest.raw:
        check_pixels(shape[0] * shape[1], limits)
    else:
        check_images(shape[0], limits)
    array = values(given, rest, math.prod(shape), KINDS[tensor.datatype]).reshape(shape)
    return [array] if manifest.raw else array


def values(given: Mapping[str, Any], rest: memoryview, count: int, kind: np.dtype[Any]) -> np.ndarray:
    """The values of the input, from binary data or from JSON."""
    size = parameters(given, IMAGE).get(SIZE)
    if size is not None:
        if type(size) is not int or size != count * kind.itemsize or size != len(rest) or "data" in given:
            raise Refusal(
                400,
                f"{IMAGE} has {SIZE} {str(size)[:20]} and {len(rest)} bytes of binary data; its shape and type need "
                f"{count * kind.itemsize}, and no data in the JSON",
            )
        return np.frombuffer(rest, kind)
    if len(rest):
        raise Refusal(400, f"{len(rest)} bytes follow the JSON, but {IMAGE} has no {SIZE}")
    try:
        array = np.asarray(given.get("data"))
        if array.dtype.kind not in "iuf" or array.size != count:
            raise ValueError
        if kind.kind == "u" and array.size and not (array.dtype.kind != "f" and array.min() >= 0 and array.max() < 256):
            raise ValueError
        with np.errstate(over="ignore"):
            return array.astype(kind)
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise Refusal(400, f"the data of {IMAGE} must be {count} numbers, as its shape says") from None


def check_images(count: int, limits: Limits) -> None:
    if not 1 <= count <= limits.images:
        raise Refusal(400, f"the request has {count} images; it must have 1 to {limits.images}")


def check_pixels(count: int, limits: Limits) -> None:
    if not 1 <= count <= limits.pixels:
        raise Refusal(400, f"the picture has {count} pixels; it must have 1 to {limits.pixels}")


# What a request asks for


def asked(given: Mapping[str, Any], manifest: Manifest, limits: Limits) -> tuple[Ask, float | None]:
    """What a request asks for, and its deadline. Values are those of JSON, or text from an address or a form."""
    if unknown := [name for name in given if name not in ASKED]:
        raise Refusal(400, f"the parameter {unknown[0][:40]!r} is unknown; known are {', '.join(ASKED)}")
    try:
        path = given.get("path")
        ask = Ask(
            budget=budget("budget", given.get("budget")),
            min_budget=budget("min_budget", given.get("min_budget")),
            latency_ms=milliseconds("latency_ms", given.get("latency_ms"), math.inf),
            max_width=None if given.get("max_width") is None else whole("max_width", given["max_width"], 0, 1 << 16),
            max_size=None if given.get("max_size") is None else whole("max_size", given["max_size"], 1, 1 << 16),
            path=None if path is None else path_of(path, manifest),
        )
    except ValueError as error:
        raise Refusal(400, str(error)) from None
    return ask, milliseconds("deadline_ms", given.get("deadline_ms"), limits.longest_ms)


def budget(name: str, given: Any) -> float | str | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        raise Refusal(400, f"{name} is {str(given)[:40]}; it must be a share such as 0.5, or MAdds such as 150M")
    given = given[:40] if isinstance(given, str) else given
    read_budget(given)
    return given


def milliseconds(name: str, given: Any, limit: float) -> float | None:
    if given is None:
        return None
    try:
        text = str(given).strip()[:40]
        value = math.nan if isinstance(given, bool) else read_latency(text) if text[-1:] == "s" else float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= limit or value == math.inf:
        most = "" if limit == math.inf else f", at most {limit:g}"
        raise Refusal(400, f"{name} is {str(given)[:40]!r}; it must be a positive number of milliseconds{most}")
    return value


def whole(name: str, given: Any, low: int, high: int) -> int:
    right = type(given) is int or (isinstance(given, str) and given.isascii() and given.isdigit() and len(given) < 20)
    if not right or not low <= int(given) <= high:
        raise Refusal(400, f"{name} is {str(given)[:40]!r}; it must be a whole number from {low} to {high}")
    return int(given)


def boolean(name: str, given: Any) -> bool:
    if not isinstance(given, bool):
        raise Refusal(400, f"{name} is {str(given)[:40]!r}; it must be true or false")
    return given


def path_of(given: Any, manifest: Manifest) -> tuple[int, ...]:
    if isinstance(given, str):
        return manifest.parse_path(given[:400])
    return manifest.space.validate([given] if type(given) is int else given)


# Answers


def arrays_of(routed: Routed) -> dict[str, np.ndarray]:
    """All outputs of a model, by name."""
    found = {name: as_array(value) for name, value in routed.outputs.items()}
    if "logits" in found:
        found["probabilities"] = softmax(found["logits"])
    return {**found, "path": as_array(routed.paths), "madds": as_array(routed.madds)}


def answer(
    name: str, inference: Inference, routed: Routed, manifest: Manifest, spent: Mapping[str, Any]
) -> tuple[bytes, dict[str, str]]:
    """The response to a request: its body and headers. spent: parameters of the response."""
    arrays, rows, blobs = arrays_of(routed), [], []
    kinds = {tensor.name: tensor.datatype for tensor in outputs_of(manifest)}
    for output, binary in inference.outputs:
        array = np.asarray(arrays[output]).astype(KINDS[kinds[output]], copy=False)
        row: dict[str, Any] = {"name": output, "datatype": kinds[output], "shape": list(array.shape)}
        if binary:
            blobs.append(array.tobytes())
            row["parameters"] = {SIZE: array.nbytes}
        else:
            row["data"] = array.ravel().tolist()
        rows.append(row)
    said = {"model_name": name, "model_version": VERSION, "parameters": dict(spent), "outputs": rows}
    if inference.id:
        said["id"] = inference.id
    head = json.dumps(said, allow_nan=False).encode()
    if not blobs:
        return head, {"Content-Type": "application/json"}
    return b"".join([head, *blobs]), {"Content-Type": "application/octet-stream", LENGTH: str(len(head))}
