"""A trained supernet or router goes to another run: what it keeps, and what is new."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from dsnet.data.dataset import Data
from dsnet.models import ModelSpec, Supernet
from dsnet.tasks import load
from dsnet.tasks.classification.config import ClassificationConfig
from dsnet.training import with_fresh_router
from dsnet.training.sgs import of_router
from dsnet.weights.account import CLASSIFIER, Account

START, ROUTER = "start", "router"  # below a run's folder: the networks that it began with


def load_source(config: ClassificationConfig) -> Supernet:
    """The network that a run starts from; it must be the one that the config names."""
    assert config.source is not None
    net = load(config.source, "classification")
    if net.spec.name != config.model.name:
        raise ValueError(
            f"{config.source} holds a {net.spec.name} (widths {list(net.spec.widths)}), not a {config.model.name}; "
            f"leave --model.name out, or carry its weights over first: dsnet import {config.source} --as "
            f"{config.model.name} --out FOLDER"
        )
    return net


def transferred(source: Supernet, data: Data) -> tuple[Supernet, Account]:
    """The source's weights and per-width statistics in a network for other classes, channels and image size."""
    changed = {"num_classes": len(data.classes), "in_channels": data.channels, "image_size": data.image_size}
    spec = replace(source.spec, router=None, **changed)  # type: ignore[arg-type]
    spec.check_size(data.image_size)
    net, account = Supernet(spec), Account()
    state = net.state_dict()
    stem = first_weight(net)
    for key, tensor in source.state_dict().items():
        if key not in state:  # the head of a router that probes
            account.unused[key] = "the router is left behind"
        elif key.startswith(f"{CLASSIFIER}.") and source.card.classes != data.classes:
            account.unused[key] = account.fresh[key] = "the classes are others"
        elif key == stem and source.spec.in_channels != data.channels:
            state[key] = adapted_stem(tensor, data.channels)
            account.adapted[key] = f"{source.spec.in_channels} input channels became {data.channels}"
        else:
            assert state[key].shape == tensor.shape, key
            state[key] = tensor
            account.whole.append(key)
    net.load_state_dict(state)
    return net, account


def first_weight(net: Supernet) -> str:
    """The weight that reads the image."""
    return next(name for name, _ in net.named_parameters() if name.endswith("conv.weight"))


def adapted_stem(weight: Tensor, channels: int) -> Tensor:
    """A first convolution for another number of input channels, which gives the same answer to a grey image.

    One channel: the sum over the old ones. Several: an equal share of that sum for each.
    """
    return weight.sum(1, keepdim=True).expand(-1, channels, -1, -1) / channels


def check_gate_source(config: ClassificationConfig, spec: ModelSpec, classes: tuple[str, ...]) -> None:
    """Refuse a router that does not fit the network it is to go on with."""
    if config.gate_from is None:
        return
    source = load(config.gate_from, "classification")
    wished = config.routed(spec)
    if source.spec.router is None:
        raise ValueError(f"{config.gate_from} has no router to start from; leave gate_from out, or name a routed run")
    if source.spec.router != config.sgs.spec:
        have, want = source.spec.router, config.sgs.spec
        raise ValueError(
            f"{config.gate_from} has router {have.kind} with targets {have.targets}, but {want.kind} with targets "
            f"{want.targets} is to be trained; set --sgs.router {have.kind} --sgs.targets {have.targets}"
        )
    if (source.spec.name, source.spec.routing, source.spec.gate) != (wished.name, wished.routing, wished.gate):
        raise ValueError(
            f"the router of {config.gate_from} chooses among widths {list(source.spec.routing)} of {source.spec.name}, "
            f"but this run among {list(wished.routing)} of {wished.name}; use the same model and model.routing"
        )
    if source.probe is not None and source.spec.num_classes != len(classes):
        raise ValueError(
            f"the {source.spec.router.kind} router of {config.gate_from} reads answers of {source.spec.num_classes} "
            f"classes but the data has {len(classes)}; only --sgs.router gate goes over to other numbers of classes"
        )


def with_router(net: Supernet, config: ClassificationConfig, folder: Path) -> Supernet:
    """The network with a fresh router, or with the one that the run's folder keeps."""
    torch.manual_seed(config.seed)
    net = with_fresh_router(net, config.routed(net.spec))
    if config.gate_from is not None:
        kept = {
            key: tensor
            for key, tensor in load(folder / ROUTER, "classification").state_dict().items()
            if of_router(key)
        }
        assert kept
        found = net.load_state_dict(kept, strict=False)
        assert not found.unexpected_keys
    return net
