"""The three scales of the experiments: smoke, cpu and paper. Each names its networks, data and seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsnet.experiments.recipe import Base, Keys, Latency, Scale


def tiny(config: str, static: str, sizes: list[int], **keys: Any) -> Mapping[str, Base]:
    """A config's network and a static one, with and without several image sizes."""
    alone, sized = {"stage": "supernet", **keys}, {"stage": "supernet", "model.sizes": sizes, **keys}
    return {
        "tiny_static": Base(config, {**alone, "model.name": static}),
        "tiny_sizes": Base(config, {**sized, "model.name": static}),
        "tiny_widths": Base(config, alone),
        "tiny_both": Base(config, sized),
    }


TINY: Keys = {
    "model.name": "tiny",
    "model.widths": [2],
    "model.image_size": 16,
    "data.calibration": 0.2,
    "optim.epochs": 1,
}
TINY_SIZES: Keys = {**TINY, "model.sizes": [8, 12, 16], "freeze": "none", "stage": "supernet"}
SLIM_TRANSFER = ("slim_source", "slim_target")
ALL = ["caltech101/train", "imagenette/train", "VOCdevkit/VOC2007/ImageSets/Main/train.txt"]  # photographs to learn on
SIZES_ALONE = ("sizes_static", "sizes_sweep")
SMOKE = Scale(
    name="smoke",
    about="Scale smoke: one epoch on the embedded digits. It shows that the experiment runs; its figures mean nothing.",
    seeds=(0,),
    bases={
        "mbnet": Base("smoke/digits"),
        "small": Base("smoke/digits"),
        "static_small": Base("smoke/digits", {"model.name": "mobilenet_v1_tiny"}),
        "us": Base("smoke/digits", {"model.name": "us_mobilenet_v1_tiny"}),
        "static": Base("smoke/digits", {"model.name": "mobilenet_v1_tiny"}),
        "resnet": Base("smoke/digits", {"model.name": "ds_resnet_tiny"}),
        "static_resnet": Base("smoke/digits", {"model.name": "resnet_tiny"}),
        "effnet": Base("smoke/digits", {"model.name": "ds_efficientnet_tiny"}),
        "static_effnet": Base("smoke/digits", {"model.name": "efficientnet_tiny"}),
        "mbnet_target": Base("smoke/digits", {"data.image_size": 20}),
        "static_mbnet_target": Base("smoke/digits", {"model.name": "mobilenet_v1_tiny", "data.image_size": 20}),
        "resnet_target": Base("smoke/digits", {"model.name": "ds_resnet_tiny", "data.image_size": 20}),
        "static_resnet_target": Base("smoke/digits", {"model.name": "resnet_tiny", "data.image_size": 20}),
        "backbone": Base("smoke/backbone"),
        "static_backbone": Base("smoke/backbone", {"model.name": "mobilenet_v1", "model.width": 0.25}),
        "detector": Base("smoke/detection"),
        **tiny("smoke/digits", "mobilenet_v1_tiny", [8, 12, 16]),
        "slim": Base("pretrained", TINY),
        **{name: Base("pretrained", {**TINY, "stage": "supernet"}) for name in ("slim_narrow", *SLIM_TRANSFER)},
        "slim_repair": Base("distil", {**TINY, "data.folders": ["digits/train"]}),
        **{name: Base("pretrained", {**TINY_SIZES, "model.widths": [1]}) for name in ("sizes", *SIZES_ALONE)},
        "sizes_small": Base("pretrained", {**TINY_SIZES, "model.widths": [1], "model.sizes": None}),
        "sizes_both": Base("pretrained", TINY_SIZES),
        "sizes_both_equal": Base("pretrained", {**TINY_SIZES, "ieb.paths": 2}),
    },
    folders={"folder": "digits", "detector": "digits-voc", "slim_repair": ""},
    widths=(0.5, 1.0),
    latency=Latency("ds_mobilenet_v1_tiny", {(2,): "mobilenet_v1_tiny:0.5"}, table1=64, repeats=2),
)
MBNET, RESNET, IMAGENETTE = "cifar10_ds_mobilenet_v1_tiny", "cifar10_ds_resnet_tiny", "imagenette_ds_mobilenet_v1_small"
CLUTTERED = "cluttered_ds_mobilenet_v1_tiny"
LONGER: Keys = {"optim.epochs": 12}  # DS-ResNet has fewer seeds, each trained twice as long as its config says
AS_BEFORE = (
    "The learning rate is 0.05 and every sub-network's loss has the same weight, as before the sweep of recipes."
)
FASHION: Keys = {"data.dataset": "fashion_mnist", "data.image_size": 28, "optim.epochs": 1}
LITE0: Keys = {  # as `dsnet slim efficientnet_lite0` converts it, at 112 px and four widths
    "model.name": "efficientnet_lite0",
    "model.widths": [4],
    "model.image_size": 112,
    "data.mean": [127 / 255] * 3,
    "data.std": [128 / 255] * 3,
}
PHOTOGRAPHS: Keys = {**LITE0, "data.calibration": 0.16}
SIZED: Keys = {  # the same network with all its channels, at five image sizes; all layers learn
    **PHOTOGRAPHS,
    "model.widths": [1],
    "model.sizes": [48, 64, 80, 96, 112],
    "freeze": "none",
    "stage": "supernet",
}
ALONE: Keys = {**SIZED, "ieb.weight": 1.0, "optim.epochs": 11}  # a step costs 1 / 1.8 of one with sizes
SIZES: Mapping[str, Base] = {
    "sizes": Base("pretrained", SIZED),
    "sizes_both": Base("pretrained", {**SIZED, "model.widths": [2], "ieb.paths": 2}),
    "sizes_both_equal": Base("pretrained", {**SIZED, "model.widths": [2], "ieb.paths": 3}),
    "sizes_static": Base("pretrained", ALONE),
    "sizes_sweep": Base("pretrained", ALONE),
    "sizes_small": Base("pretrained", {**ALONE, "model.sizes": None}),
}
NARROWED: Keys = {**PHOTOGRAPHS, "optim.lr": 1e-3, "stage": "supernet"}
SLIM: Mapping[str, Base] = {
    "slim_repair": Base("distil", {**LITE0, "data.folders": ALL}),
    "slim": Base("pretrained", {**PHOTOGRAPHS, "optim.lr": 1e-3}),
    "slim_narrow": Base("pretrained", {**NARROWED, "optim.epochs": 12}),
    "slim_source": Base("pretrained", {**NARROWED, "optim.epochs": 2}),
    "slim_target": Base("pretrained", {**NARROWED, "optim.epochs": 4}),
}
SLIM_FOLDERS = {**dict.fromkeys((*SLIM, *SIZES), "caltech101"), "slim_source": "imagenette", "slim_repair": ""}
CPU = Scale(
    name="cpu",
    about="Scale cpu: small networks, short trainings.",
    trained="On CIFAR-10: networks 14 epochs (DS-ResNet 12, EfficientNets 6), routers 16 over stored features "
    "(gates that decide one by one 2, through the network).",
    one_by_one={"sgs_optim.epochs": 2},
    seeds=(0, 1, 2),
    few={
        **dict.fromkeys(
            ("resnet", "resnet_target", "static_resnet", "static_resnet_target", "effnet", "static_effnet", "detector"),
            2,
        ),
        **dict.fromkeys(("slim", "slim_repair", "slim_narrow"), 2),
        **dict.fromkeys((*SLIM_TRANSFER, "sizes_both", "sizes_both_equal", "sizes_small", *tiny("", "", [])), 1),
    },
    bases={
        "mbnet": Base(MBNET),
        "small": Base(CLUTTERED),
        "static_small": Base(CLUTTERED, {"model.name": "mobilenet_v1_tiny"}),
        "us": Base(MBNET, {"model.name": "us_mobilenet_v1_tiny"}),
        "static": Base(MBNET, {"model.name": "mobilenet_v1_tiny"}),
        "resnet": Base(RESNET, LONGER),
        "static_resnet": Base(RESNET, {"model.name": "resnet_tiny", **LONGER}),
        "effnet": Base(MBNET, {"model.name": "ds_efficientnet_tiny", "optim.epochs": 6}),
        "static_effnet": Base(MBNET, {"model.name": "efficientnet_tiny", "optim.epochs": 6}),
        "mbnet_target": Base("transfer_small", {"model.name": "ds_mobilenet_v1_tiny", **FASHION}),
        "static_mbnet_target": Base("transfer_small", {"model.name": "mobilenet_v1_tiny", **FASHION}),
        "resnet_target": Base("transfer_small", {"model.name": "ds_resnet_tiny", **FASHION}),
        "static_resnet_target": Base("transfer_small", {"model.name": "resnet_tiny", **FASHION}),
        "backbone": Base(IMAGENETTE),
        "static_backbone": Base(IMAGENETTE, {"model.name": "mobilenet_v1", "model.width": 0.5}),
        "detector": Base("detection/bccd_small"),
        **tiny(MBNET, "mobilenet_v1_tiny", [16, 24, 32], **{"optim.epochs": 7}),
        **SLIM,
        **SIZES,
    },
    folders={"cifar10": "", "folder": "imagenette", "detector": "BCCD", **SLIM_FOLDERS},
    widths=(0.5, 0.75, 1.0),
    notes={
        "ieb": f"On CIFAR-10: 8 epochs. {AS_BEFORE}",
        "temperature": f"On CIFAR-10: 14 epochs. {AS_BEFORE}",
        "alternatives": "On cluttered digits at 32 px, which need no download: every network 800 steps of 64 images "
        "with AdamW, the router 300.",
        "transfer": "From CIFAR-10 to Fashion-MNIST at 28 px: networks one epoch, gates two. The paper's figures are "
        "of ImageNet to CIFAR-10. Learning rate 0.05, from scratch 0.1.",
        "sizes": "Caltech-101 (100 classes, 4,150 training, 790 calibration and 3,302 test images) at 112 px. The "
        "network has ImageNet weights and learns 6 epochs, in every step at 112 px, one size in between and 48 px. "
        "Static networks learn 11 epochs, which take as long. All layers learn. With sizes and widths, a step trains "
        "both ends and two of the eight settings in between, or three of them in the row with equal steps: there each "
        "of the eight learns 2.25 epochs, as with sizes alone each of the three between the ends learns 2.",
        "slim": "Caltech-101 (100 classes, 4,150 training, 790 calibration and 3,302 test images) at 112 px. The "
        "network has ImageNet weights and the widths 0.35/0.5, 0.5/0.75, 0.75/0.75 and 1 of its hidden and residual "
        "channels, in multiples of 16; residual channels are principal components, and every width has its own scale "
        "and shift. All widths learn 6 epochs, behind a frozen front. The static networks are those of `sizes`: they "
        "learn 11 epochs, which take as long, in all layers. The repair before takes 2 epochs on 15,409 photographs "
        "without labels: the training images of Caltech-101, Imagenette and the VOC subset.",
        "slim_transfer": "From Imagenette (2 epochs) to Caltech-101 (4 epochs) at 112 px, one seed.",
        "tiny_sizes": "On CIFAR-10 at 32 px, with sizes also at 24 and 16 px: 7 epochs, one seed.",
        "detection": "Blood cells (BCCD, 205 training images, 3 classes) at 160 px, 50 epochs; backbones trained on "
        "Imagenette; the static backbone is MobileNetV1 x0.5. The paper's figures are of VOC 2007 at 300 px.",
        "latency": "The paper's own networks, untrained, at 224 px.",
    },
    latency=Latency(
        "ds_mobilenet_v1",
        {(1,): "mobilenet_v1:0.5", (7,): "mobilenet_v1:0.75", (13,): "mobilenet_v1"},  # the paper's S, M, L
        table1=224,
        repeats=30,
    ),
)
IMAGENET, CIFAR = "imagenet_ds_mobilenet_v1", "transfer_cifar10_ds_resnet50"
PAPER = Scale(
    name="paper",
    about="Scale paper: ImageNet, VOC and CIFAR-10 with the paper's recipes.",
    seeds=(0,),
    bases={
        "mbnet": Base(IMAGENET),
        "small": Base(IMAGENET),
        "static_small": Base(IMAGENET, {"model.name": "mobilenet_v1"}),
        "us": Base(IMAGENET, {"model.name": "us_mobilenet_v1"}),
        "static": Base(IMAGENET, {"model.name": "mobilenet_v1"}),
        "resnet": Base("imagenet_ds_resnet50"),
        "static_resnet": Base("imagenet_ds_resnet50", {"model.name": "resnet50"}),
        "effnet": Base("imagenet_ds_efficientnet_b0"),
        "static_effnet": Base("imagenet_ds_efficientnet_b0", {"model.name": "efficientnet_b0"}),
        "mbnet_target": Base(CIFAR, {"model.name": "ds_mobilenet_v1"}),
        "static_mbnet_target": Base(CIFAR, {"model.name": "mobilenet_v1"}),
        "resnet_target": Base(CIFAR),
        "static_resnet_target": Base(CIFAR, {"model.name": "resnet50"}),
        "backbone": Base(IMAGENET, {"stage": "supernet"}),
        "static_backbone": Base(IMAGENET, {"model.name": "mobilenet_v1", "stage": "supernet"}),
        "detector": Base("detection/voc_ds_mobilenet_v1"),
        **tiny(IMAGENET, "mobilenet_v1", [128, 160, 192, 224]),
        **SLIM,
        **SIZES,
    },
    folders={"cifar10": "", "folder": "imagenet", "detector": "VOCdevkit", **SLIM_FOLDERS},
    widths=(0.5, 0.75, 1.0),
    window=4,  # as many as the released network's gate has outputs
    latency=CPU.latency,
)
SCALES = {scale.name: scale for scale in (SMOKE, CPU, PAPER)}
