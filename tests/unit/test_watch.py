"""What stage II logs after every epoch: the figures are those of the routed network on the calibration images."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import entropy
from sklearn.metrics import roc_auc_score

from dsnet.data.config import DataConfig
from dsnet.data.dataset import Data, Split
from dsnet.data.labelled import open_dataset
from dsnet.data.sources import Arrays
from dsnet.manifest import Policy
from dsnet.models import Supernet, eager, route
from dsnet.tasks.classification.config import ClassificationConfig
from dsnet.tasks.classification.router import Watch, decides_once
from dsnet.training import SGSConfig, with_fresh_router
from support.networks import randomise, randomised

CASES = {
    "one gate": ("ds_mobilenet_v1_tiny", SGSConfig(router="gate")),
    "one gate, windows of two": ("ds_mobilenet_v1_tiny", SGSConfig(router="gate", windows=2)),
    "bound gates": ("ds_resnet_tiny", SGSConfig(router="gate")),
    "gates one by one": ("ds_resnet_tiny", SGSConfig(router="gate", bound=False, windows=0)),
    "gates one by one, windows": ("ds_resnet_tiny", SGSConfig(router="gate", bound=False)),
    "scores of correctness": ("ds_mobilenet_v1_tiny", SGSConfig(router="gate", targets="correctness")),
}


@pytest.fixture(scope="module")
def digits() -> Data:
    return open_dataset(DataConfig())


@torch.no_grad()
def watched(case: str, data: Data) -> tuple[Watch, Supernet]:
    """A random network and its watch on images whose labels are, by chance, the answer of the slimmest candidate, of
    the widest, or another."""
    name, sgs = CASES[case]
    config = ClassificationConfig(sgs=sgs)
    net = randomised(name, in_channels=1, image_size=16, dtype=torch.float32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = with_fresh_router(net, config.routed(net.spec)).eval()
        randomise(net)
        for head in net.slimming_heads():  # scores of which none wins everywhere
            head.score.weight.normal_(0, 2)
        ids = data.calibration.ids[:150]
        images = data.calibration.load(ids).images
        low, high = (net(images, net.candidates[k]).argmax(1) for k in (0, -1))
        labels = torch.stack([low, high, (low + 3) % 7]).gather(0, torch.randint(3, (1, len(ids))))[0]
    source = data.calibration.source
    assert isinstance(source, Arrays)
    source = replace(source, labels=source.labels.clone())
    source.labels[ids] = labels
    loader = replace(data.calibration.loader, source=source)  # type: ignore[type-var]
    return Watch(replace(data, calibration=Split(loader, ids)), config), net


@pytest.mark.parametrize("case", [case for case in CASES if case != "scores of correctness"])
def test_shares_and_entropies_are_those_of_the_routed_network(case: str, digits: Data) -> None:
    watch, net = watched(case, digits)
    images = watch.data.calibration.load(watch.data.calibration.ids).images
    router = eager(net).manifest.router
    assert router is not None
    paths = np.concatenate([route(net, images, Policy(0.0, window=window)).paths for window in router.windows])
    figures, moved = watch.gates(net), 0
    for gate, widths in enumerate(router.routing.choices):
        shares = np.array([(paths[:, gate] == width).mean() for width in widths])
        logged = [figures.get(f"gate{gate}/share{position}", 0.0) for position in range(len(widths))]
        assert logged == pytest.approx(shares.tolist())
        assert figures[f"gate{gate}/entropy"] == pytest.approx(entropy(shares, base=2))
        moved += (shares > 0).sum() > 1
        if decides_once(net):
            break
    assert moved, "the test needs a gate that chooses more than one width"


@pytest.mark.parametrize("case", CASES)
def test_aucs_are_those_of_the_first_decision(case: str, digits: Data) -> None:
    watch, net = watched(case, digits)
    batch = watch.data.calibration.load(watch.data.calibration.ids)
    with torch.no_grad():
        low, high = (net(batch.images, net.candidates[k]).argmax(1) == batch.labels for k in (0, -1))
    scores = np.asarray(route(net, batch.images, Policy(0.0)).scores[0], dtype=np.float64)
    if CASES[case][1].targets != "correctness":
        scores -= np.log(np.exp(scores).sum(1, keepdims=True))
    figures = watch.aucs(net)
    assert figures["auc"] == pytest.approx(roc_auc_score(low, scores[:, 0]), abs=1e-4)
    assert figures["auc_wider"] == pytest.approx(roc_auc_score(high & ~low, scores[:, -1] - scores[:, 0]), abs=1e-4)
