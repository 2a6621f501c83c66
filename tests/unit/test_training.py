"""The loop, the schedule and recalibration."""

from __future__ import annotations

import copy
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dsnet.data.batches import TrainBatches
from dsnet.data.config import DataConfig
from dsnet.data.labelled import open_dataset
from dsnet.errors import TrainingError
from dsnet.models import Supernet, create_model, eager, model_spec
from dsnet.models.parts import uncalibrated
from dsnet.nn import Gate, SliceConv2d, SliceDepthwise, SliceLinear
from dsnet.tasks.classification.config import ClassificationConfig
from dsnet.tasks.classification.task import widths_plan
from dsnet.training import IEB, IEBConfig, Interrupted, Loop, OptimConfig, learning_rate, make_optimizer, recalibrate
from dsnet.training.display import Display, Lines
from dsnet.training.ledger import Ledger
from support.networks import images, randomised

CONFIG = OptimConfig(epochs=1, batch_size=64, lr=0.02, warmup_epochs=0)


@pytest.fixture(scope="module")
def digits():
    return open_dataset(DataConfig())


def make_loop(
    digits,
    folder: Path,
    config: OptimConfig = CONFIG,
    model: str = "ds_mobilenet_v1_tiny",
    reads: int | None = None,
    **ieb,
) -> Loop:
    torch.manual_seed(0)
    net = Supernet(model_spec(model, in_channels=1, image_size=16))
    batches = TrainBatches(digits.train, config.batch_size, seed=0)
    return Loop(IEB(net, IEBConfig(**ieb)), batches, config, folder=folder, seed=0, momentum=0.9, reads=reads)


def first_batches(loop: Loop, count: int):
    return [batch for _, batch in zip(range(count), loop.batches.epoch(0), strict=False)]


def test_schedules() -> None:
    config = OptimConfig(epochs=10, lr=1.0, warmup_epochs=2, final=0.01)
    rates = [learning_rate(config, step, 10) for step in range(101)]
    assert rates[0] == pytest.approx(1 / 20)
    assert rates[19] == rates[20] == 1.0
    assert rates[60] == pytest.approx(0.01 + 0.99 * 0.5)
    assert rates[100] == pytest.approx(0.01)
    assert rates[20:] == sorted(rates[20:], reverse=True)
    steps = replace(config, schedule="exponential", warmup_epochs=0, gamma=0.9)
    assert [learning_rate(steps, step, 10) for step in (0, 9, 10, 25)] == pytest.approx([1, 1, 0.9, 0.81])


def test_steps_are_a_length_of_their_own() -> None:
    """The schedule ends with the steps, whatever an epoch is; warm-up counts steps as well."""
    config = OptimConfig(epochs=None, steps=95, lr=1.0, warmup_epochs=None, warmup_steps=5, final=0.01)
    assert (config.total(10), config.total(1000)) == (95, 95)
    rates = [learning_rate(config, step, 10) for step in range(96)]
    assert rates == [learning_rate(config, step, 70) for step in range(96)]
    assert rates[4] == rates[5] == 1.0
    assert rates[95] == pytest.approx(0.01)


def test_the_batch_follows_the_data() -> None:
    auto = OptimConfig(batch_size="auto")
    sizes = {images: auto.batch(images) for images in (10, 100, 700, 1500, 5000, 10**6)}
    assert sizes == {10: 10, 100: 16, 700: 32, 1500: 64, 5000: 128, 10**6: 128}
    assert replace(auto, accumulate=3).batch(1500, processes=2) == 60
    assert CONFIG.batch(10) == 64


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_gates_are_free_of_weight_decay(name: str) -> None:
    net = create_model("ds_resnet_tiny")
    optimizer = make_optimizer(IEB(net, IEBConfig()), OptimConfig(name=name, weight_decay=0.5))
    assert isinstance(optimizer, torch.optim.AdamW) == (name == "adamw")
    decayed, free = optimizer.param_groups
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.5, 0.0)
    in_gates = {id(p) for m in net.modules() if isinstance(m, Gate) for p in m.parameters() if p.requires_grad}
    assert {id(p) for p in free["params"]} == in_gates


@pytest.mark.parametrize("name", ["ds_mobilenet_v1_tiny", "ds_resnet_tiny", "ds_efficientnet_tiny"])
def test_dense_weight_decay_spares_norms_biases_and_depthwise_weights(name: str) -> None:
    net = create_model(name, num_classes=3)
    optimizer = make_optimizer(IEB(net, IEBConfig()), OptimConfig(weight_decay=0.5, decay="dense"))
    decayed, free = optimizer.param_groups
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.5, 0.0)
    gates = {id(p) for m in net.modules() if isinstance(m, Gate) for p in m.parameters()}
    mixing = [m for m in net.modules() if isinstance(m, SliceConv2d | SliceLinear)]
    dense = {id(m.weight) for m in mixing if not isinstance(m, SliceDepthwise) and id(m.weight) not in gates}
    assert {id(p) for p in decayed["params"]} == dense
    assert {id(p) for p in free["params"]} == {id(p) for p in net.parameters() if p.requires_grad} - dense
    assert len(decayed["params"]) + len(free["params"]) == sum(p.requires_grad for p in net.parameters())


def test_wrong_values_are_refused() -> None:
    for wrong in ({"clip_norm": -1}, {"gamma": 0}, {"final": 2}):
        with pytest.raises(ValueError, match=r"optim\."):
            OptimConfig(**wrong)
    for wrong in ({"epochs": 0}, {"lr": 0}, {"amp": "int8"}, {"schedule": "step"}, {"batch_size": 10, "accumulate": 3}):
        with pytest.raises(ValueError, match=r"optim\."):
            OptimConfig(**wrong)
    for wrong in ({"name": "adam"}, {"steps": 3}, {"epochs": None}, {"epochs": None, "steps": 0}, {"warmup_steps": 3}):
        with pytest.raises(ValueError, match=r"optim\."):
            OptimConfig(**wrong)
    for wrong in ({"patience": 0}, {"betas": (0.9, 1.0)}, {"batch_size": 0}):
        with pytest.raises(ValueError, match=r"optim\."):
            OptimConfig(**wrong)
    for wrong in ({"mixup": -1}, {"weight": 0}, {"class_weights": "equal"}, {"distillation": 2}):
        with pytest.raises(ValueError, match=r"ieb\."):
            IEBConfig(**wrong)
    for wrong in ({"teacher": "self"}, {"temperature": 0}, {"momentum": 1}):
        with pytest.raises(ValueError, match=r"ieb\."):
            IEBConfig(**wrong)


def numbers(losses: dict[str, torch.Tensor]) -> dict[str, float]:
    return {name: float(loss) for name, loss in losses.items()}


def snapshot(loop: Loop) -> dict[str, torch.Tensor]:
    params = {f"net.{k}": v.detach().clone() for k, v in loop.net.named_parameters()}
    return params | {f"ema.{k}": v.clone() for k, v in loop.ema.net.state_dict().items()}


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_what_is_not_finite_stops_before_anything_is_touched(digits, tmp_path: Path, where: str) -> None:
    loop = make_loop(digits, tmp_path)
    good, bad = first_batches(loop, 2)
    loop.step(good)
    before = snapshot(loop)
    if where == "loss":
        bad = replace(bad, images=bad.images * torch.nan)
        message = r"loss 'widest' is not finite at step 1 \(epoch 0\); weights and moving average are untouched"
    else:
        next(loop.net.parameters()).register_hook(lambda grad: grad * torch.inf)
        message = r"the gradient is not finite at step 1"
    with pytest.raises(TrainingError, match=message):
        loop.step(bad)
    after = snapshot(loop)
    assert all(torch.equal(before[name], after[name]) for name in before)


@contextmanager
def counted_reads() -> Iterator[list[str]]:
    """The calls that read a tensor's values into Python, which on a GPU wait for the device."""
    found: list[str] = []
    names = ("item", "tolist", "__bool__", "__float__", "__int__", "cpu", "numpy")
    before = {name: getattr(torch.Tensor, name) for name in names}
    with pytest.MonkeyPatch.context() as patch:
        for name, method in before.items():
            noted = lambda self, *args, name=name, method=method: (found.append(name), method(self, *args))[1]  # noqa: E731
            patch.setattr(torch.Tensor, name, noted)
        yield found


@pytest.mark.parametrize("change", [{}, {"name": "adamw", "lr": 1e-4}, {"amp": "fp16"}, {"clip_norm": 0.1}])
def test_a_loop_that_reads_seldom_trains_alike_and_waits_for_nothing(digits, tmp_path: Path, change: dict) -> None:
    """As on a GPU: the optimiser decides about bad steps on the device."""
    config = replace(CONFIG, **change)
    # A step that fp16 skips moves the moving average of the loop that reads seldom, so it must not be the teacher.
    plain, seldom = (
        make_loop(digits, tmp_path / str(reads), config, reads=reads, teacher="inplace") for reads in (1, 100)
    )
    for batch in first_batches(plain, 3):
        plain.step(batch)
        with counted_reads() as reads:
            seldom.step(batch)
        assert not reads
    with counted_reads() as reads:
        seldom.read()
    assert reads == ["tolist"]
    assert seldom.progress.sums == pytest.approx(plain.progress.sums, rel=1e-3)
    before, after = snapshot(plain), snapshot(seldom)
    compared = [name for name in before if name.startswith("net.") or "amp" not in change]
    assert all(torch.allclose(before[name], after[name], rtol=1e-3, atol=1e-3) for name in compared)


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_bad_step_changes_no_weight_before_it_is_read(digits, tmp_path: Path, where: str) -> None:
    loop = make_loop(digits, tmp_path, reads=100)
    good, bad, after = first_batches(loop, 3)
    loop.step(good)
    before = {name: p.detach().clone() for name, p in loop.net.named_parameters()}
    hook = next(loop.net.parameters()).register_hook(lambda grad: grad * torch.inf) if where == "gradient" else None
    loop.step(bad if hook else replace(bad, images=bad.images * torch.nan))
    assert all(torch.equal(before[name], p) for name, p in loop.net.named_parameters())
    if hook:
        hook.remove()
    loop.step(after)
    with pytest.raises(TrainingError, match=r"is not finite at step 1 \(epoch 0\); weights and moving average are"):
        loop.read()


def test_fp16_steps_may_be_skipped_but_not_ten_in_a_row(digits, tmp_path: Path) -> None:
    loop = make_loop(digits, tmp_path, replace(CONFIG, amp="fp16", batch_size=32))
    batch = first_batches(loop, 1)[0]
    next(loop.net.parameters()).register_hook(lambda grad: grad * torch.inf)
    before = snapshot(loop)
    scale = loop.scaler.get_scale()
    for _ in range(9):
        loop.step(batch)
    assert loop.scaler.get_scale() < scale
    after = snapshot(loop)
    assert all(torch.equal(before[name], after[name]) for name in before)
    with pytest.raises(TrainingError, match="for 10 steps in a row"):
        loop.step(batch)


def test_accumulation_equals_one_large_batch(digits, tmp_path: Path) -> None:
    """For group norm, whose outputs do not depend on the batch."""
    results = []
    for accumulate in (1, 4):
        loop = make_loop(digits, tmp_path, replace(CONFIG, accumulate=accumulate), model="ds_resnet_tiny")
        losses = [numbers(loop.step(batch)) for batch in first_batches(loop, 2)]
        results.append((losses, snapshot(loop)))
    for a, b in zip(results[0][0], results[1][0], strict=True):
        assert a == pytest.approx(b, rel=1e-5)
    assert all(torch.allclose(results[0][1][k], v, atol=1e-5) for k, v in results[1][1].items())


@pytest.mark.parametrize(
    "change", [{"amp": "bf16"}, {"channels_last": True}, pytest.param({"compile": "aot_eager"}, marks=pytest.mark.slow)]
)
def test_options_train_like_the_plain_loop(digits, tmp_path: Path, change: dict) -> None:
    plain = make_loop(digits, tmp_path / "a")
    other = make_loop(digits, tmp_path / "b", replace(CONFIG, **change))
    for batch in first_batches(plain, 2):
        expected, found = numbers(plain.step(batch)), numbers(other.step(batch))
        assert found == pytest.approx(expected, rel=0.1 if change.get("amp") else 1e-3)


def test_fp16_trains_and_clipping_holds_the_step_down(digits, tmp_path: Path) -> None:
    moved = []
    for change in ({"amp": "fp16"}, {"clip_norm": 1e-6, "weight_decay": 0.0}):
        loop = make_loop(digits, tmp_path, replace(CONFIG, **change))
        before = snapshot(loop)
        for batch in first_batches(loop, 3):  # the first scale may be too large
            loop.step(batch)
        after = snapshot(loop)
        moved.append(max(float((after[k] - before[k]).abs().max()) for k in before if k.startswith("net.")))
    assert moved[0] > 1e-3
    assert 0 < moved[1] < 1e-5


@pytest.mark.slow
def test_every_width_is_compiled_without_falling_back(digits, tmp_path: Path) -> None:
    import torch._dynamo

    torch._dynamo.reset()
    loop = make_loop(digits, tmp_path, replace(CONFIG, compile="eager"))
    with torch._dynamo.config.patch(error_on_recompile=False, fail_on_recompile_limit_hit=True):
        loop.net.train()
        x = torch.randn(4, 1, 16, 16)
        for path in loop.net.space:
            loop.net(x, path)
    torch._dynamo.reset()


@pytest.mark.slow
def test_all_convolutions_are_compiled_and_copies_have_weights_of_their_own(digits, tmp_path: Path) -> None:
    import torch._dynamo

    ran: list[int] = []

    def counting(graph: torch.fx.GraphModule, _):
        convolutions = sum("conv2d" in str(node.target) for node in graph.graph.nodes)
        return lambda *inputs: (ran.append(convolutions), graph(*inputs))[1]

    torch._dynamo.reset()
    torch._dynamo.register_backend(counting, name="counting")
    loop = make_loop(digits, tmp_path, replace(CONFIG, compile="counting"))
    x = torch.randn(2, 1, 16, 16)
    for net in (loop.net, loop.ema.net):
        copied = copy.deepcopy(net)
        paths = [net.space.widest, net.space.slimmest]
        with torch.no_grad(), counted_convolutions() as expected:
            plain = copied.forward_paths(x, paths)
        assert not ran
        with torch.no_grad():
            found = net.forward_paths(x, paths)
        assert sum(ran) == len(expected) > 20
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(plain, found, strict=True))
        ran.clear()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.zero_()
            again = copied.forward_paths(x, paths)
        assert all(torch.equal(a, b) for a, b in zip(again, plain, strict=True))
    torch._dynamo.reset()


@contextmanager
def counted_convolutions() -> Iterator[list[str]]:
    found: list[str] = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if "convolution" in func.name():
                found.append(func.name())
            return func(*args, **(kwargs or {}))

    with Count():
        yield found


def test_a_second_validation_score_decides_what_is_best(digits, tmp_path: Path) -> None:
    loop = make_loop(digits, tmp_path, replace(CONFIG, epochs=3, batch_size=640))
    scores = iter([0.5, 0.9, 0.7])
    seen = []

    def validate(net: Supernet) -> dict[str, float]:
        seen.append(net.head.classifier.weight.clone())
        return {"slimmest": next(scores), "widest": 0.0}

    best = loop.run(validate, Display())
    assert torch.equal(best.head.classifier.weight, seen[1])
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 3


def test_recalibration_is_exact_idempotent_and_leaves_weights_alone() -> None:
    net = randomised("ds_mobilenet_v1_tiny")
    batches = [images(net, 4, seed) for seed in range(3)]
    weights = {k: v.clone() for k, v in net.named_parameters()}
    assert recalibrate(net, batches) == 3
    assert all(torch.equal(weights[k], v) for k, v in net.named_parameters())
    assert not net.training
    first = {k: v.clone() for k, v in net.named_buffers()}
    recalibrate(net, batches)
    assert all(torch.equal(first[k], v) for k, v in net.named_buffers())
    norm = net.front.blocks[0].norm
    assert norm.momentum == 0.1
    assert norm.num_batches_tracked.tolist() == [3]
    outputs = [net.front.blocks[0].conv(batch, 0, 0) for batch in batches]
    mean = torch.stack([out.mean((0, 2, 3)) for out in outputs]).mean(0)
    variance = torch.stack([out.var((0, 2, 3), unbiased=True) for out in outputs]).mean(0)
    assert torch.allclose(norm.running_mean[0], mean, atol=1e-12)
    assert torch.allclose(norm.running_var[0], variance, atol=1e-12)
    last = net.segments[0].rest.blocks[-1].norm2
    assert last.num_batches_tracked.tolist() == [3] * 6
    assert len({round(float(row[:16].sum()), 9) for row in last.running_mean}) == 6  # every width has its own


def test_an_uncalibrated_width_is_not_evaluated(digits) -> None:
    net = create_model("ds_mobilenet_v1_tiny", in_channels=1)
    assert uncalibrated(net, net.space) == list(net.space)
    net.train()(torch.randn(4, 1, 16, 16), (2,))
    assert uncalibrated(net, net.space) == [(w,) for w in range(6) if w != 2]
    with pytest.raises(ValueError, match=r"5 widths were never calibrated \(the first is \(0,\)\).*dsnet recalibrate"):
        eager(net.eval()).check_paths(list(net.space))
    assert uncalibrated(create_model("ds_resnet_tiny"), [(0, 0, 0, 0)]) == []
    assert recalibrate(create_model("ds_resnet_tiny"), []) == 0
    with pytest.raises(ValueError, match="at least one batch"):
        recalibrate(net, [])


class StopAt(Display):
    """Sends SIGTERM behind a number of steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def step(self, batch: int, means: Mapping[str, float], rate: float) -> None:
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(signal.SIGTERM)


RECIPE = OptimConfig(
    name="adamw",
    epochs=None,
    steps=7,
    batch_size="auto",
    lr=0.002,
    warmup_epochs=None,
    warmup_steps=2,
    patience=9,
)


def recipe_loop(digits, folder: Path, config: OptimConfig = RECIPE) -> Loop:
    """Three batches of 16 images in an epoch, with everything that recipes add to a step."""
    torch.manual_seed(0)
    net = Supernet(model_spec("ds_mobilenet_v1_tiny", in_channels=1, image_size=16))
    split = replace(digits.train, ids=digits.train.ids[:50])
    stage = IEB(net, IEBConfig(mixup=0.4, paths=1), class_weights=torch.linspace(0.5, 1.5, 10))
    return Loop(stage, TrainBatches(split, config.batch(len(split)), 0), config, folder=folder, seed=0, momentum=0.9)


def test_a_stopped_recipe_goes_on_bit_for_bit(digits, tmp_path: Path) -> None:
    """In the middle of an epoch, and behind the very last step, whose epoch has not been validated yet."""

    def validate(net) -> dict[str, float]:
        return {"score": float(net.state_dict()["head.classifier.bias"].sum())}

    whole = recipe_loop(digits, tmp_path / "whole")
    best = whole.run(validate, Display())
    assert (whole.progress.step, whole.progress.epoch, whole.progress.batch) == (7, 3, 0)
    for stop in (4, 7):
        folder = tmp_path / str(stop)
        with pytest.raises(Interrupted):
            recipe_loop(digits, folder).run(validate, StopAt(stop))
        loop = recipe_loop(digits, folder)
        loop.resume()
        assert loop.progress.step == stop
        again = loop.run(validate, Display())
        for a, b in ((whole.net, loop.net), (whole.ema.net, loop.ema.net), (best, again)):
            assert all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))
        moments = [[s["exp_avg_sq"] for s in each.optimizer.state.values()] for each in (whole, loop)]
        assert all(torch.equal(a, b) for a, b in zip(*moments, strict=True))
        timed = [[{**line, "images_per_second": 0} for line in each.progress.history] for each in (whole, loop)]
        assert timed[0] == timed[1]


def test_patience_ends_the_training_and_a_resumed_run_stays_ended(digits, tmp_path: Path) -> None:
    scores = iter([0.2, 0.5, 0.4, 0.5, 0.9])
    config = replace(RECIPE, steps=30, patience=2)
    loop = recipe_loop(digits, tmp_path, config)
    loop.run(lambda net: {"score": next(scores)}, Display())
    assert [line["calibration/score"] for line in loop.progress.history] == [0.2, 0.5, 0.4, 0.5]
    again = recipe_loop(digits, tmp_path, config)
    again.resume()
    again.run(lambda net: {"score": next(scores)}, Display())
    assert again.progress.step == loop.progress.step == 12


def test_class_weights_follow_the_training_images(digits, tmp_path: Path) -> None:
    plain, weighted = (ClassificationConfig(ieb=IEBConfig(class_weights=name)) for name in ("none", "balanced"))
    stages = [
        widths_plan(config, digits, tmp_path, resume=False).stage(create_model("mobilenet_v1_tiny"))
        for config in (plain, weighted)
    ]
    counts = digits.train.source.labels[digits.train.ids].bincount()
    assert stages[0].class_weights is None
    assert torch.allclose(stages[1].class_weights * counts, counts.float().mean())


def test_the_time_left_counts_steps_of_a_resumed_epoch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr("dsnet.training.display.time.monotonic", lambda: now)
    lines = Lines()
    lines.start(steps=100, batches=10, done=3, step=39)  # one step of the fourth epoch was left
    now = 2.0
    lines.epoch({"epoch": 4, "step": 40, "lr": 0.1, "images_per_second": 1.0})
    assert "0:02:00 left" in capsys.readouterr().out


def saved_bytes(loop: Loop, batch) -> int:
    """Bytes that a stage-I step keeps for its backward pass, without weights."""
    held, weights = {}, {p.untyped_storage().data_ptr() for p in loop.stage.parameters()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            held[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loop.step(batch)
    return sum(held.values())


def test_group_norm_keeps_half_of_the_bytes_in_bfloat16(digits, tmp_path: Path) -> None:
    loops = [make_loop(digits, tmp_path, replace(CONFIG, amp=amp), model="ds_resnet_tiny") for amp in ("none", "bf16")]
    batch = first_batches(loops[0], 1)[0]
    single, half = (saved_bytes(loop, batch) for loop in loops)
    assert half < 0.65 * single


def test_too_little_memory_names_the_option_that_needs_less(digits, tmp_path: Path) -> None:
    loop = make_loop(digits, tmp_path, replace(CONFIG, accumulate=2))
    said = r"memory for 32 images at once, at step 0; set optim.accumulate 4"
    with pytest.raises(TrainingError, match=said), loop.enough_memory(64):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    with pytest.raises(RuntimeError, match="something else"), loop.enough_memory(64):
        raise RuntimeError("something else")


def test_skipped_steps_count_over_the_end_of_an_epoch() -> None:
    ledger = Ledger(torch.device("cpu"))
    for _ in range(3):
        ledger.begin({}, ledger.read().skips)  # a new epoch
        for step in range(2):
            ledger.note({"loss": torch.tensor(1.0)}, step)
            ledger.judge(torch.tensor(False), step)
    assert ledger.read().skips == 6
