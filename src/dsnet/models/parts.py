"""A live network cut into the parts between its choice points, its runner and its manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from dsnet.card import Card
from dsnet.cost import PathCosts, SizedCosts
from dsnet.manifest import Manifest, Policy, WidthRow
from dsnet.models.count import count, count_parts, sized_tables
from dsnet.models.devices import words_for
from dsnet.nn.norm import SliceBatchNorm2d
from dsnet.nn.router import link
from dsnet.routers import Router, former
from dsnet.routing.budgets import default_policy
from dsnet.routing.parts import Fork, Outputs, Routed, Step
from dsnet.runtime.runner import GroupedRunner
from dsnet.schema import plain
from dsnet.space import WidthPath, WidthSpace

if TYPE_CHECKING:
    from dsnet.models.supernet import Supernet


T = TypeVar("T")
Combination = tuple[tuple[float, float], ...]


class LiveParts:
    """The `Parts` of a live network, sliced at every call. The parts of all other runtimes are made from these.

    routed: whether gates compute their scores; a single path does not need them. headless: whether the classifier
    belongs to `finish` instead of the last part, so that all widths share one.
    """

    def __init__(self, net: Supernet, *, routed: bool = True, headless: bool = False) -> None:
        self.net, self.routed, self.headless = net, routed, headless and net.head.splits
        self.owner: Any = net  # the module that has the spec and the card, and every layer that parts use
        self._manifest: tuple[Card, Combination, Manifest] | None = None
        self._seen: tuple[list[tuple[Tensor, int]], Combination] = [], ()

    @property
    def manifest(self) -> Manifest:
        card, combine = self.owner.card, self.combine
        if self._manifest is None or self._manifest[0] is not card or self._manifest[1] != combine:
            self._manifest = card, combine, self.owner.manifest()
        return self._manifest[2]

    @property
    def combine(self) -> Combination:
        """`combination`, read again only after its tensors were written or replaced: a read waits for the device."""
        early = self.net.early
        both = () if early is None else (early.exit_weights, early.width_weights)
        held = [tensor for tensor in both if tensor is not None]
        if any(tensor.is_inference() for tensor in held):
            return combination(self.net)
        state = [(tensor, tensor._version) for tensor in held]
        if [(id(tensor), version) for tensor, version in state] != [(id(one), seen) for one, seen in self._seen[0]]:
            self._seen = state, combination(self.net)
        return self._seen[1]

    @property
    def device(self) -> torch.device:
        return self.net.device

    def take(self, x: Any) -> Tensor:
        return (torch.from_numpy(x) if isinstance(x, np.ndarray) else x).to(self.device)

    def front(self, x: Tensor, size: int = 0) -> Step:
        x = self.net.shared(x, size)
        if self.net.chain:
            return Step(self.fork(0, size, x), {})
        return self.end(x, size)

    def fork(self, point: int, width: int, x: Tensor) -> Fork:
        segment = self.net.chain[point]
        x = segment.enter(x, width)
        scaled, code = segment.attend(x, width)
        scores, exit, router = None, None, self.net.spec.router
        if router is not None and self.scores_at(point, None if point else width):
            if self.net.early is not None:
                logits = self.net.early.classifier(x)
                raw = self.net.early_scores(logits)
                exit = logits if router.exits else None
            else:
                head = segment.score(code, width)
                assert head is not None
                raw = head
            scores = link(router, raw)
        return Fork(x if segment.first.reads_unscaled else None, scaled, scores, exit)

    def exit(self, x: Tensor, size: int = 0) -> Outputs:
        return {"logits": self.net.run(x, self.net.space.exits[size])}

    def exit_fork(self, x: Tensor, size: int) -> Fork:
        """`exit` as a fork, with the map of the front that other parts read as well."""
        x, logits = self.net.run_exit(x, size)
        return Fork(x if self.net.chain[0].first.reads_unscaled else None, None, None, logits)

    def first(self, point: int, w_in: int, w_out: int, fork: Fork) -> Tensor:
        x = fork.scaled if fork.x is None else fork.x
        return self.net.chain[point].first.body(x, fork.scaled, w_in, w_out)

    def rest(self, point: int, width: int, x: Tensor) -> Step:
        x = self.net.chain[point].rest(x, width)
        if point + 1 < len(self.net.chain):
            return Step(self.fork(point + 1, width, x), {})
        return self.end(x, width)

    def end(self, x: Tensor, width: int) -> Step:
        if self.headless:
            return Step(None, {"features": self.net.head.features(x, width)})
        return Step(None, {"logits": self.net.head(x, width)})

    def probe(self, outputs: Outputs) -> Tensor:
        assert self.net.probe is not None
        assert self.net.spec.router is not None
        return link(self.net.spec.router, self.net.probe(outputs["logits"]))

    def finish(self, left: Outputs) -> Outputs:
        return {"logits": self.net.head.classify(left["features"])} if self.headless else left

    def cat(self, parts: list[Tensor]) -> Tensor:
        return torch.cat(parts)

    workers = 1  # torch itself uses several threads

    def each(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        return [task() for task in tasks]

    # The ONNX export needs these names before it runs the parts.

    def scores_at(self, point: int, size: int | None = None) -> bool:
        """Whether the router decides at a choice point. size: The index of the image size that the front ran at; None
        for the one that is looked at first."""
        router, gate = self.net.spec.router, self.net.chain[point].first.gate
        if not self.routed or router is None or router.probes or (point and router.bound):
            return False
        if size is not None and self.net.space.sized and size != self.net.looked:
            return False
        return router.early is not None or (gate is not None and gate.slimming is not None)

    def exits_at(self, point: int, size: int | None = None) -> bool:
        """Whether the early classifier may answer at a choice point."""
        return point == 0 and self.scores_at(point, size) and self.net.space.exit

    def maps_at(self, point: int) -> list[str]:
        """Names of the maps that the first block behind a choice reads."""
        return ["x"] * self.net.chain[point].first.reads_unscaled + ["scaled"]

    def left_at(self, point: int) -> list[str]:
        """Names of the arrays for `finish` from the part that ends at a choice point, or behind the last one."""
        return [] if point < len(self.net.chain) else ["features" if self.headless else "logits"]


def eager(net: Any) -> GroupedRunner:
    """A runner of the network itself, sliced at every call; the network must be in eval mode."""
    if net.training:
        raise ValueError("a network routes in eval mode only; call net.eval() first")
    return EagerRunner(net.parts())


class LiveRunner(GroupedRunner):
    """Runs a live network, at any image size that it accepts."""

    live: LiveParts

    @property
    def digest(self) -> str:
        return weights_digest(self.live.owner)

    @property
    def threads(self) -> int:
        return torch.get_num_threads()

    @property
    def device(self) -> torch.device:
        return self.live.device

    def check_paths(self, paths: Sequence[WidthPath]) -> None:
        if unseen := uncalibrated(self.live.net, paths):
            raise ValueError(
                f"the batch-norm statistics of {len(unseen)} widths were never calibrated (the first is {unseen[0]}), "
                f"so their accuracy would mean nothing; run `dsnet recalibrate` on the model first"
            )

    def table(self, image_size: int) -> PathCosts:
        table = self.manifest.table
        return table if table.image_size == image_size else count(self.live.owner, image_size)


class EagerRunner(LiveRunner):
    """Runs the network itself, in its own precision."""

    def __init__(self, live: LiveParts) -> None:
        super().__init__(live, "torch, sliced at every call")
        self.live = live

    @property
    def timed(self) -> str:
        return torch_runtime(self.device)  # the runner that runs this network outside of evaluations

    def check_input(self, x: Any) -> None:
        self.manifest.check_input(x.shape)
        self._check_pixels(x)

    @torch.no_grad()
    def _run(self, *args: Any, **options: Any) -> Routed:
        return super()._run(*args, **options)

    @torch.no_grad()
    def _survey(self, *args: Any, **options: Any) -> tuple[list[Outputs], Any | None]:
        return super()._survey(*args, **options)


def torch_runtime(device: torch.device) -> str:
    return f"torch {torch.__version__}{words_for(device)}"


def weights_digest(net: Any) -> str:
    """The digest of a network's spec and weights, which do not depend on the card."""
    found = hashlib.sha256(json.dumps(without_later(plain(net.spec))).encode())
    for name, tensor in sorted(net.state_dict().items()):
        held = tensor.detach().cpu()
        held = (held.float() if held.is_floating_point() else held).contiguous()
        found.update(f"{name} {tuple(held.shape)}".encode())
        found.update(held.numpy().tobytes())
    return found.hexdigest()


def without_later(spec: Any) -> Any:
    """A spec as plain data with the names of the time when digests were first made, and without the keys that it did
    not have then, unless they are used."""
    if not isinstance(spec, dict):
        return former(spec) if isinstance(spec, str) else spec
    return {
        key: without_later(held) for key, held in spec.items() if held or key not in ("sizes", "candidates", "cuts")
    }


def uncalibrated(net: Supernet, paths: Sequence[WidthPath]) -> list[WidthPath]:
    """The paths whose batch-norm statistics were never computed, so that their outputs are meaningless."""
    batch_norms = [module for module in net.modules() if isinstance(module, SliceBatchNorm2d)]
    sizes = net.spec.rows
    norms = [norm for norm in batch_norms if len(norm.channels) > sizes or not net.spec.widths]
    rows = sizes * max(net.spec.widths, default=1)
    seen = [all(bool(norm.num_batches_tracked[row] > 0) for norm in norms) for row in range(rows)]
    return [path for path in paths if norms and not seen[net.space.rows(path)[-1]]]


def combination(net: Supernet) -> Combination:
    """The weights (u, v) with which an exit_first router combines the answers of the exit and of each width."""
    early = getattr(net, "early", None)
    if early is None or early.exit_weights is None or early.exit_weights.is_meta:
        return ()
    return tuple(zip(early.exit_weights.tolist(), early.width_weights.tolist(), strict=True))


def route(net: Any, x: Any, policy: Policy | None = None) -> Routed:
    """Run every sample along the path that the router picks for it; without a policy, lambda is 0."""
    return eager(net).run(x, policy)


def describe(
    net: Any,
    *,
    task: str,
    outputs: dict[str, tuple[int, ...]],
    channels: Any,
    image_size: int | None = None,
    any_size: bool = True,
    named: Sequence[str] = (),
) -> Manifest:
    """The manifest of a live network.

    channels: function from a path to its output channels. named: parts whose MAdds are listed separately.
    """
    spec, card = net.spec, net.card
    size = spec.image_size if image_size is None else image_size
    sizes, space = getattr(spec, "sizes", ()), spec.space
    tables = sized_tables(spec) if sizes else (count(net, size).whole,)
    table = SizedCosts(tables) if sizes else tables[0]
    routers: tuple[Router, ...] = ()
    defaults = Policy()
    if spec.router is not None:
        routing = spec.routing_space if sizes else WidthSpace(spec.routing, spec.router.exits)
        router = Router(spec.router, routing, card.budgets, combination(net))
        routers, defaults = (router,), default_policy(router, spec.image_size)
    widths = [
        WidthRow(
            size=sizes[path[0]] if sizes else size,
            path=path,
            channels=tuple(channels(path)),
            madds=table.madds(path),
            params=table.params(path),
            parts={name: cost.madds for name, cost in count_parts(net, path, named).items()} if named else {},
        )
        for path in space.uniform
    ]
    return Manifest(
        task=task,
        model=spec.name,
        in_channels=spec.in_channels,
        sizes=sizes or (size,),
        space=space,
        costs=tables,
        outputs=outputs,
        routers=routers,
        widths=tuple(widths),
        classes=card.classes,
        num_classes=spec.num_classes,
        preprocessing=card.preprocessing,
        defaults=defaults,
        min_size=spec.stride,
        any_size=any_size,
    )
