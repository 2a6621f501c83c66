"""OpenVINO as the engine of files and bundles: the package `openvino`, which the extra of that name installs, or ONNX
Runtime's provider of that name, which comes with `onnxruntime-openvino`."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime as ort

from dsnet.errors import CheckpointError, NotInstalledError
from dsnet.latency import cores
from dsnet.runtime.engine import Engine, onnx_runtime

try:
    import openvino
except ModuleNotFoundError:
    openvino = None

FLOAT, HALF = "f32", "bf16"  # OpenVINO's names of what it computes in
# With one thread, version 2026.4 crashes while it generates code (snippets) for the functions of an early classifier.
OPTIONS = {
    "PERFORMANCE_HINT": "LATENCY",
    "NUM_STREAMS": 1,
    "SNIPPETS_MODE": "DISABLE",
}


def engine(precision: str = FLOAT) -> Engine:
    """OpenVINO, or an error that says how to install it.

    Where the processor has bfloat16, OpenVINO computes in it unless it is told not to, and routes differ then. So dsnet
    asks for it only where the user does.
    """
    if openvino is None and precision == FLOAT and "OpenVINOExecutionProvider" in ort.get_available_providers():
        return onnx_runtime(provider="openvino")
    if openvino is None:
        raise NotInstalledError("openvino is not installed; run: pip install 'dsnet[openvino]'", name="openvino")
    if precision == HALF and HALF.upper() not in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        raise ValueError("this processor has no bfloat16, so openvino-bf16 gains nothing; take the runtime openvino")
    name = f"openvino {openvino.__version__.partition('-')[0]}{'' if precision == FLOAT else f' {precision}'}"
    return Engine(name, partial(Session, precision=precision))


@cache
def core() -> Any:
    """OpenVINO's plugins, loaded once in a process."""
    return openvino.Core()


class Session:
    """An ONNX graph in OpenVINO, with the methods of a session of ONNX Runtime. Several threads may share it."""

    def __init__(self, file: Path, threads: int = 0, *, precision: str = FLOAT) -> None:
        if not file.is_file():
            raise CheckpointError(f"{file} does not exist; give an ONNX file or a bundle that `dsnet export` wrote")
        try:
            self.model = core().read_model(str(file))
            # Compiling adds the names of inner values that are outputs as well.
            self.places = {slot.get_any_name(): place for place, slot in enumerate(self.model.outputs)}
            known = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": threads or cores()}
            self.compiled = core().compile_model(self.model, "CPU", OPTIONS | known)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1]
            raise CheckpointError(f"{file} cannot be read as an ONNX file ({reason}); export it again") from error
        self.inputs = {name for slot in self.compiled.inputs for name in slot.get_names()}
        self.held = threading.local()  # a request serves one call at a time

    def run(self, names: Sequence[str] | None, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        if not hasattr(self.held, "request"):
            self.held.request = self.compiled.create_infer_request()
        # An input that a graph does not use is gone in OpenVINO.
        found = self.held.request.infer({name: held for name, held in feed.items() if name in self.inputs})
        return [np.array(found[self.places[name]]) for name in names or self.places]

    def get_inputs(self) -> list[Any]:
        return [SimpleNamespace(name=slot.get_any_name()) for slot in self.model.inputs]

    def get_outputs(self) -> list[Any]:
        return [SimpleNamespace(name=name) for name in self.places]

    def get_modelmeta(self) -> Any:
        held = self.model.rt_info["framework"] if self.model.has_rt_info("framework") else {}
        return SimpleNamespace(custom_metadata_map={key: value.astype(str) for key, value in held.items()})
