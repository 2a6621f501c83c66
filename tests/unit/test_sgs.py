"""Stage II: gradients, losses, targets, and what stays untouched."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from dsnet.models import Supernet
from dsnet.models.count import count
from dsnet.nn import RouterSpec
from dsnet.training import SGS, SGSConfig, with_fresh_router
from dsnet.training.sgs import Draw, goals, score_loss, straight_through
from support.networks import images, randomised

SMALL = ["ds_mobilenet_v1_tiny", "ds_resnet_tiny"]
CONFIGS = [
    SGSConfig("gate"),
    SGSConfig("gate", "give_up"),
    SGSConfig("gate", "narrowest"),
    SGSConfig("gate", "correctness"),
    SGSConfig("gate", "kl"),
    SGSConfig("slim_first"),
    SGSConfig("slim_first", "kl"),
    SGSConfig("slim_first", "narrowest"),
]


def names(config: SGSConfig) -> str:
    return f"{config.router}-{config.spec.targets}"


def stage_of(name: str, config: SGSConfig, **options: object) -> SGS:
    net = randomised(name, **options)
    torch.manual_seed(0)
    routed = with_fresh_router(net, replace(net.spec, router=config.spec))
    return SGS(routed, config)


def batch(net: Supernet, count: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    return images(net, count), torch.randint(7, (count,), generator=torch.Generator().manual_seed(5))


def guidance_over_steps(stage: SGS, steps: int = 12) -> list[float]:
    """The loss on the scores while the router is trained on one batch."""
    x, labels = batch(stage.net)
    optimizer = torch.optim.SGD([p for p in stage.parameters() if p.requires_grad], lr=0.02)
    values = []
    for _ in range(steps):
        stage.train()
        assert not stage.net.training
        losses = stage(x, labels, Draw(0, 1.0), stage.net)
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()
        values.append(losses["guidance"].item())
    return values


def test_straight_through_is_one_hot_forward_and_softmax_backward() -> None:
    raw = torch.tensor([[0.2, -0.4, 1.0]], dtype=torch.float64, requires_grad=True)
    weights = torch.tensor([[3.0, 1.0, 2.0]], dtype=torch.float64)
    choice = straight_through(raw, 0.7, torch.Generator().manual_seed(3))
    (choice * weights).sum().backward()
    # by hand: the same noise, the softmax's Jacobian
    uniform = torch.rand(1, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    noisy = raw.detach() - torch.log(-torch.log(uniform))
    soft = (noisy / 0.7).softmax(1)[0]
    expected = torch.stack(
        [sum(weights[0, j] * soft[j] * (float(i == j) - soft[i]) for j in range(3)) / 0.7 for i in range(3)]
    )
    assert sorted(choice[0].tolist()) == pytest.approx([0, 0, 1])
    assert choice.argmax() == noisy.argmax()
    torch.testing.assert_close(raw.grad[0], expected)


def test_gumbel_noise_draws_by_the_softmax_of_the_scores() -> None:
    raw = torch.tensor([[0.0, 1.0, 2.0]]).repeat(40_000, 1)
    drawn = straight_through(raw, 1.0, torch.Generator().manual_seed(0)).mean(0)
    torch.testing.assert_close(drawn, raw[0].softmax(0), atol=0.01, rtol=0)


@pytest.mark.parametrize("name", SMALL)
def test_with_one_hot_mixes_the_gradient_to_every_score_is_that_of_the_mix(name: str) -> None:
    """d loss / d raw = J_softmax^T d loss / d mix, gate by gate, where later gates' choices are held fixed."""
    stage = stage_of(name, SGSConfig("gate", guidance=0.0, complexity=0.0))
    net = stage.net
    x, labels = batch(net)
    choices: list[torch.Tensor] = []
    raws: list[torch.Tensor] = []
    generator = torch.Generator().manual_seed(1)

    def choose(point: int, raw: torch.Tensor) -> torch.Tensor:
        raws.append(raw.detach().requires_grad_())
        choices.append(straight_through(raws[-1], 1.0, generator))
        choices[-1].retain_grad()
        return choices[-1]

    logits, _, _ = net.forward_mixed(x, choose)
    F.cross_entropy(logits, labels).backward()
    generator = torch.Generator().manual_seed(1)
    for raw, choice in zip(raws, choices, strict=True):
        noise = torch.rand(raw.shape, generator=generator, dtype=raw.dtype)
        soft = (raw.detach() - torch.log(-torch.log(noise.clamp(1e-10, 1 - 1e-7)))).softmax(1)
        expected = soft * (choice.grad - (choice.grad * soft).sum(1, keepdim=True))
        torch.testing.assert_close(raw.grad, expected)
        assert raw.grad.abs().max() > 0


@pytest.mark.parametrize("name", SMALL)
def test_classification_alone_reaches_the_slimming_heads_and_nothing_else(name: str) -> None:
    stage = stage_of(name, SGSConfig("gate", complexity=0.0, guidance=0.0))
    x, labels = batch(stage.net)
    losses = stage(x, labels, Draw(0, 1.0), stage.net)
    assert list(losses) == ["classification"]
    losses["classification"].backward()
    for parameter_name, parameter in stage.net.named_parameters():
        if ".slimming." in parameter_name:
            assert parameter.grad is not None
            assert parameter.grad.abs().max() > 0
        else:
            assert parameter.grad is None
            assert not parameter.requires_grad


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("slimming", ["one_hot", "scalar"])
@pytest.mark.parametrize("name", SMALL)
def test_every_gate_design_learns(name: str, slimming: str, shared: bool) -> None:
    stage = stage_of(name, SGSConfig("gate"), slimming=slimming, shared=shared)
    trained = [n for n, p in stage.net.named_parameters() if p.requires_grad]
    assert any(".slimming.reduce." in n for n in trained) == (not shared)
    values = guidance_over_steps(stage)
    assert values[-1] < values[0]


@pytest.mark.parametrize("config", CONFIGS, ids=names)
@pytest.mark.parametrize("name", SMALL)
def test_the_supernet_stays_bit_identical_and_the_router_learns(name: str, config: SGSConfig) -> None:
    stage = stage_of(name, config)
    before = {key: value.clone() for key, value in stage.net.state_dict().items()}
    values = guidance_over_steps(stage)
    assert values[-1] < values[0]
    for key, value in stage.net.state_dict().items():
        of_router = key.startswith(("probe.", "early.")) or ".slimming." in key
        assert of_router or torch.equal(value, before[key]), key
    assert any(not torch.equal(value, before[key]) for key, value in stage.net.state_dict().items())


@pytest.mark.parametrize("name", SMALL)
def test_the_three_losses_equal_hand_computed_ones(name: str) -> None:
    stage = stage_of(name, SGSConfig("gate"), routing=[0, 1, 3])
    net = stage.net
    x, labels = images(net, 6), torch.arange(6)
    with torch.no_grad():  # labels of which the slimmest gets some right
        labels[:3] = net(x[:3], net.routing.slimmest).argmax(1)
    losses = stage(x, labels, Draw(11, 0.8), net)
    # every sample alone, along the path that the same noise draws, sliced
    generator = torch.Generator().manual_seed(11)
    table, mean_loss, complexity, guidance = count(net), [], [], []
    raws: list[torch.Tensor] = []
    with torch.no_grad():
        _, raws, mixes = net.forward_mixed(x, lambda point, raw: straight_through(raw, 0.8, generator))
        for row in range(6):
            path = tuple(int(mix[row].argmax()) for mix in mixes)
            mean_loss.append(F.cross_entropy(net(x[row : row + 1], path), labels[row : row + 1]).item())
            complexity.append((table.madds(path, dynamic=True) / table.widest) ** 2)
            easy = net(x[row : row + 1], net.routing.slimmest).argmax() == labels[row]
            for raw in raws:
                guidance.append(-raw[row].log_softmax(0)[0 if easy else 2].item())
    assert losses["classification"].item() == pytest.approx(sum(mean_loss) / 6)
    assert losses["complexity"].item() == pytest.approx(0.5 * sum(complexity) / 6)
    assert losses["guidance"].item() == pytest.approx(sum(guidance) / len(guidance))


def test_targets_by_hand() -> None:
    # right: sample 0 at all widths, 1 at the middle and widest, 2 at none, 3 at the middle only
    answers = [torch.full((4, 3), -1.0) for _ in range(3)]
    for width, right in enumerate(([0], [0, 1, 3], [0, 1])):
        for row in range(4):
            answers[width][row, 0 if row in right else 1] = 1.0
    labels = torch.zeros(4, dtype=torch.long)
    found = {name: goals(RouterSpec("gate", name), answers, labels).tolist() for name in ("try_best", "give_up")}
    assert found == {"try_best": [0, -1, -1, -1], "give_up": [0, -1, 0, 0]}
    assert goals(RouterSpec("gate", "narrowest"), answers, labels).tolist() == [0, 1, 0, 1]
    correct = goals(RouterSpec("gate", "correctness"), answers, labels)
    assert correct.tolist() == [[1, 1, 1], [0, 1, 1], [0, 0, 0], [0, 1, 0]]
    divergence = goals(RouterSpec("gate", "kl"), answers, labels)
    assert torch.allclose(divergence[:, 2], torch.zeros(4), atol=1e-6)
    by_hand = F.kl_div(answers[0].log_softmax(1), answers[2].softmax(1), reduction="none").sum(1)
    torch.testing.assert_close(divergence[:, 0], by_hand)
    raw = torch.tensor([[0.5, -0.2, 0.1]]).repeat(4, 1)
    loss = score_loss(RouterSpec("gate", "try_best"), raw, goals(RouterSpec("gate"), answers, labels))
    assert loss.item() == pytest.approx((-raw[0].log_softmax(0)[[0, 2, 2, 2]]).mean().item())
    bce = score_loss(RouterSpec("gate", "correctness"), raw, correct)
    assert bce.item() == pytest.approx(F.binary_cross_entropy(raw.sigmoid(), correct).item(), rel=1e-5)


def test_the_temperature_falls_exponentially_and_noise_is_private() -> None:
    stage = stage_of("ds_mobilenet_v1_tiny", SGSConfig("gate", temperature=4.0, final_temperature=0.25))
    drawn = [stage.draw(random.Random(0), progress) for progress in (0.0, 0.5, 1.0)]
    assert [draw.temperature for draw in drawn] == pytest.approx([4.0, 1.0, 0.25])
    assert len({draw.seed for draw in drawn}) == 1
    assert len({stage.draw(random.Random(0), 0.0, part=part).seed for part in range(4)}) == 4
    x, labels = batch(stage.net)
    state = torch.get_rng_state()
    a = stage(x, labels, Draw(1, 1.0), stage.net)
    assert torch.equal(state, torch.get_rng_state())
    b, c = stage(x, labels, Draw(1, 1.0), stage.net), stage(x, labels, Draw(2, 1.0), stage.net)
    assert a["classification"].item() == b["classification"].item() != c["classification"].item()


def test_a_fresh_router_keeps_the_supernet_and_forgets_budgets() -> None:
    net = randomised("ds_resnet_tiny")
    spec = replace(net.spec, router=RouterSpec("gate"), routing=((0, 1),) * 4)
    fresh = with_fresh_router(net, spec)
    assert fresh.routing.size == 16
    x = images(net)
    for path in ((0, 0, 0, 0), (3, 1, 0, 2)):
        assert torch.equal(fresh(x, path), net(x, path))
    with pytest.raises(ValueError, match="changes more of 'ds_resnet_tiny' than its routing"):
        with_fresh_router(net, replace(net.spec, num_classes=3))


def test_wrong_configs_are_refused() -> None:
    for call, message in (
        (lambda: SGSConfig("oracle"), "router 'oracle' is unknown"),
        (lambda: SGSConfig(targets="luck"), "targets 'luck' are unknown"),
        (lambda: SGSConfig("gate", classification=0.0, complexity=0.0, guidance=0.0), "nor all zero"),
        (lambda: SGSConfig("slim_first", classification=1.0), "are for router gate"),
        (lambda: SGSConfig("threshold", "kl"), "has nothing to train"),
        (lambda: SGSConfig(temperature=0.0), "temperature is 0.0; it must be positive"),
        (lambda: RouterSpec(hidden=-1), "hidden size is -1"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert SGSConfig("gate").weights == (1.0, 0.5, 1.0)
    assert SGSConfig().weights == (0.0, 0.0, 1.0)
    assert SGSConfig("gate", "correctness").weights == (0.0, 0.0, 1.0)
    net = randomised("ds_mobilenet_v1_tiny")
    with pytest.raises(ValueError, match="is to be trained"):
        SGS(net, SGSConfig())
    spec = randomised("ds_resnet_tiny").spec
    with pytest.raises(ValueError, match="different numbers of widths at different gates"):
        replace(spec, routing=((0, 1), (0,), (0,), (0,)), router=RouterSpec("slim_first", "correctness"))
    with pytest.raises(ValueError, match="leaves one path only"):
        replace(net.spec, routing=((3,),), router=RouterSpec("threshold"))
    with pytest.raises(ValueError, match="has one width only"):
        replace(randomised("mobilenet_v1").spec, router=RouterSpec("slim_first", "correctness"))
