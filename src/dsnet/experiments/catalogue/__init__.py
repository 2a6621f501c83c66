"""The paper's experiments."""

from __future__ import annotations

from functools import partial

from dsnet.experiments.catalogue import alternatives, networks, reading, routers, sizes, slim, uses
from dsnet.experiments.layout import Experiment
from dsnet.experiments.simulated import latency, motivation

EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment("motivation", "Why dynamic networks", "A simulation; nothing is trained.", measure=motivation),
        Experiment(
            "main",
            "Dynamic against static networks",
            "One network with a router against static networks of equal MAdds, each trained by itself.",
            networks.main_tables,
            networks.main_plots,
        ),
        Experiment(
            "alternatives",
            "What else could be deployed",
            "One dynamic network against small static networks, trained alone or distilled from its widest "
            "sub-network, and against single widths of the same supernet.",
            alternatives.alternatives_tables,
            compare=alternatives.compare,
        ),
        Experiment(
            "universal",
            "DS-Net against universally slimmable networks",
            "A universally slimmable network narrows every layer; DS-Net keeps a fixed front and routes each image.",
            networks.us_tables,
            networks.us_plots,
        ),
        Experiment(
            "ieb",
            "In-place Ensemble Bootstrapping",
            "Who teaches the narrow sub-networks: the online widest, its moving average, or the average's ensemble.",
            networks.ieb_tables,
            networks.training_plots,
        ),
        Experiment(
            "temperature",
            "Distillation temperature",
            "A higher temperature softens what the sub-networks teach each other.",
            networks.temperature_tables,
            networks.training_plots,
        ),
        Experiment(
            "losses",
            "Losses of gate training",
            "Each of the three losses of stage II with and without the others.",
            routers.losses_tables,
            routers.losses_plots,
        ),
        Experiment(
            "sgs", "What the router learns", "The paper's targets and ours.", routers.sgs_tables, routers.sgs_plots
        ),
        Experiment("gate_design", "Design of the gate", "What slimming heads read and say.", routers.design_tables),
        Experiment(
            "gate_distribution",
            "Gate distribution",
            "Which widths the gates choose.",
            routers.distribution_tables,
            routers.distribution_plots,
        ),
        *(
            Experiment(
                f"supernet_{supernet.base}",
                f"Routers against their own supernet: {name}",
                "What is gained by choosing the width for each image instead of one width for all.",
                partial(routers.supernet_tables, name=name, supernet=supernet, paper=paper),
                partial(routers.supernet_plots, name=name),
            )
            for name, supernet, paper in (("DS-MBNet", networks.MBNET, 0.8), ("DS-ResNet", networks.RESNET, 1.2))
        ),
        *(
            Experiment(
                f"gate_reading_{supernet.base}",
                f"What a gate reads: {name}",
                "What limits gates with the paper's targets: what they read, how wide a window is, and who decides.",
                partial(reading.reading_tables, name=name, supernet=supernet),
            )
            for name, supernet in (("DS-MBNet", networks.MBNET), ("DS-ResNet", networks.RESNET))
        ),
        Experiment(
            "latency", "Latency", "Ways to run a part of the channels, and milliseconds of each width.", measure=latency
        ),
        Experiment("transfer", "Transfer", "A supernet and its gates go to other data.", uses.transfer_tables),
        Experiment(
            "slim_transfer",
            "Transfer of a pretrained network",
            "EfficientNet-Lite0, converted by `dsnet slim`, learns one set of photographs and then another, with and "
            "without the gate of the first.",
            uses.slim_transfer_tables,
            prepare=uses.prepare_slim,
        ),
        Experiment("detection", "Object detection", "FSSD on a dynamic backbone.", uses.detection_tables),
        Experiment(
            "slim",
            "A pretrained network becomes dynamic",
            "EfficientNet-Lite0, converted by `dsnet slim`, against what its user would do instead: fine-tune it as it "
            "is, quantise it, narrow it, or feed it with smaller images.",
            slim.slim_tables,
            compare=slim.compare,
            prepare=slim.prepare,
        ),
        Experiment(
            "sizes",
            "Look small first: the image size as a second axis",
            "EfficientNet-Lite0 looks at a small image first, and at a larger one where it is not sure, against the "
            "same network fine-tuned at one size.",
            sizes.sizes_tables,
            compare=sizes.compare,
            prepare=sizes.prepare,
        ),
        Experiment(
            "tiny_sizes",
            "Image sizes of small networks, trained from scratch",
            "A plain network and a dynamic one learn to run at smaller images of CIFAR-10, beside widths alone.",
            networks.tiny_sizes_tables,
        ),
        Experiment("efficientnet", "EfficientNet", "DS-EffNet against static EfficientNets.", networks.effnet_tables),
    )
}
