"""Transfer of a trained supernet or router to another run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from dsnet.data.dataset import Data
from dsnet.data.splits import SPLITS, check_data
from dsnet.models import Network, Supernet
from dsnet.models.sizes import at_sizes
from dsnet.nn import SliceConv2d
from dsnet.nn.router import of_router
from dsnet.tasks import card_of, check_source, load
from dsnet.tasks.classification.config import ClassificationConfig
from dsnet.training import with_fresh_router
from dsnet.weights.account import CLASSIFIER, Account

# Folders in a run's folder, with the networks that the run began with.
START, ROUTER, GUIDE = "start", "router", "guide"


def load_source(config: ClassificationConfig) -> Supernet:
    """The network that a run starts from. It must be of the model that the config names."""
    assert config.source is not None
    net = load(config.source, "classification")
    if net.spec.name != config.model.name:
        raise ValueError(
            f"{config.source} holds a {net.spec.name} (widths {list(net.spec.widths)}), not a {config.model.name}; "
            f"leave --model.name out, or carry its weights over first: dsnet import {config.source} --as "
            f"{config.model.name} --out FOLDER"
        )
    return net


def transferred(source: Supernet, data: Data, sizes: Sequence[int] = ()) -> tuple[Supernet, Account]:
    """A network for the classes, channels and image size of `data`, with the source's weights and statistics.

    sizes: Image sizes that the network runs at.
    """
    if source.spec.sizes != tuple(sizes):
        source = at_sizes(source, sizes)
    same = same_classes(source, data)
    classes = source.spec.num_classes if same else len(data.classes)
    changed = {"num_classes": classes, "in_channels": data.channels, "image_size": data.image_size}
    spec = replace(source.spec, router=None, **changed)
    spec.check_size(data.image_size)
    net, account = Supernet(spec), Account()
    state = net.state_dict()
    stem = first_weight(net)
    for key, tensor in source.state_dict().items():
        if key not in state:  # the head of a router that probes
            account.unused[key] = "the router is not kept"
        elif key.startswith(f"{CLASSIFIER}.") and not same:
            account.unused[key] = account.fresh[key] = "the classes are different"
        elif key == stem and source.spec.in_channels != data.channels:
            state[key] = adapted_stem(tensor, data.channels)
            account.adapted[key] = f"{source.spec.in_channels} input channels became {data.channels}"
        else:
            assert state[key].shape == tensor.shape, key
            state[key] = tensor
            account.whole.append(key)
    net.load_state_dict(state)
    net.card = replace(card_of(data), classes=data.classes or source.card.classes)
    return net, account


def same_classes(source: Supernet, data: Data) -> bool:
    """Whether a network keeps its classifier on this data: it knows the same classes, or the images have no labels. A
    converted network does not know the names of its classes, only their number."""
    if not data.classes or source.card.classes == data.classes:
        return True
    return not source.card.classes and source.spec.num_classes == len(data.classes)


def load_original(config: ClassificationConfig, data: Data, again: Path | None) -> Supernet | None:
    """The network that the run starts from, if it is the teacher. It must know the same classes.

    again: Folder of a resumed run, which has a copy of it.
    """
    if config.ieb.teacher != "original":
        return None
    if config.source is None:
        raise ValueError("ieb.teacher original is the network that the run starts from; name it with --from RUN")
    if again is not None:
        return load(again / START, "classification")
    original = load(config.source, "classification")
    if not same_classes(original, data):
        raise ValueError(
            f"ieb.teacher original: the network in {config.source} answers {original.spec.num_classes} other classes "
            f"than the {len(data.classes)} of the data; choose another ieb.teacher, or train on data.dataset images"
        )
    return original


def first_weight(net: Supernet) -> str:
    """The name of the weight that reads the image."""
    return next(f"{name}.weight" for name, module in net.named_modules() if isinstance(module, SliceConv2d))


def adapted_stem(weight: Tensor, channels: int) -> Tensor:
    """The weight of the first convolution for another number of input channels. Its output for grey images is the same.

    Every channel gets an equal share of the sum over the old channels.
    """
    return weight.sum(1, keepdim=True).expand(-1, channels, -1, -1) / channels


def check_gate_source(config: ClassificationConfig, spec: Network, classes: tuple[str, ...]) -> None:
    """Refuse a router of another run (`gate_from`) that does not fit this run's network."""
    if config.gate_from is None:
        return
    source = load(config.gate_from, "classification")
    target = config.routed(spec)
    if source.spec.router is None:
        raise ValueError(f"{config.gate_from} has no router to start from; leave gate_from out, or name a routed run")
    if source.spec.router != config.sgs.spec:
        have, want = source.spec.router, config.sgs.spec
        raise ValueError(
            f"{config.gate_from} has router {have.kind} with targets {have.targets}, but {want.kind} with targets "
            f"{want.targets} is to be trained; set --sgs.router {have.kind} --sgs.targets {have.targets}"
        )
    if (source.spec.name, source.spec.routing, source.spec.gate) != (target.name, target.routing, target.gate):
        raise ValueError(
            f"the router of {config.gate_from} chooses among widths {list(source.spec.routing)} of {source.spec.name}, "
            f"but this run among {list(target.routing)} of {target.name}; use the same model, model.routing, gate "
            f"design and sgs.standardised"
        )
    if source.probe is not None and source.spec.num_classes != len(classes):
        raise ValueError(
            f"the {source.spec.router.kind} router of {config.gate_from} reads answers of {source.spec.num_classes} "
            f"classes but the data has {len(classes)}; only --sgs.router gate works with another number of classes"
        )


def load_guide(config: ClassificationConfig, data: Data, again: Path | None) -> Supernet | None:
    """The network that `distill` names. It must know the same classes and images, and have seen the same split.

    again: Folder of a resumed run, which has a copy of it.
    """
    if config.distill is None:
        return None
    if again is not None:
        return load(again / GUIDE, "classification")
    guide = load(config.distill, "classification")
    if (Path(config.distill) / SPLITS).exists():
        check_data(Path(config.distill), data)
    check_source(guide, config.distill, data)
    if guide.spec.in_channels != data.channels:
        raise ValueError(
            f"the network in {config.distill} takes images of {guide.spec.in_channels} channels; the data "
            f"has {data.channels}"
        )
    return guide


def with_router(net: Supernet, config: ClassificationConfig, folder: Path) -> Supernet:
    """The network with a fresh router, or with the weights of the router that is saved in the run's folder."""
    torch.manual_seed(config.seed)
    net = with_fresh_router(net, config.routed(net.spec))
    if config.gate_from is not None:
        kept = {
            key: tensor
            for key, tensor in load(folder / ROUTER, "classification").state_dict().items()
            if of_router(key)
        }
        assert kept
        keys = net.load_state_dict(kept, strict=False)
        assert not keys.unexpected_keys
    return net
