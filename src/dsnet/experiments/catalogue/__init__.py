"""The paper's experiments."""

from __future__ import annotations

from dsnet.experiments.catalogue.networks import (
    effnet_tables,
    ieb_tables,
    main_plots,
    main_tables,
    temperature_tables,
    us_plots,
    us_tables,
)
from dsnet.experiments.catalogue.routers import (
    design_tables,
    distribution_plots,
    distribution_tables,
    losses_plots,
    losses_tables,
    sgs_plots,
    sgs_tables,
    supernet_plots,
    supernet_tables,
)
from dsnet.experiments.catalogue.uses import detection_tables, transfer_tables
from dsnet.experiments.layout import Experiment
from dsnet.experiments.measures import training_curve
from dsnet.experiments.simulated import latency, motivation

EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment("motivation", "Why dynamic networks", "A simulation; nothing is trained.", measure=motivation),
        Experiment(
            "main",
            "Dynamic against static networks",
            "One network with a router against static networks of equal MAdds, each trained by itself.",
            main_tables,
            main_plots,
        ),
        Experiment(
            "universal",
            "DS-Net against universally slimmable networks",
            "A universally slimmable network narrows every layer; DS-Net keeps a fixed front and routes each image.",
            us_tables,
            us_plots,
        ),
        Experiment(
            "ieb",
            "In-place Ensemble Bootstrapping",
            "Who teaches the narrow sub-networks: the online widest, its moving average, or the average's ensemble.",
            ieb_tables,
            lambda scale: (training_curve("The slimmest sub-network during training", "calibration/slimmest"),),
        ),
        Experiment(
            "temperature",
            "Distillation temperature",
            "A higher temperature softens what the sub-networks teach each other.",
            temperature_tables,
            lambda scale: (training_curve("The slimmest sub-network during training", "calibration/slimmest"),),
        ),
        Experiment(
            "losses",
            "Losses of gate training",
            "Each of the three losses of stage II with and without the others.",
            losses_tables,
            losses_plots,
        ),
        Experiment("sgs", "What the router learns", "The paper's targets and ours.", sgs_tables, sgs_plots),
        Experiment("gate_design", "Design of the gate", "What slimming heads read and say.", design_tables),
        Experiment(
            "gate_distribution",
            "Gate distribution",
            "Which widths the gates choose.",
            distribution_tables,
            distribution_plots,
        ),
        Experiment(
            "supernet",
            "Routers against their own supernet",
            "What is gained by choosing the width for each image instead of one width for all.",
            supernet_tables,
            supernet_plots,
        ),
        Experiment(
            "latency", "Latency", "Ways to run a part of the channels, and milliseconds of each width.", measure=latency
        ),
        Experiment("transfer", "Transfer", "A supernet and its gates go to other data.", transfer_tables),
        Experiment("detection", "Object detection", "FSSD on a dynamic backbone.", detection_tables),
        Experiment("efficientnet", "EfficientNet", "DS-EffNet against static EfficientNets.", effnet_tables),
    )
}
