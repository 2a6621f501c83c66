"""Rotation of channels between linear layers. The widest path still computes the same, and slim widths keep more of it.

Where convolutions write maps that are only added, and convolutions read them without a function in between, as in
inverted residual blocks, the channels may be mixed by any invertible matrix: the writers are multiplied by it, the
readers by its inverse. Principal components, in the order of what the readers make of them, put into the leading
channels what sorting could only choose from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dsnet.models.supernet import Supernet
from dsnet.slimming.convert import Plan, built
from dsnet.slimming.observe import observe, settle
from dsnet.slimming.trace import Op

LINEAR = ("add", "sub", "avg_pool", "global_pool")  # pass a mixture of channels on as it is
RIDGE = 1e-3  # of the mean: keeps the inverse small where the readers hardly read a direction


class Stream(NamedTuple):
    """A group whose channels may be mixed: the layers that write it, each with its norm if it has one, and those that
    read it."""

    group: int
    writers: list[tuple[Op, Op | None]]
    readers: list[Op]


def streams(plan: Plan) -> list[Stream]:
    """The groups that slim widths cut, between linear layers alone."""
    found = [stream_of(plan, group) for group, counts in plan.counts.items() if len(set(counts)) > 1]
    return [stream for stream in found if stream is not None and stream.writers and stream.readers]


def stream_of(plan: Plan, group: int) -> Stream | None:
    by_name = {op.name: op for op in plan.ops}
    mine = [op for op in plan.ops if any(part[0] == group for part in plan.layout(op.name))]
    readers = [op for op in plan.ops if op not in mine and any(by_name[name] in mine for name in op.inputs)]
    if any(plan.layout(op.name) != [(group, 1)] for op in mine):
        return None
    if any(not op.dense or op.inside is not None for op in readers):
        return None
    writers: list[tuple[Op, Op | None]] = []
    for op in mine:
        followers = [other for other in plan.ops if op.name in other.inputs]
        norm = followers[0] if len(followers) == 1 and followers[0].kind == "batch_norm" else None
        if op.dense and op.kind == "conv" and op.inside is None:
            writers.append((op, norm))
        elif op.kind == "batch_norm":
            source = by_name[op.inputs[0]]
            if source not in mine or source.kind != "conv" or not source.dense:
                return None
        elif op.kind not in LINEAR:
            return None
    if any(writer.inputs[0] in {op.name for op in mine} for writer, _ in writers):  # it also reads what it writes
        return None
    return Stream(group, writers, readers)


@torch.no_grad()
def rotate_members(plan: Plan, images: Tensor) -> set[int]:
    """Mix the channels of every stream in place. Returns the groups, whose channels are in order now."""
    found = streams(plan)
    seen = covariances(built(plan, "unrotated"), [op.name for stream in found for op in stream.readers], images)
    norms = []
    for stream in found:
        mix, inverse = components(stream.readers, seen)
        for op in stream.readers:
            multiply(op, "weight", "oi...,ij->oj...", inverse)
        for conv, norm in stream.writers:
            if norm is not None:
                fold(conv, norm)
                norms.append(norm)
                multiply(norm, "bias", "i,ji->j", mix)
            for kind in conv.tensors:
                multiply(conv, kind, "i...,ji->j...", mix)
    settle(plan, norms, images)
    return {stream.group for stream in found}


def multiply(op: Op, kind: str, rule: str, matrix: Tensor) -> None:
    """Multiply a tensor of an operation by a matrix, in doubles."""
    tensor = op.tensors[kind]
    op.tensors[kind] = torch.einsum(rule, tensor.double(), matrix).to(tensor.dtype).contiguous()


def components(readers: list[Op], seen: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The matrix [C, C] that turns channels into principal components of what the readers make of them, and its
    inverse. A norm behind a reader makes all its outputs count the same."""
    read = spread = torch.zeros((), dtype=torch.double)
    for op in readers:
        weight = (
            op.tensors["weight"].double().flatten(2) if op.kind == "conv" else op.tensors["weight"].double()[..., None]
        )
        power = torch.einsum("oik,ij,ojk->o", weight, seen[op.name], weight)
        weight = weight * power.clamp_min(1e-12).rsqrt()[:, None, None]
        read, spread = read + torch.einsum("oik,ojk->ij", weight, weight), spread + seen[op.name]
    values, vectors = torch.linalg.eigh(read)
    values = values + RIDGE * values.mean()
    root, back = (vectors * values.sqrt()) @ vectors.T, (vectors * values.rsqrt()) @ vectors.T
    axes = torch.linalg.eigh(root @ spread @ root).eigenvectors.flip(1)  # the strongest first
    return axes.T @ root, back @ axes


def fold(conv: Op, norm: Op) -> None:
    """Move the scale of a norm into the convolution before it. What is left of the norm adds its shift."""
    held, eps = norm.tensors, float(norm.options["eps"])  # type: ignore[arg-type]
    scale = held["weight"] / (held["running_var"] + eps).sqrt()
    conv.tensors = {kind: (tensor.movedim(0, -1) * scale).movedim(-1, 0) for kind, tensor in conv.tensors.items()}
    shift = held["bias"] - held["running_mean"] * scale
    ones = torch.ones_like(scale)
    norm.tensors = {"weight": ones, "bias": shift, "running_mean": 0 * ones, "running_var": (1 - eps) * ones}


def covariances(net: Supernet, names: Sequence[str], images: Tensor) -> dict[str, Tensor]:
    """The covariances [C, C] of the channels that the layers of these names read, on the widest path."""

    def of(x: Tensor) -> list[Tensor]:
        return [torch.tensor(len(x)), x.sum(0), x.T @ x]

    sums = observe(net, names, images, of)
    return {
        name: square / count - torch.outer(total, total) / count**2 for name, (count, total, square) in sums.items()
    }
