"""Layers and blocks that run at a width. They know nothing about networks."""

from dsnet.manifest import RouterSpec
from dsnet.nn.blocks import Block, Bottleneck, ConvBlock, DepthwiseSeparable, InvertedResidual, MaxPool
from dsnet.nn.gate import Gate, GateSpec, SlimmingHead
from dsnet.nn.norm import NormSpec, SliceBatchNorm2d, SliceGroupNorm, SliceNorm
from dsnet.nn.router import ProbeHead, SlimFirstHead, ThresholdHead, link, probe_head
from dsnet.nn.slicing import Fixed, GlobalPool, Mix, Sliceable, SliceConv2d, SliceDepthwise, SliceLinear, Width

__all__ = [
    "Block",
    "Bottleneck",
    "ConvBlock",
    "DepthwiseSeparable",
    "Fixed",
    "Gate",
    "GateSpec",
    "GlobalPool",
    "InvertedResidual",
    "MaxPool",
    "Mix",
    "NormSpec",
    "ProbeHead",
    "RouterSpec",
    "SliceBatchNorm2d",
    "SliceConv2d",
    "SliceDepthwise",
    "SliceGroupNorm",
    "SliceLinear",
    "SliceNorm",
    "Sliceable",
    "SlimFirstHead",
    "SlimmingHead",
    "ThresholdHead",
    "Width",
    "link",
    "probe_head",
]
