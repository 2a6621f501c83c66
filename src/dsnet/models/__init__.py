"""Model families. A model is a spec plus a registered name; a family is one file."""

from dsnet.models import efficientnet, mobilenet, resnet
from dsnet.models.card import Budget, Card, Preprocessing
from dsnet.models.registry import create_model, describe, list_models, model_spec, register
from dsnet.models.spec import ModelSpec, StageSpec
from dsnet.models.supernet import Choose, Entered, Supernet

__all__ = [
    "Budget",
    "Card",
    "Choose",
    "Entered",
    "ModelSpec",
    "Preprocessing",
    "StageSpec",
    "Supernet",
    "create_model",
    "describe",
    "efficientnet",
    "list_models",
    "mobilenet",
    "model_spec",
    "register",
    "resnet",
]
