"""Stage II: gradients, losses, targets, and what stays untouched."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from dsnet.data.dataset import Batch
from dsnet.models import Supernet
from dsnet.models.count import count
from dsnet.nn import RouterSpec
from dsnet.routing.fitting import fit_margins
from dsnet.tasks.classification.router import fit
from dsnet.training import SGS, SGSConfig, with_fresh_router
from dsnet.training.cache import compared, fresh_reads, read, scores_of
from dsnet.training.measured import Measured, measured
from dsnet.training.scores import goals, score_loss, straight_through, within
from dsnet.training.sgs import Draw
from support.networks import images, randomised

SMALL = ["ds_mobilenet_v1_tiny", "ds_resnet_tiny"]
CONFIGS = [
    SGSConfig("gate"),
    SGSConfig("gate", bound=False),
    SGSConfig("gate", "give_up", windows=0),
    SGSConfig("gate", "narrowest"),
    SGSConfig("gate", "correctness"),
    SGSConfig("gate", "kl", bound=False),
    SGSConfig("gate", early=0),
    SGSConfig("gate", "correctness", early=5, hidden=3),
    SGSConfig("exit_first", early=4, hidden=0),
    SGSConfig("cheap_first"),
    SGSConfig("cheap_first", "kl"),
    SGSConfig("cheap_first", "narrowest"),
]
ONCE = [config for config in CONFIGS if config.spec.single]  # one decision


def names(config: SGSConfig) -> str:
    return "-".join(f"{value}" for value in (config.router, config.spec.targets, config.early, config.bound))


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


@pytest.mark.parametrize("targets", ["try_best", "give_up"])
@pytest.mark.parametrize("name", SMALL)
def test_targets_of_two_ends_run_no_width_in_between(name: str, targets: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The losses are those of a step that compares all widths, also where guidance is balanced."""
    stage = stage_of(name, SGSConfig("gate", targets, bound=False, windows=0))  # type: ignore[arg-type]
    widths = len(compared(stage.net))
    table = torch.zeros(1, widths, dtype=torch.float64)
    table[0, 0], table[0, -1] = 0.7, 1.9
    stage.known = Measured(weights=table)
    x, labels = batch(stage.net, 24)
    run, seen = stage.net.run_paths, []
    monkeypatch.setattr(stage.net, "run_paths", lambda entered, paths: seen.append(len(paths)) or run(entered, paths))
    quick = stage(x, labels, Draw(3, 1.0), stage.net)
    monkeypatch.setattr("dsnet.training.sgs.TWO_ENDED", ())
    whole = stage(x, labels, Draw(3, 1.0), stage.net)
    assert seen == [2, widths]
    assert quick.keys() == whole.keys() == {"classification", "complexity", "guidance"}
    assert all(torch.equal(quick[loss], whole[loss]) for loss in whole)


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
    stage = stage_of(name, SGSConfig("gate", guidance=0.0, complexity=0.0, bound=False))
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
    for bound in (True, False):
        reaches(stage_of(name, SGSConfig("gate", complexity=0.0, guidance=0.0, bound=bound)), bound)


def reaches(stage: SGS, bound: bool) -> None:
    x, labels = batch(stage.net)
    losses = stage(x, labels, Draw(0, 1.0), stage.net)
    assert list(losses) == ["classification"]
    losses["classification"].backward()
    for parameter_name, parameter in stage.net.named_parameters():
        if ".slimming." in parameter_name and (not bound or parameter_name.startswith("segments.0.")):
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


@pytest.mark.parametrize("bound", [True, False])
@pytest.mark.parametrize("name", SMALL)
def test_the_three_losses_equal_hand_computed_ones(name: str, bound: bool) -> None:
    """Windows are drawn first, then the noise of every gate. Easy and hard images weigh the same, and the complexity is
    the square of the batch mean, as large as the gap between slimmest and widest."""
    stage = stage_of(name, SGSConfig("gate", windows=2, bound=bound), routing=[0, 1, 3])
    net = stage.net
    x, labels = images(net, 6), torch.arange(6)
    with torch.no_grad():  # labels of which the slimmest gets some right
        labels[:3] = net(x[:3], net.routing.slimmest).argmax(1)
    weights = torch.tensor([[0.6, 2.0, 0.0], [0.0, 0.7, 1.5]])
    stage.known = Measured(weights, gap=0.3)
    losses = stage(x, labels, Draw(11, 0.8), net)
    # every sample alone, along the path that the same noise draws, sliced
    generator = torch.Generator().manual_seed(11)
    windows = torch.randint(2, (6,), generator=generator).tolist()
    ends = torch.tensor([(low, low + 1) for low in windows])
    table, mean_loss, shares, guidance = count(net), [], [], 0.0
    with torch.no_grad():
        _, raws, mixes = net.forward_mixed(x, lambda point, raw: straight_through(within(raw, ends), 0.8, generator))
        for row, low in enumerate(windows):
            path = tuple(int(mix[row].argmax()) for mix in mixes)
            assert {net.routing.choices[0].index(width) - low for width in path} <= {0, 1}
            mean_loss.append(F.cross_entropy(net(x[row : row + 1], path), labels[row : row + 1]).item())
            shares.append(table.madds(path, dynamic=True) / table.widest)
            slim = net.routing.uniform[low]
            easy = net(x[row : row + 1], slim).argmax() == labels[row]
            for raw in raws:
                if raw is not None:
                    loss = -raw[row, low : low + 2].log_softmax(0)[0 if easy else 1].item()
                    guidance += loss * float(weights[low, low + (not easy)]) / 6
    assert len([raw for raw in raws if raw is not None]) == (1 if bound else len(net.chain))
    low, high = (table.madds(path, dynamic=True) / table.widest for path in (net.routing.slimmest, net.routing.widest))
    scale = 0.3 / (high**2 - low**2)
    assert losses["classification"].item() == pytest.approx(sum(mean_loss) / 6)
    assert losses["complexity"].item() == pytest.approx(scale * (sum(shares) / 6) ** 2)
    assert losses["guidance"].item() == pytest.approx(guidance)
    assert stage.complexity(torch.tensor([high])) - stage.complexity(torch.tensor([low])) == pytest.approx(0.3)
    plain = stage_of(name, SGSConfig("gate", bound=bound, squares="sample", relative=False), routing=[0, 1, 3])
    assert plain.complexity(torch.tensor(shares)).item() == pytest.approx(sum(s**2 for s in shares) / 6)


@pytest.mark.parametrize("config", ONCE, ids=names)
@pytest.mark.parametrize("name", SMALL)
def test_cached_losses_are_those_of_the_images(name: str, config: SGSConfig) -> None:
    """They are drawn alike, too. The gradients of all losses but classification agree as well."""
    stage = stage_of(name, config)
    x, labels = batch(stage.net)
    reads = list(fresh_reads(stage.net, [Batch(x, labels, torch.arange(len(x)))]))
    stage.known = measured(stage.net, config, reads)
    found = []
    for seen in (x, reads[0][0].packed()):
        stage.zero_grad()
        losses = stage(seen, labels, Draw(3, 1.0), stage.net)
        sum(loss for key, loss in losses.items() if key != "classification").backward()
        gradients = {key: p.grad for key, p in stage.net.named_parameters() if p.requires_grad}
        assert gradients
        assert all(gradient is not None for gradient in gradients.values()), gradients.keys()
        found.append((losses, gradients))
    for images_have, cached in zip(*found, strict=True):
        assert images_have.keys() == cached.keys()
        for key, value in images_have.items():
            torch.testing.assert_close(cached[key], value, msg=key)


@pytest.mark.parametrize("targets", ["try_best", "give_up", "narrowest"])
def test_balanced_weights_give_every_target_the_same_total(targets: str) -> None:
    """In every window, over all images that it was measured on; images weigh 1 on average."""
    stage = stage_of("ds_mobilenet_v1_tiny", config := SGSConfig("gate", targets, windows=3))
    x, labels = batch(stage.net, 24)
    labels[:12] = stage.net(x[:12], (0,)).argmax(1)
    reads = list(fresh_reads(stage.net, [Batch(x, labels, torch.arange(24))]))
    weights = measured(stage.net, config, reads).weights
    assert weights is not None
    answers = reads[0][0].answers.unbind(1)
    for row, window in zip(weights, stage.windows, strict=True):
        goal = goals(config.spec, answers, labels, torch.tensor([window]).expand(24, 2))
        totals = torch.zeros(6, dtype=torch.float64).index_add(0, goal, row[goal])
        assert totals.sum().item() == pytest.approx(24)
        assert len(set(totals[totals > 0].tolist())) <= 2  # equal but for rounding
        assert totals[totals > 0].tolist() == pytest.approx([24 / int((totals > 0).sum())] * int((totals > 0).sum()))
    assert measured(stage.net, replace(config, balanced=False), reads).weights is None


def test_early_classifiers_learn_from_labels_and_the_widest_and_heads_do_not_disturb_them() -> None:
    stage = stage_of("ds_mobilenet_v1_tiny", SGSConfig("exit_first", early=4, distillation=0.7, hidden=0))
    x, labels = batch(stage.net)
    losses = stage(x, labels, Draw(0, 1.0), stage.net)
    with torch.no_grad():
        logits, wide = stage.net(x, (-2,)), stage.net(x, stage.net.space.widest)
        by_hand = 0.3 * F.cross_entropy(logits, labels) + 0.7 * F.cross_entropy(logits, wide.softmax(1))
        right = torch.stack([stage.net(x, path).argmax(1) == labels for path in stage.net.candidates], 1)
        raw = stage.net.early_scores(logits)
    assert losses["early"].item() == pytest.approx(by_hand.item())
    assert losses["guidance"].item() == pytest.approx(F.binary_cross_entropy(raw.sigmoid(), right.double()).item())
    losses["guidance"].backward()
    margin = stage_of("ds_mobilenet_v1_tiny", SGSConfig("exit_first", early=4, distillation=0.7, hidden=None))
    assert list(margin(x, labels, Draw(0, 1.0), margin.net)) == ["early"]
    assert not any(p.requires_grad for p in margin.net.early.head.parameters())
    assert all(p.grad is None for p in stage.net.early.classifier.parameters())
    assert all(p.grad is not None for p in stage.net.early.head.parameters())


@pytest.mark.parametrize(
    "config", [SGSConfig("exit_first", early=3), SGSConfig("cheap_first", hidden=2), SGSConfig("gate")], ids=names
)
def test_what_a_router_reads_is_standardised_on_the_training_images(config: SGSConfig) -> None:
    net = randomised("ds_mobilenet_v1_tiny")
    gate = replace(net.spec.gate, standardised=True)
    net = with_fresh_router(net, replace(net.spec, router=config.spec, gate=gate))
    x, labels = batch(net, 16)
    measured(
        net, config, fresh_reads(net, [Batch(x[:9], labels[:9], labels[:9]), Batch(x[9:], labels[9:], labels[9:])])
    )
    seen = read(net, net.enter(x))
    if net.early is not None:
        layer, inputs = net.early.classifier.reads, seen.seen
    elif net.probe is not None:
        layer, inputs = net.probe.reduce, net.probe.features(seen.answers[:, 0])
    else:
        layer, inputs = net.chain[0].first.gate.slimming.score, seen.seen
    std, mean = torch.std_mean(inputs, 0, correction=0)
    torch.testing.assert_close(layer.mean, mean)
    torch.testing.assert_close(layer.std, torch.where(std > 1e-6, std, 1.0))


def test_targets_by_hand() -> None:
    # right: sample 0 at all widths, 1 at the middle and widest, 2 at none, 3 at the middle only
    answers = [torch.full((4, 3), -1.0) for _ in range(3)]
    for width, right in enumerate(([0], [0, 1, 3], [0, 1])):
        for row in range(4):
            answers[width][row, 0 if row in right else 1] = 1.0
    labels = torch.zeros(4, dtype=torch.long)
    found = {name: goals(RouterSpec("gate", name), answers, labels).tolist() for name in ("try_best", "give_up")}
    assert found == {"try_best": [0, 2, 2, 2], "give_up": [0, 2, 0, 0]}
    upper, lower = (torch.tensor([window] * 4) for window in ((1, 2), (0, 1)))
    assert goals(RouterSpec("gate", "try_best"), answers, labels, upper).tolist() == [1, 1, 2, 1]
    assert goals(RouterSpec("gate", "give_up"), answers, labels, lower).tolist() == [0, 1, 0, 1]
    assert goals(RouterSpec("gate", "narrowest"), answers, labels, upper).tolist() == [1, 1, 1, 1]
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
        (lambda: SGSConfig("cheap_first", classification=1.0), "are for router gate"),
        (lambda: SGSConfig("exit_first", windows=3, complexity=1.0), "must be a gate to choose within windows"),
        (lambda: SGSConfig("exit_first", "try_best"), "learns sgs.targets correctness or kl"),
        (lambda: SGSConfig("auto", "kl"), "router auto compares routers by correctness"),
        (lambda: SGSConfig("cheap_first", early=3), "has no early classifier"),
        (lambda: SGSConfig("gate", windows=1), "the size of a window is 1; it must be at least 2"),
        (lambda: SGSConfig(squares="median"), "sgs.squares 'median' is unknown"),
        (lambda: SGSConfig(cache=-1), "sgs.cache is -1; it must be at least 0"),
        (lambda: SGSConfig(distillation=2.0), "sgs.distillation is 2.0"),
        (lambda: SGSConfig("threshold", "kl"), "has nothing to train"),
        (lambda: SGSConfig("margin", "kl"), "has nothing to train"),
        (lambda: SGSConfig("margin", hidden=3), "has no head to train"),
        (lambda: SGSConfig(temperature=0.0), "temperature is 0.0; it must be positive"),
        (lambda: RouterSpec(hidden=-1), "hidden size is -1"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert SGSConfig("gate").weights == (1.0, 1.0, 1.0)
    assert SGSConfig().weights == (0.0, 0.0, 1.0)
    assert SGSConfig("gate", "correctness").weights == (0.0, 0.0, 1.0)
    net = randomised("ds_mobilenet_v1_tiny")
    with pytest.raises(ValueError, match="is to be trained"):
        SGS(net, SGSConfig())
    spec = randomised("ds_resnet_tiny").spec
    with pytest.raises(ValueError, match="different numbers of widths at different gates"):
        replace(spec, routing=((0, 1), (0,), (0,), (0,)), router=RouterSpec("cheap_first", "correctness"))
    with pytest.raises(ValueError, match="leaves one path only"):
        replace(net.spec, routing=((3,),), router=RouterSpec("threshold"))
    with pytest.raises(ValueError, match="has one width only"):
        replace(randomised("mobilenet_v1").spec, router=RouterSpec("cheap_first", "correctness"))


@pytest.mark.parametrize("config", [SGSConfig("exit_first", early=3), SGSConfig("margin")], ids=names)
def test_scores_by_margin_are_the_chances_that_were_fitted(config: SGSConfig) -> None:
    """Of the answers that are given: those of an exit and a width are combined first."""
    net = stage_of("ds_mobilenet_v1_tiny", config).net
    x, labels = batch(net, 40)
    labels[::2] = net(x[::2], (3,)).argmax(1)
    reads = list(fresh_reads(net, [Batch(x, labels, labels)]))
    fit(net, config, reads)
    with torch.no_grad():
        first = (net(x, (-2,)) if config.spec.exits else net(x, (0,))).log_softmax(1)
        widths = [net(x, (width,)).log_softmax(1) for width in range(6)]
        if config.spec.exits:
            u, v = net.early.exit_weights, net.early.width_weights
            assert not torch.equal(u, torch.zeros(6))
            losses = [
                F.nll_loss((a * first + b * wide).log_softmax(1), labels)
                for a, b, wide in zip(u, v, widths, strict=True)
            ]
            assert all(fitted < F.nll_loss(wide, labels) for fitted, wide in zip(losses, widths, strict=True))
            widths = [first, *(a * first + b * wide for a, b, wide in zip(u, v, widths, strict=True))]
        best = first.exp().topk(2).values
        right = torch.stack([answer.argmax(1) == labels for answer in widths], 1)
        a, b = fit_margins((best[:, 0] - best[:, 1]).numpy(), right.numpy())
        expected = torch.from_numpy(a) + torch.from_numpy(b) * (best[:, :1] - best[:, 1:])
        torch.testing.assert_close(scores_of(net, reads[0][0])[0], expected)
