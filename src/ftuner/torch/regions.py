"""A region of a graph as a model: tensors in and out, without copies; its options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import fx

from ftuner.compiler import compiled
from ftuner.core.dtype import BFLOAT16, FLOAT32
from ftuner.core.frozen import dataclass
from ftuner.errors import ConfigurationError
from ftuner.frontends.torch.importer import import_fx
from ftuner.frontends.torch.weights import WEIGHTS
from ftuner.models import Model
from ftuner.runtime.cpu.arrays import array_of, tensor_of
from ftuner.runtime.request import Request

Run = Callable[..., list[torch.Tensor]]


def model_of(
    module: fx.GraphModule, constants: Mapping[str, torch.Tensor], device: torch.device,
    options: Options,
) -> Model:  # fmt: skip
    """The model of a region's module. `constants`: the placeholders that are parameters.

    Raises:
        NodeError: an operator whose importer refuses its arguments.
        UnsupportedOperatorError, GraphError, ConfigurationError: as `ftuner.compile`.
    """
    of_cpu, asked = device.type == "cpu", options.precision
    request = Request(
        options.threads, device=str(device), dtype=None if of_cpu else asked,
        precision=asked if of_cpu and asked else FLOAT32.name, unpad=options.unpad,
    )  # fmt: skip
    backend = request.backend()
    compiling = replace(request.options(backend), shared=WEIGHTS)
    return compiled(import_fx(module, constants, {}).graph, backend, compiling)


def runner(model: Model, device: torch.device) -> Run:
    """A function that runs a model on tensors, and on numbers, which stand for inputs of shape
    (n, 0), or (0, -n) for a negative n."""
    return (on_cpu if device.type == "cpu" else on_gpu)(model, device)


def on_cpu(model: Model, device: torch.device) -> Run:
    """`runner` of a model that takes arrays: tensors share their memory."""
    names = [v.name for v in model.inputs]
    run = model.run
    halves = any(v.dtype == BFLOAT16.name for v in model.outputs)
    given_back = tensor_of if halves else torch.from_numpy

    def ftuner_region(*given: Any) -> list[torch.Tensor]:
        return [*map(given_back, run(dict(zip(names, map(_array, given), strict=True))))]

    return ftuner_region


def on_gpu(model: Model, device: torch.device) -> Run:
    """`runner` of a model that takes tensors."""
    names = [v.name for v in model.inputs]

    def ftuner_region(*given: Any) -> list[torch.Tensor]:
        whole = (torch.from_numpy(_array(x)) if type(x) is int else x for x in given)
        tensors = [x.to(device) for x in whole]
        found = model.run(dict(zip(names, tensors, strict=True)))
        # Without inputs, a model gives arrays.
        return found if tensors else [torch.as_tensor(x, device=device) for x in found]

    return ftuner_region


def _array(given: Any) -> Any:
    """A tensor as an array, which shares its memory."""
    if type(given) is int:
        return np.empty((max(given, 0), max(-given, 0)), np.bool_)
    if given.dtype is torch.bfloat16:
        return array_of(given.detach(), "an input")
    # With `force`, also a tensor that needs a gradient, or whose negation is pending.
    return given.numpy(force=True)


@dataclass(frozen=True)
class Options:
    """How graphs are compiled."""

    threads: int | None = None
    """Threads of a run, the caller's included; by default those of the process."""
    fullgraph_or_error: bool = False
    """Whether an operator that would be left to PyTorch is an error."""
    check: bool = False
    """Whether the first runs are compared with PyTorch."""
    precision: str | None = None
    """`precision` of `ftuner.load`; on a GPU its `dtype`, which float32 is held in."""
    unpad: str | None = None
    """As of `ftuner.load`."""


def options_of(given: Mapping[str, object] | None) -> Options:
    """The options of a mapping.

    Raises:
        ConfigurationError: an unknown option, another value, or `check` with `unpad`.
    """
    kinds = {
        "threads": (int, type(None)), "fullgraph_or_error": (bool,), "check": (bool,),
        "precision": (str, type(None)), "unpad": (str, type(None)),
    }  # fmt: skip
    assert kinds.keys() == {f.name for f in fields(Options)}
    for name, value in (given or {}).items():
        if name not in kinds:
            raise ConfigurationError(f"no option {name!r}; there are {', '.join(kinds)}")
        if not isinstance(value, kinds[name]) or (name == "threads" and value is True):
            raise ConfigurationError(
                f"option {name} is {value!r}; expected {kinds[name][0].__name__}"
            )
    options = Options(**(given or {}))  # type: ignore[arg-type]
    # An unknown value is named before anything is compiled.
    Request(unpad=options.unpad)
    if options.check and options.unpad:
        raise ConfigurationError(
            "options check and unpad exclude each other: without padding, results are zero where "
            "PyTorch's are not; check without unpad"
        )
    return options
