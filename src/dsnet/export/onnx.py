"""Networks as ONNX files: the dynamic network in one file, or one path as a plain file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import helper
from torch import nn

from dsnet.export.dynamic import DynamicWriter
from dsnet.export.int8 import Int8
from dsnet.export.parts import PartWriter
from dsnet.export.raw import write_image
from dsnet.export.whole import finish, signed, sound
from dsnet.export.writer import FLOAT
from dsnet.files import write_whole
from dsnet.manifest import Manifest, Policy, exported, to_metadata
from dsnet.models.parts import weights_digest
from dsnet.results import Evaluation
from dsnet.routing.budgets import policy_for
from dsnet.runtime.onnx import IMAGE
from dsnet.runtime.seal import sealed
from dsnet.space import WidthPath, WidthSpace, is_exit


def export_onnx(
    net: Any,
    file: str | Path,
    *,
    path: Sequence[int] | None = None,
    image_size: int | None = None,
    budget: str | float | None = None,
    max_width: int | None = None,
    window: str | Sequence[int] | None = None,
    max_size: int | None = None,
    simple: bool = False,
    raw: bool = False,
    evaluation: Evaluation | None = None,
    int8: Int8 | None = None,
) -> Path:
    """Write a network as one ONNX file: the dynamic network for one image at a time, or a single path for batches.

    Inputs of a dynamic file: image; budget (float, a share of the widest path's MAdds), max_width (int64), max_size
    (int64, pixels; of networks with several image sizes only) and pin (int64 per choice point). A budget or cap of -1
    takes the file's default. A pin of -1 lets the router choose, and one of -2 takes the exit of an exit_first router.
    Its outputs: those of the network (logits, or boxes and scores), path, madds, and router_scores of all decisions one
    after another. A file without calibrated budgets has no input `budget`. A network that has not learned to route
    becomes a file of all widths: `pin` selects the path, and -1 is the widest.

    Args:
        path: The path to export; None exports the dynamic network.
        budget: Default budget of the file.
        max_width: Default max_width of the file.
        max_size: Default max_size of the file, of a network with several image sizes.
        window: Default window of the file, within which it chooses as trained if it is given no budget.
        simple: Whether the inputs are image and budget only.
        raw: Whether the image is a picture of any size, uint8 [height, width, 3] in RGB, which the file resizes, crops
            and normalises itself. A file of one path then takes one image at a time, too.
        evaluation: The network's evaluation, which is stored in the file.
        int8: How the network is quantised, from `quantisation(net, images)`; None writes floats.
    """
    check_weights(net)
    manifest = replace(to_export(net, image_size, evaluation, int8), raw=raw)
    given = any(value is not None for value in (budget, max_width, max_size, window))
    if path is not None or not manifest.points:
        if given:
            raise ValueError("a path pins the widths; leave budget, max_width, max_size and window out")
        if simple:
            raise ValueError("a file of one path has no input but the image; leave simple out")
        wanted = manifest.space.validate(path or ())
        proto = static_model(PartWriter(net.parts(routed=False), manifest, int8), wanted)
        held = WidthSpace.only(wanted, sized=manifest.space.sized)
        return write_checked(proto, exported(manifest, kind="static", space=held, inputs=(IMAGE,)), Path(file))
    if manifest.router is None and given:
        raise ValueError(f"this {manifest.model} has not learned to route, so it has no budgets and no windows")
    if simple and (manifest.router is None or not manifest.router.budgets):
        raise ValueError(
            f"this {manifest.model} has no calibrated budgets at {manifest.image_size} px, so a simple file would have "
            f"nothing to choose; leave simple out, or export one path"
        )
    policy = policy_for(net.manifest(image_size), budget, max_width=max_width, window=window, max_size=max_size)
    writer = DynamicWriter(net.parts(headless=True), manifest, policy, simple=simple, int8=int8)
    if writer.prices is not None:
        writer.prices.check_cap(Policy(max_width=max_width, max_size=max_size))
    proto = writer.model()
    inputs = tuple(slot.name for slot in proto.graph.input)
    about = exported(manifest, kind="dynamic", space=writer.held, defaults=policy, inputs=inputs)
    return write_checked(proto, about, Path(file))


def to_export(net: Any, image_size: int | None, evaluation: Evaluation | None, int8: Int8 | None = None) -> Manifest:
    """A network's manifest with its evaluation, without the budgets that were calibrated at other image sizes."""
    manifest = net.manifest(image_size)
    size = manifest.image_size
    if evaluation is not None:  # a file does not carry details about single images and classes
        dynamic = evaluation.dynamic and replace(evaluation.dynamic, classes=())
        evaluation = replace(evaluation, examples=(), training={}, skipped=(), answers=(), dynamic=dynamic)
    routers = tuple(
        replace(router, budgets=tuple(row for row in router.budgets if row.image_size == size))
        for router in manifest.routers
    )
    digest = weights_digest(net)
    known = {"digest": digest} if int8 is None else {"digest": int8.digest(digest), "precision": "int8"}
    return replace(manifest, routers=routers, evaluation=evaluation, **known)


def check_weights(net: nn.Module) -> None:
    if net.training:
        raise ValueError("a network is exported in eval mode only; call net.eval() first")
    for name, tensor in net.state_dict().items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{name} holds NaN or infinite values; export a network that was trained without them")


def write_checked(proto: onnx.ModelProto, manifest: Manifest, file: Path) -> Path:
    helper.set_model_props(proto, to_metadata(manifest))
    onnx.checker.check_model(proto)
    return write_model(proto, file)


def write_model(proto: onnx.ModelProto, file: Path) -> Path:
    """Write a graph with the digest of its file."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, sealed(proto.SerializeToString()))
    except OSError as error:
        reason = error.__cause__ if isinstance(error.__cause__, OSError) else error
        raise ValueError(f"{file} cannot be written ({reason.strerror}); choose another file") from error
    return file


def static_model(writer: PartWriter, path: WidthPath) -> onnx.ModelProto:
    """One sub-network for batches of any size, or for one picture, with sliced and folded weights."""
    graph, manifest = writer.blank(shared=False), writer.manifest
    batch = 1 if manifest.raw else "batch"
    x, image = write_image(graph, manifest, batch)
    answers = writer.exit(graph, x, path) if is_exit(path) else writer.finish(graph, writer.along(graph, x, path))
    signed(graph, manifest, answers, sound(graph, manifest))
    outputs = [helper.make_tensor_value_info(name, FLOAT, [batch, *shape]) for name, shape in manifest.outputs.items()]
    return finish(graph, manifest.model, [image], outputs)
