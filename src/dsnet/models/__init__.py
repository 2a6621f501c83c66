"""Model families. A model is a spec plus a registered name; a family is one file."""

from dsnet.card import Card, Preprocessing
from dsnet.models import convnet, efficientnet, mobilenet, resnet
from dsnet.models.cached import DynamicRunner
from dsnet.models.count import count
from dsnet.models.extract import extract
from dsnet.models.graph import GraphSpec
from dsnet.models.network import Network, Outline
from dsnet.models.parts import eager, route
from dsnet.models.registry import create_model, describe, list_models, model_spec, register
from dsnet.models.spec import ModelSpec, StageSpec
from dsnet.models.supernet import Choose, Entered, Supernet
from dsnet.routers import Budget

__all__ = [
    "Budget",
    "Card",
    "Choose",
    "DynamicRunner",
    "Entered",
    "GraphSpec",
    "ModelSpec",
    "Network",
    "Outline",
    "Preprocessing",
    "StageSpec",
    "Supernet",
    "convnet",
    "count",
    "create_model",
    "describe",
    "eager",
    "efficientnet",
    "extract",
    "list_models",
    "mobilenet",
    "model_spec",
    "register",
    "resnet",
    "route",
]
