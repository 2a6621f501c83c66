"""Object detection: FSSD on a backbone whose width is chosen for each image."""

from dsnet.tasks.detection.average_precision import Detections, Truth, average_precision, mean_average_precision
from dsnet.tasks.detection.checkpoint import is_detector, load_detector, open_detector, save_detector
from dsnet.tasks.detection.config import DetectionConfig
from dsnet.tasks.detection.cost import DetectorCost
from dsnet.tasks.detection.detector import Answer, Detector, extract_detector, with_backbone
from dsnet.tasks.detection.evaluate import DetectionTraces, detections_of, evaluate_detector
from dsnet.tasks.detection.export import export_detector
from dsnet.tasks.detection.onnx import OnnxDetector
from dsnet.tasks.detection.route import RoutedAnswer, detector_policy, route_boxes, route_detector
from dsnet.tasks.detection.spec import DetectorSpec
from dsnet.tasks.detection.stages import GatesConfig, GatesStage, WidthsConfig, WidthsStage, median_gap

__all__ = [
    "Answer",
    "DetectionConfig",
    "DetectionTraces",
    "Detections",
    "Detector",
    "DetectorCost",
    "DetectorSpec",
    "GatesConfig",
    "GatesStage",
    "OnnxDetector",
    "RoutedAnswer",
    "Truth",
    "WidthsConfig",
    "WidthsStage",
    "average_precision",
    "detections_of",
    "detector_policy",
    "evaluate_detector",
    "export_detector",
    "extract_detector",
    "is_detector",
    "load_detector",
    "mean_average_precision",
    "median_gap",
    "open_detector",
    "route_boxes",
    "route_detector",
    "save_detector",
    "with_backbone",
]
