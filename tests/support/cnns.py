"""Small CNNs of every build, for the laws of `dsnet slim`."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CNNS: dict[str, Callable[[], nn.Module]] = {}
SIZE = 16


def cnn(maker: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    CNNS[maker.__name__.lower()] = maker
    return maker


def conv(cin: int, cout: int, kernel: int = 3, **options: int) -> nn.Sequential:
    groups = options.get("groups", 1)
    layer = nn.Conv2d(cin, cout, kernel, options.get("stride", 1), kernel // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(cout, eps=1e-3), nn.ReLU(inplace=True))


def lively(model: nn.Module) -> nn.Module:
    """The module in eval mode, with norms that do something and statistics of the maps that they see."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(3)
        for module in model.modules():
            norm = isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d | nn.GroupNorm | nn.LayerNorm)
            if norm and module.weight is not None:
                module.weight.uniform_(0.5, 1.5)
                module.bias.normal_(0, 0.3)
            if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
                module.momentum = None
        model.train()(torch.randn(8, 3, SIZE, SIZE))
    return model.eval()


@cnn
class Plain(nn.Module):
    """No norms, biases, a flatten of whole maps, two linear layers, an inplace activation and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 24, 3, padding=1), nn.ReLU(True),
            nn.MaxPool2d(3, 2, ceil_mode=True), nn.Conv2d(24, 32, (3, 1), padding=(2, 0), dilation=(2, 1)), nn.Tanh(),
        )  # fmt: skip
        self.classifier = nn.Sequential(nn.Linear(32 * 16, 40), nn.ReLU(), nn.Dropout(), nn.Linear(40, 5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        return self.classifier(x.view(x.size(0), -1))


@cnn
class Residual(nn.Module):
    """Sums of maps with and without a projection, in the form of post- and pre-activation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 16)
        self.one = nn.Sequential(conv(16, 24, stride=2), nn.Conv2d(24, 32, 1, bias=False), nn.BatchNorm2d(32))
        self.project = nn.Conv2d(16, 32, 1, 2)
        self.norm, self.two = nn.BatchNorm2d(32), nn.Sequential(conv(32, 16), nn.Conv2d(16, 32, 3, padding=1))
        self.last, self.fc = nn.BatchNorm2d(32), nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = F.relu(self.one(x) + self.project(x))
        x += self.two(F.relu(self.norm(x)))
        return self.fc(F.relu(self.last(x)).mean((2, 3)))


@cnn
class Inverted(nn.Module):
    """Depthwise convolutions, squeeze-excite, hard activations, padding like TensorFlow's."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 16)
        self.expand, self.depth = conv(16, 48, 1), nn.Conv2d(48, 48, 3, 2, groups=48, bias=False)
        self.norm, self.squeeze, self.excite = nn.BatchNorm2d(48), nn.Conv2d(48, 8, 1), nn.Conv2d(8, 48, 1)
        self.project = nn.Sequential(nn.Conv2d(48, 24, 1, bias=False), nn.BatchNorm2d(24))
        self.again, self.fc = (
            nn.Sequential(conv(24, 72, 1), conv(72, 72, 5, groups=72), nn.Conv2d(72, 24, 1)),
            nn.Linear(24, 5),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.expand(self.stem(x))
        x = F.hardswish(self.norm(self.depth(F.pad(x, (0, 1, 0, 1)))))
        x = x * F.relu6(self.excite(F.silu(self.squeeze(F.adaptive_avg_pool2d(x, 1)))) + 3) / 6
        x = self.project(x)
        x = x + self.again(x)
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(F.silu(x), 1), 1))


@cnn
class Dense(nn.Module):
    """Concatenations that grow, with norms over all their parts, and a classifier that is a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 16)
        self.norms = nn.ModuleList([nn.BatchNorm2d(16 + 24 * k) for k in range(3)])
        self.convs = nn.ModuleList([nn.Conv2d(16 + 24 * k, 24, 3, padding=1, bias=False) for k in range(3)])
        self.last, self.fc = nn.BatchNorm2d(88), nn.Conv2d(88, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for norm, layer in zip(self.norms, self.convs, strict=True):
            x = torch.cat([x, layer(F.relu(norm(x)))], 1)
            x = F.avg_pool2d(x, 3, 2, 1, count_include_pad=False) if x.shape[1] == 40 else x
        x = F.adaptive_avg_pool2d(self.fc(F.relu(self.last(x))), 1)
        return x.squeeze(3).squeeze(2)


@cnn
class Grouped(nn.Module):
    """Grouped convolutions, and parts of a map that go different ways."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.reduce = conv(3, 16), conv(16, 48, 1)
        self.grouped, self.widen = conv(48, 96, groups=6, stride=2), conv(96, 32, 1)
        self.a, self.b, self.join = conv(16, 16), conv(16, 16), nn.Conv2d(32, 24, 1)
        self.norm, self.fc = nn.GroupNorm(3, 24), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.widen(self.grouped(self.reduce(self.stem(x))))
        one, two = torch.chunk(x, 2, 1)
        one = self.a(one)
        x = torch.cat([one, self.b(one + two)], 1)
        x = F.leaky_relu(self.norm(self.join(x)), 0.1)
        return self.fc(x.mean([2, 3], keepdim=True).flatten(1))


@cnn
class Shuffled(nn.Module):
    """A shuffle of channels, whose maps keep their width, around layers that do not."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.hidden, self.out = conv(3, 16), conv(8, 24, 1), conv(24, 8, 1)
        self.slopes, self.last, self.fc = nn.PReLU(24), nn.Conv2d(16, 24, 3, 2, 1), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        one, two = self.stem(x).split(8, 1)
        x = torch.cat((one, self.out(self.hidden(two))), 1)
        b, c, h, w = x.shape
        x = x.view(b, 2, c // 2, h, w).transpose(1, 2).contiguous().view(b, c, h, w)
        return self.fc(self.slopes(self.last(x)).mean((2, 3)))


@cnn
class Interleaved(nn.Module):
    """Convolutions of two large groups around a shuffle, attention over places from means and maxima of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.hidden, self.depth = conv(3, 32), conv(32, 64, 1, groups=2), conv(64, 64, groups=64)
        self.out, self.look, self.fc = conv(64, 48, 1, groups=2), nn.Conv2d(2, 1, 3, padding=1), nn.Linear(48, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.hidden(F.avg_pool2d(self.stem(x), 2))
        b, c, h, w = x.shape
        x = x.reshape(b, 2, c // 2, h, w).permute(0, 2, 1, 3, 4).flatten(1, 2)
        x = self.out(self.depth(x))
        seen = torch.cat([x.mean(1, keepdim=True), x.max(1)[0].unsqueeze(1)], 1)
        x = x * torch.sigmoid(self.look(seen)).expand_as(x)
        return self.fc(F.adaptive_max_pool2d(x, 1).flatten(1)) * 0.5


@cnn
class Hourglass(nn.Module):
    """Maps that shrink and grow, attention over places, scales for each channel, a norm on vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down, self.up = conv(3, 16), conv(16, 32), conv(32, 32)
        self.look, self.scale = nn.Conv2d(32, 1, 1), nn.Parameter(torch.rand(32, 1, 1) + 0.5)
        self.hidden, self.norm, self.fc = nn.Linear(32, 24), nn.BatchNorm1d(24), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(self.stem(x))
        small = self.up(F.max_pool2d(x, 2))
        x = x * self.scale + F.interpolate(small, scale_factor=2, mode="bilinear", align_corners=False)
        x = x * torch.sigmoid(self.look(x))
        x = 1 - F.pad(x, (1, 1, 1, 1), mode="reflect")[:, :, 1:-1, ::2]
        return F.log_softmax(self.fc(F.gelu(self.norm(self.hidden(x.mean((2, 3)))))), 1)


@cnn
class Branches(nn.Module):
    """Stacked maps that are averaged, or weighed against each other; picked channels; a norm behind the classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one, self.two, self.join = conv(3, 16), conv(16, 24), conv(16, 24, 5), conv(24, 32, 1, groups=2)
        self.three, self.four, self.weigh = conv(32, 16), conv(32, 16, 5), nn.Linear(16, 32)
        self.register_buffer("order", torch.randperm(24, generator=torch.Generator().manual_seed(5)))
        self.order: Tensor
        self.hidden, self.fc, self.norm = conv(16, 32), nn.Conv2d(32, 5, 1), nn.BatchNorm2d(5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = torch.stack([self.one(x), self.two(x)], 0).mean(0)
        x = self.join(x.index_select(1, self.order))
        both = torch.stack([self.three(x), self.four(x)], 1)
        weights = self.weigh(both.sum(1).mean((2, 3))).view(-1, 2, 16).softmax(1)[..., None, None]
        top, bottom = (both * weights).sum(1).chunk(2, 2)
        return self.norm(self.fc(self.hidden(top - bottom))).mean((2, 3))


class Narrow(nn.Module):
    """So few channels that none can be slimmed. It is no law of the conversion, which slims."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU())
        self.fc = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.layers(x).mean((2, 3)))


class NextBlock(nn.Module):
    """A block of ConvNeXt: channels lie behind the pixels from the norm to the layer scale."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depth, self.norm = nn.Conv2d(channels, channels, 7, padding=3, groups=channels), nn.LayerNorm(channels)
        self.wide, self.narrow = nn.Linear(channels, 3 * channels), nn.Linear(3 * channels, channels)
        self.scale = nn.Parameter(torch.rand(channels) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depth(x).permute(0, 2, 3, 1))
        y = self.scale * self.narrow(F.gelu(self.wide(y)))
        return x + y.permute(0, 3, 1, 2)


class Norm2d(nn.Module):
    """A layer norm over channels, written out. inverse: With a product instead of a division."""

    def __init__(self, channels: int, *, inverse: bool = False) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(channels) + 0.5), nn.Parameter(torch.randn(channels) / 3)
        self.inverse = inverse

    def forward(self, x: Tensor) -> Tensor:
        if self.inverse:
            x = (x - x.mean(1, keepdim=True)) * torch.rsqrt(x.var(1, keepdim=True, unbiased=False) + 1e-6)
        else:
            mean = x.mean(1, keepdim=True)
            x = (x - mean) / torch.sqrt((x - mean).pow(2).mean(1, keepdim=True) + 1e-6)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


@cnn
class Next(nn.Module):
    """ConvNeXt: layer norms over channels, on maps in both orders of axes and on vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first, self.one = nn.Conv2d(3, 16, 2, 2), Norm2d(16), NextBlock(16)
        self.between, self.down = Norm2d(16, inverse=True), nn.Conv2d(16, 32, 2, 2)
        self.two, self.three = NextBlock(32), NextBlock(32)
        self.last, self.fc = nn.LayerNorm(32), nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(self.first(self.stem(x)))
        x = self.three(self.two(self.down(self.between(x))))
        return self.fc(self.last(x.mean([-2, -1])))


@cnn
class Rare(nn.Module):
    """Operations that need all of their channels, in their order, between layers that do not."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.tensor([0.4, 0.5, 0.6]).view(1, 3, 1, 1))
        self.centre: Tensor
        self.stem, self.one, self.two = conv(3, 16), conv(16, 32), conv(32, 16)
        self.response, self.place = nn.LocalResponseNorm(3), nn.Parameter(torch.rand(1, 16, SIZE // 2, SIZE // 2))
        self.line = nn.Conv1d(1, 1, 3, padding=1)
        self.three, self.four, self.five = conv(16, 32), conv(32, 16), conv(4, 24)
        self.gates, self.slopes = conv(24, 48), nn.Parameter(torch.rand(24, 1, 1))
        self.six, self.fc, self.scale = conv(24, 32), nn.Linear(32, 5), nn.Parameter(torch.rand(32) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = (x - self.centre) / (self.centre + 1)
        x = self.stem(torch.cat([x[:, 0].unsqueeze(1) * 0.9, x[:, [2, 1]]], 1))
        x = F.max_pool2d(self.response(self.two(self.one(x))), 2) + self.place
        look = self.line(x.mean((2, 3)).unsqueeze(-1).transpose(-1, -2)).transpose(-1, -2).unsqueeze(-1)
        x = F.hardshrink(x * torch.sigmoid(look).expand_as(x), 0.1)
        x = self.four(self.three(x))
        x = self.five(F.pixel_shuffle(x, 2))
        x = F.glu(self.gates(torch.cat([x, x.flip(3)], 3)), 1)
        x = torch.maximum(x, self.slopes) - 0.1 * x.pow(3) + x.norm(dim=(2, 3), keepdim=True).log1p()
        x = self.six(x)
        return self.fc((x.amin((2, 3)) - x.mean((2, 3))).exp() * self.scale)


class GroupBlock(nn.Module):
    """A residual block with group norms. stride: 2 where it begins a stage of more channels."""

    def __init__(self, cin: int, cout: int, stride: int = 1) -> None:
        super().__init__()
        self.one, self.first = nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.GroupNorm(cout // 4, cout)
        self.two, self.second = nn.Conv2d(cout, cout, 3, padding=1), nn.GroupNorm(cout // 4, cout)
        self.project = nn.Conv2d(cin, cout, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(self.two(F.silu(self.first(self.one(x)))))
        return F.relu(y + self.project(x))


@cnn
class Stages(nn.Module):
    """Stages with group norms, which may have several gates."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16)
        self.one, self.two = GroupBlock(16, 24, 2), GroupBlock(24, 32, 2)
        self.more, self.squeeze, self.excite = GroupBlock(32, 32), nn.Linear(32, 8), nn.Linear(8, 32)
        self.three, self.fc = GroupBlock(32, 40, 2), nn.Linear(40, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.more(self.two(self.one(F.relu(self.norm(self.stem(x))))))
        x = x * torch.sigmoid(self.excite(F.relu(self.squeeze(x.mean((2, 3))))))[:, :, None, None]
        return self.fc(self.three(F.avg_pool2d(x, 1)).mean((2, 3)))
