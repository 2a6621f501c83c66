"""Layers and blocks that run at a width. They know nothing about networks."""

from dsnet.nn.blocks import Block, Bottleneck, ConvBlock, DepthwiseSeparable, InvertedResidual, MaxPool
from dsnet.nn.gate import Gate, GateSpec, SlimmingHead
from dsnet.nn.layers import Fixed, GlobalPool, SliceConv2d, SliceDepthwise, SliceLinear, StandardLinear
from dsnet.nn.norm import NormSpec, SliceBatchNorm2d, SliceGroupNorm, SliceLayerNorm2d, SliceNorm
from dsnet.nn.router import EarlyClassifier, EarlyRouter, ScoringHead, ThresholdHead, early_router, link, probe_head
from dsnet.nn.slicing import Mix, Sliceable, Width
from dsnet.routers import RouterSpec

__all__ = [
    "Block",
    "Bottleneck",
    "ConvBlock",
    "DepthwiseSeparable",
    "EarlyClassifier",
    "EarlyRouter",
    "Fixed",
    "Gate",
    "GateSpec",
    "GlobalPool",
    "InvertedResidual",
    "MaxPool",
    "Mix",
    "NormSpec",
    "RouterSpec",
    "ScoringHead",
    "SliceBatchNorm2d",
    "SliceConv2d",
    "SliceDepthwise",
    "SliceGroupNorm",
    "SliceLayerNorm2d",
    "SliceLinear",
    "SliceNorm",
    "Sliceable",
    "SlimmingHead",
    "StandardLinear",
    "ThresholdHead",
    "Width",
    "early_router",
    "link",
    "probe_head",
]
