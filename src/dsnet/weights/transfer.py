"""Transfer of weights from one trained network to another of the same layout, with an account of every tensor.

Blocks are paired in order, and the layers of a block by their names. Where the target is narrower, it gets the leading
channels. What the source lacks keeps its initial values.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from dsnet.models import ModelSpec, Network, Supernet, list_models, model_spec
from dsnet.nn import Block, Bottleneck, Sliceable, SliceBatchNorm2d
from dsnet.weights.account import CLASSIFIER, Account
from dsnet.weights.plain import Source
from dsnet.weights.sorting import Importance, blocks_of, sort_channels


def import_as(
    name: str, source: Source, *, num_classes: int | None = None, sort: Importance | None = None
) -> tuple[Supernet, Account]:
    """A registered model with the weights of a trained network, including the classifier if the class counts agree.

    The model takes the activations that the weights were trained with.
    """
    old = source.net.spec
    check_blocks(old)
    inputs = {"in_channels": old.in_channels, "image_size": old.image_size}
    spec = model_spec(name, num_classes=old.num_classes if num_classes is None else num_classes, **inputs)
    trained = {"activation": old.activation, "depthwise_activation": old.depthwise_activation}
    net, account = transfer(source.net, replace(spec, **trained), names=source.names, sort=sort)
    if old.depthwise_activation != spec.depthwise_activation:
        article = "an" if old.depthwise_activation else "no"
        account.notes.append(f"{article} activation follows depthwise convolutions, as the weights were trained")
    if old.activation != spec.activation:
        account.notes.append(
            f"the activation is {old.activation}, with which the weights were trained; {name} has {spec.activation}"
        )
    if source.scheme is not None:
        account.notes += source.scheme.limits
    return net, account


@torch.no_grad()
def transfer(
    source: Supernet, spec: ModelSpec, *, names: Mapping[str, str] | None = None, sort: Importance | None = None
) -> tuple[Supernet, Account]:
    """A new network of `spec` with the weights of the widest path of another one.

    names: Names of the source's layers in the account, if they differ from the network's own. sort: Sort the channels
    of the source first, by this importance.
    """
    check_layout(source.spec, spec)
    if sort is not None:
        source = sort_channels(copy.deepcopy(source), sort)
    net = Supernet(replace(spec, router=None)).eval()
    carrier = _Carrier(source, net, names)
    for ours, theirs in zip(blocks_of(net), blocks_of(source), strict=True):
        carrier.layers(ours, theirs)
        if adds(ours) != adds(theirs):
            where = carrier.paths[id(ours)]
            carrier.account.limits.append(f"only one of the two networks has an identity skip around {where}")
    carrier.layers(net.head, source.head)
    carrier.judge()
    if source.spec.router is not None:
        carrier.account.notes.append(
            "the router is not kept, because it belongs to the source; train one: --stage gate"
        )
    same = net.spec.num_classes == source.spec.num_classes
    net.card = replace(source.card, budgets=(), classes=source.card.classes if same else ())
    return net, carrier.account


def adds(block: Block) -> bool:
    """Whether a block adds its unchanged input to its output."""
    return block.skip or (isinstance(block, Bottleneck) and block.shortcut is None)


class _Carrier:
    """Copies layers from one network to another and keeps the account."""

    def __init__(self, source: Supernet, net: Supernet, names: Mapping[str, str] | None) -> None:
        self.source, self.net, self.account = source, net, Account()
        self.paths = {id(module): path for path, module in net.named_modules()}
        theirs = {id(module): path for path, module in source.named_modules()}
        self.names = theirs if names is None else {key: names.get(path, path) for key, path in theirs.items()}

    def layers(self, ours: nn.Module, theirs: nn.Module) -> None:
        """Copy all layers of a block or head, paired by their names in it."""
        mine = {path: layer for path, layer in ours.named_modules() if isinstance(layer, Sliceable)}
        its = {path: layer for path, layer in theirs.named_modules() if isinstance(layer, Sliceable)}
        for path, layer in mine.items():
            if path not in its:
                for kind, _ in layer.named_parameters():
                    self.account.fresh[f"{self.paths[id(layer)]}.{kind}"] = self.lacking(path)
            elif self.paths[id(layer)] == CLASSIFIER and self.net.spec.num_classes != self.source.spec.num_classes:
                self.refuse_classes(its[path])
            else:
                self.layer(layer, its[path])
        for path in [path for path in its if path not in mine]:
            for kind, _ in its[path].named_parameters():
                self.account.unused[f"{self.names[id(its[path])]}.{kind}"] = f"{self.net.spec.name} has no such layer"

    def layer(self, ours: Sliceable, theirs: Sliceable) -> None:
        for kind, target in ours.named_parameters():
            self.copy(theirs, kind, getattr(theirs, kind), ours, target)
        if not isinstance(theirs, SliceBatchNorm2d):
            return
        for kind in ("running_mean", "running_var"):
            if isinstance(ours, SliceBatchNorm2d):
                row = getattr(theirs, kind)[-1]
                self.copy(theirs, kind, row, ours, getattr(ours, kind)[-1])
                width = min(len(row), ours.channels.max)
                getattr(ours, kind)[:, :width] = row[:width]  # initial values for the slimmer widths
            else:
                self.account.unused[f"{self.names[id(theirs)]}.{kind}"] = "group norm keeps no statistics"

    def copy(self, layer: Sliceable, kind: str, tensor: Tensor, ours: Sliceable, target: Tensor) -> None:
        name = f"{self.names[id(layer)]}.{kind}"
        given, wanted = tuple(tensor.shape), tuple(target.shape)
        both = tuple(min(pair) for pair in zip(given, wanted, strict=True))
        overlap = tuple(slice(count) for count in both)
        target[overlap] = tensor[overlap].to(target.dtype)
        if both == given:
            self.account.whole.append(name)
        else:
            self.account.cut[name] = (given, both)
        if both != wanted:
            self.account.widened[f"{self.paths[id(ours)]}.{kind}"] = (both, wanted)

    def refuse_classes(self, theirs: Sliceable) -> None:
        have, need = self.source.spec.num_classes, self.net.spec.num_classes
        for kind in ("weight", "bias"):
            self.account.unused[f"{self.names[id(theirs)]}.{kind}"] = f"it has {have} classes, {need} were asked for"
            self.account.fresh[f"{CLASSIFIER}.{kind}"] = f"the source has {have} classes instead of {need}"

    def lacking(self, path: str) -> str:
        if not path.startswith("gate"):
            return "the source has no such layer"
        if ".slimming" in path:
            return "slimming heads learn in stage II"
        gate = self.net.spec.gate
        what = "1 + tanh is the identity when fresh" if gate is not None and gate.attention == "tanh" else "sigmoid"
        return f"the source has no attention; {what}"

    def judge(self) -> None:
        """Note where the networks differ, and which batch-norm statistics are still valid."""
        account, spec = self.account, self.net.spec
        if account.cut:
            account.limits.append(f"{len(account.cut)} tensors were cut, so the other channels are lost")
        if account.widened:
            account.limits.append(f"{len(account.widened)} tensors are wider than the source's: the rest is untrained")
        if any(not name.startswith(CLASSIFIER) and "gate." not in name for name in account.fresh):
            account.limits.append("layers that the source lacks are untrained")
        if any(reason.endswith("no such layer") for reason in account.unused.values()):
            account.limits.append(f"layers of the source that {spec.name} lacks are left out")
        if spec.activation != self.source.spec.activation:
            account.limits.append(f"the source was trained with {self.source.spec.activation}, not {spec.activation}")
        if spec.depthwise_activation != self.source.spec.depthwise_activation:
            account.limits.append("the source and the network differ in activations behind depthwise convolutions")
        if any(reason.endswith("sigmoid") for reason in account.fresh.values()):
            account.limits.append("fresh sigmoid attention scales every channel by about one half")
        if spec.norm.kind != self.source.spec.norm.kind:
            account.limits.append(self.other_norm())
        norms = [module for module in self.net.modules() if isinstance(module, SliceBatchNorm2d)]
        for norm in norms:
            norm.num_batches_tracked.zero_()
            if not account.limits:
                norm.num_batches_tracked[-1] = 1
        if norms and (account.limits or spec.widths):
            which = "" if account.limits else " of the slimmer widths"
            account.notes.append(f"the batch-norm statistics{which} are no longer valid: recalibrate or train")

    def other_norm(self) -> str:
        spec, source = self.net.spec, self.source.spec
        text = f"the source has {source.norm.kind} norm and {spec.name} {spec.norm.kind} norm: "
        if spec.norm.kind == "batch":
            return text + "scale and shift load, statistics are fresh"
        same = [n for n in fitting(source) if (s := model_spec(n)).norm.kind == "batch" and s.widths]
        remedy = f"; with one choice point batch norm is kept: {', '.join(same)}" if same else ""
        return text + f"scale and shift load, statistics are lost, so it must be trained before use{remedy}"


def check_blocks(source: Network) -> None:
    if not isinstance(source, ModelSpec):
        raise ValueError(f"{source.name} was made by `dsnet slim` and has no blocks; go on with dsnet train --from")


def check_layout(source: ModelSpec, spec: ModelSpec) -> None:
    """Refuse a target whose blocks are not those of the source."""
    check_blocks(source)
    if layout(source) != layout(spec):
        same = fitting(source)
        remedy = f"choose {' or '.join(same)}" if same else "no registered model has its layout"
        raise ValueError(f"{spec.name} has {describe(spec)}, but the weights are those of {describe(source)}; {remedy}")
    if source.in_channels != spec.in_channels:
        raise ValueError(
            f"the weights take images of {source.in_channels} channels and {spec.name} of {spec.in_channels}; "
            f"give it in_channels {source.in_channels}"
        )


def layout(spec: ModelSpec) -> list[tuple[str, int, int, bool]]:
    """Kind, kernel, stride and presence of an expansion, for every block."""
    return [
        (s.block, 3 if s.block in ("max_pool", "bottleneck") else s.kernel, s.stride if k == 0 else 1, s.expansion > 1)
        for s in spec.stages
        for k in range(s.repeats)
    ]


def fitting(spec: ModelSpec) -> list[str]:
    """The registered models that have the layout of a network."""
    return [name for name in list_models() if layout(model_spec(name)) == layout(spec)]


def describe(spec: ModelSpec) -> str:
    """The blocks of a network in a few words."""
    rows: dict[str, list[int]] = {}
    for stage in spec.stages:
        rows.setdefault(stage.block, []).append(stage.repeats)
    return ", ".join(f"{' + '.join(map(str, counts))} {kind} blocks" for kind, counts in rows.items())
