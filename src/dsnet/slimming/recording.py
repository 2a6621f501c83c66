"""From a torch module to a list of operations.

torch.export runs the module once on an example and records what it computes: calls, methods and operators of every kind
become a few hundred ATen operators, and everything that depends on shapes alone becomes constants.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any

import torch
from torch import Tensor, nn

from dsnet.errors import SlimError
from dsnet.slimming import arithmetic, layers, maps, norms  # noqa: F401  the translations of operators
from dsnet.slimming.trace import ENTIRE, Reader, Traced, is_known, name_of


@contextmanager
def in_eval(model: nn.Module) -> Iterator[None]:
    """Every module in eval mode for a while. A model may have frozen parts, which were in eval mode before."""
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def trace_module(model: nn.Module, example: Tensor) -> Traced:
    """Record what a module computes on an example [B, C, S, S], in eval mode."""
    if not isinstance(model, nn.Module):
        raise SlimError(f"the model is a {type(model).__name__}; give an nn.Module, or a function that returns one")
    if example.dim() != 4 or example.shape[2] != example.shape[3]:
        raise SlimError(f"the example has shape {tuple(example.shape)}; give a square image [1, channels, size, size]")
    try:
        with silence(), torch.no_grad(), in_eval(model):
            program = decomposed(torch.export.export(model, (torch.cat([example[:1]] * 2),), strict=False))
    except Exception as error:  # torch raises many kinds of errors for code that cannot be recorded
        raise SlimError(untraceable(error)) from error
    held = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    return Reader(program, held).read()


def decomposed(program: Any) -> Any:
    """A program whose operators have translations, as far as torch can replace the others by simpler ones."""
    unknown = {node.target for node in program.graph.nodes if node.op == "call_function" and not is_known(node.target)}
    table = torch.export.default_decompositions() if unknown else {}
    if not any(operation in table for operation in unknown):
        return program
    simpler = {key: rule for key, rule in table.items() if not is_known(key) and name_of(key) not in ENTIRE}
    return program.run_decompositions(simpler)


@contextmanager
def silence() -> Iterator[None]:
    """Keep what torch prints about code that it cannot record from the user; the error says what matters."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def untraceable(error: Exception) -> str:
    """Why a module could not be recorded, in one line."""
    text = str(error)
    reason = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    user = re.findall(r'File "([^"]+)", line (\d+), in (\w+)', text)
    places = [place for place in user if "/torch/" not in place[0]]
    where = f" (in {places[-1][2]}, {places[-1][0].rpartition('/')[2]} line {places[-1][1]})" if places else ""
    data = ("data-dependent", "data dependent", "_local_scalar_dense", "Could not guard")
    if any(word in text for word in data):
        return (
            f"the network decides by the values of a tensor{where}, which cannot be recorded; compute both sides "
            f"and choose with torch.where, or give the part without the decision"
        )
    return f"the network cannot be recorded{where}: {reason}; it must run on the example in eval mode, with one input"
