"""In-place Ensemble Bootstrapping against values worked out by hand."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch import Tensor, nn

from dsnet.models import create_model
from dsnet.training import EMA, IEB, Drawn, IEBConfig, balanced
from support.networks import images, randomised

LABELS = torch.tensor([0, 1])


class Table(nn.Module):
    """Stands in for a supernet of three widths: the logits of each path are parameters."""

    def __init__(self, rows: dict[tuple[int, ...], list[list[float]]]) -> None:
        super().__init__()
        self.space = create_model("ds_mobilenet_v1_tiny").space
        self.rows = nn.ParameterDict({str(path): nn.Parameter(torch.tensor(v)) for path, v in rows.items()})
        self.calls: list[list[tuple[int, ...]]] = []

    def forward_paths(self, x: Tensor, paths: list[tuple[int, ...]]) -> list[Tensor]:
        self.calls.append(list(paths))
        return [self.rows[str(path)] for path in paths]

    def slimming_heads(self) -> list[nn.Module]:
        return []


def logs(*probs: float) -> list[float]:
    return [math.log(p) for p in probs]


ONLINE = {
    (5,): [logs(0.5, 0.5), logs(0.25, 0.75)],
    (2,): [logs(0.8, 0.2), logs(0.5, 0.5)],
    (0,): [logs(0.5, 0.5), logs(0.1, 0.9)],
}
TEACHER = {
    (5,): [logs(0.9, 0.1), logs(0.4, 0.6)],
    (2,): [logs(0.7, 0.3), logs(0.2, 0.8)],
}


def cross_entropy(student: list[list[float]], target: list[list[float]]) -> float:
    """Mean over samples of -sum target * log student; students are given as log probabilities."""
    return sum(-t * s for srow, trow in zip(student, target, strict=True) for s, t in zip(srow, trow, strict=True)) / 2


def probs(rows: list[list[float]]) -> list[list[float]]:
    return [[math.exp(v) for v in row] for row in rows]


def losses(teacher: str, **options: object) -> tuple[dict[str, Tensor], Table, Table]:
    online, average = Table(ONLINE), Table(TEACHER)
    stage = IEB(online, IEBConfig(teacher=teacher, paths=1, **options))
    return stage(torch.zeros(2, 3, 8, 8), LABELS, Drawn([(2,)]), average), online, average


def test_the_widest_learns_the_labels() -> None:
    expected = -(math.log(0.5) + math.log(0.75)) / 2
    for teacher in ("inplace", "ema", "ieb"):
        assert losses(teacher)[0]["widest"].item() == pytest.approx(expected, rel=1e-6)


def test_inplace_distillation_teaches_by_the_online_widest() -> None:
    found, _, average = losses("inplace")
    target = probs(ONLINE[(5,)])
    assert found["random1"].item() == pytest.approx(cross_entropy(ONLINE[(2,)], target), rel=1e-6)
    assert found["slimmest"].item() == pytest.approx(cross_entropy(ONLINE[(0,)], target), rel=1e-6)
    assert average.calls == []


def test_ema_teaches_by_the_average_widest() -> None:
    found, _, average = losses("ema")
    target = probs(TEACHER[(5,)])
    assert found["random1"].item() == pytest.approx(cross_entropy(ONLINE[(2,)], target), rel=1e-6)
    assert found["slimmest"].item() == pytest.approx(cross_entropy(ONLINE[(0,)], target), rel=1e-6)
    assert average.calls == [[(5,)]]


def test_ieb_teaches_the_slimmest_by_the_mean_of_probabilities() -> None:
    found, online, average = losses("ieb")
    wide = probs(TEACHER[(5,)])
    ensemble = [[0.8, 0.2], [0.3, 0.7]]  # means of the widest's and the random path's probabilities
    assert found["random1"].item() == pytest.approx(cross_entropy(ONLINE[(2,)], wide), rel=1e-6)
    assert found["slimmest"].item() == pytest.approx(cross_entropy(ONLINE[(0,)], ensemble), rel=1e-6)
    assert online.calls == [[(5,), (2,), (0,)]]  # one call each, the same random path for both
    assert average.calls == [[(5,), (2,)]]


@pytest.mark.parametrize("teacher", ["inplace", "ema", "ieb"])
def test_the_weight_is_of_all_sub_networks_but_the_widest(teacher: str) -> None:
    plain, weighted = losses(teacher)[0], losses(teacher, weight=0.25)[0]
    assert {name: (weighted[name] / plain[name]).item() for name in plain} == pytest.approx(
        {"widest": 1, "random1": 0.25, "slimmest": 0.25}
    )


@pytest.mark.parametrize("teacher", ["inplace", "ema", "ieb"])
def test_targets_are_detached(teacher: str) -> None:
    found, online, average = losses(teacher)
    (found["random1"] + found["slimmest"]).backward()
    assert online.rows[str((5,))].grad is None
    assert all(row.grad is None for row in average.rows.values())
    assert online.rows[str((2,))].grad is not None


@pytest.mark.parametrize("scale", [False, True])
def test_temperature_divides_both_logits(scale: bool) -> None:
    found, _, _ = losses("ema", temperature=2.0, scale_gradients=scale)

    def softened(rows: list[list[float]]) -> Tensor:
        return (torch.tensor(rows) / 2).log_softmax(1)

    target = softened(TEACHER[(5,)]).exp()
    expected = -(target * softened(ONLINE[(0,)])).sum(1).mean() * (4 if scale else 1)
    assert found["slimmest"].item() == pytest.approx(expected.item(), rel=1e-6)


def test_a_static_network_learns_the_labels_only() -> None:
    net = create_model("mobilenet_v1", num_classes=2, width=0.25)
    stage = IEB(net, IEBConfig())
    assert stage.draw(random.Random(0)) == ([], 1.0)
    assert list(stage(torch.randn(2, 3, 64, 64), LABELS, Drawn([]), net)) == ["widest"]


def test_slimming_heads_are_frozen_and_everything_else_is_trained() -> None:
    net = randomised("ds_resnet_tiny", dtype=torch.float32).train()
    stage = IEB(net, IEBConfig())
    found = stage(images(net, 4), torch.tensor([0, 1, 2, 3]), stage.draw(random.Random(0)), EMA(net, 0.9).net)
    assert list(found) == ["widest", "random1", "random2", "slimmest"]
    torch.stack(list(found.values())).sum().backward()
    for name, parameter in net.named_parameters():
        assert (parameter.grad is None) == (".slimming." in name), name


def test_the_moving_average_warms_up_and_copies_counters() -> None:
    net = randomised("ds_mobilenet_v1_tiny", dtype=torch.float32)
    ema = EMA(net, momentum=0.99)
    before = {k: v.clone() for k, v in ema.net.state_dict().items()}
    with torch.no_grad():
        for tensor in net.state_dict().values():
            tensor.add_(1)
    ema.update(step=0)  # decay (1 + 0) / (10 + 0)
    for name, value in ema.net.state_dict().items():
        expected = before[name] + (0.9 if value.is_floating_point() else 1)
        assert torch.allclose(value, expected, atol=1e-5), name
    ema.update(step=10**6)  # the momentum itself
    name = "head.classifier.weight"
    expected = before[name] + 0.9 + 0.01 * 0.1
    assert torch.allclose(ema.net.state_dict()[name], expected, atol=1e-5)
    assert not ema.net.training
    assert not any(p.requires_grad for p in ema.net.parameters())


class Seen(nn.Module):
    """Stands in for a supernet of one width: remembers its images, and answers with fixed logits."""

    def __init__(self, rows: list[list[float]]) -> None:
        super().__init__()
        self.space, self.rows = create_model("mobilenet_v1_tiny").space, torch.tensor(rows)
        self.images: list[Tensor] = []

    def forward(self, x: Tensor, path: tuple[int, ...]) -> Tensor:
        self.images.append(x)
        return self.rows

    def slimming_heads(self) -> list[nn.Module]:
        return []


def test_mixup_blends_images_and_labels_and_everyone_sees_the_blend() -> None:
    student, guide = Seen([logs(0.5, 0.5), logs(0.25, 0.75)]), Seen([logs(0.9, 0.1), logs(0.2, 0.8)])
    stage = IEB(student, IEBConfig(mixup=1.0, distillation=0.4), guide=guide)
    x = torch.rand(2, 3, 8, 8)
    found = stage(x, LABELS, Drawn([], 0.75), student)
    for seen in (student, guide):
        assert torch.equal(seen.images[0], 0.75 * x + 0.25 * x.roll(1, 0))
    own, other = (math.log(0.5) + math.log(0.75)) / 2, (math.log(0.5) + math.log(0.25)) / 2
    assert found["widest"].item() == pytest.approx(-0.6 * (0.75 * own + 0.25 * other), rel=1e-6)
    target = cross_entropy(student.rows.tolist(), probs(guide.rows.tolist()))
    assert found["distilled"].item() == pytest.approx(0.4 * target, rel=1e-6)


def test_mixup_draws_a_share_and_leaves_the_paths_alone() -> None:
    net = create_model("ds_mobilenet_v1_tiny")
    plain, mixed = (IEB(net, IEBConfig(mixup=alpha)).draw(random.Random(3)) for alpha in (0.0, 0.2))
    assert (plain.share, mixed.paths) == (1.0, plain.paths)
    assert 0 < mixed.share < 1


def test_balanced_classes_count_the_same_and_average_to_one() -> None:
    counts = torch.tensor([30, 10, 0])
    weights = balanced(counts)
    assert (weights * counts)[:2].tolist() == pytest.approx([40 / 3, 40 / 3])
    assert balanced(torch.tensor([7, 7])).tolist() == [1.0, 1.0]
    student = Seen([logs(0.5, 0.5), logs(0.25, 0.75)])
    loss = IEB(student, IEBConfig(), class_weights=torch.tensor([3.0, 0.5]))(
        torch.zeros(2, 3, 8, 8), LABELS, Drawn([]), student
    )
    assert loss["widest"].item() == pytest.approx(-(3 * math.log(0.5) + 0.5 * math.log(0.75)) / 2, rel=1e-6)


def test_the_guide_is_neither_trained_nor_in_training_mode() -> None:
    net, guide = (randomised("mobilenet_v1_tiny", dtype=torch.float32) for _ in range(2))
    stage = IEB(net, IEBConfig(), guide=guide).train()
    assert net.training
    assert not any(module.training for module in guide.modules())
    sum(stage(images(net, 2), LABELS, Drawn([]), net).values()).backward()
    assert all(parameter.grad is None for parameter in guide.parameters())
