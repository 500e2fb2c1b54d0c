"""Models from ONNX files and from graphs, and a session that replaces ONNX Runtime's."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import SupportsIndex

from ftuner.core.dtype import ELEMENT_DTYPES, FLOAT32, HALF_DTYPES, DType
from ftuner.core.dtype_names import ElementType, dtype_name
from ftuner.errors import ConfigurationError, GraphError, InputError
from ftuner.frontends.onnx.importer import import_record, read_model
from ftuner.frontends.onnx.reading import Source
from ftuner.frontends.onnx.records import ModelMetadata, ModelRecord
from ftuner.graph.answers import Answer, RunTimeNumberError
from ftuner.graph.ir import Graph
from ftuner.graph.passes.pipeline import optimised
from ftuner.models import LateModel, Model
from ftuner.runtime.backend import Backend
from ftuner.runtime.cpu.arrays import Array
from ftuner.runtime.cpu.memory import give_back_freed
from ftuner.runtime.devices import CPU, backend_of
from ftuner.runtime.model import TensorSpec
from ftuner.runtime.ops.operand_types import Foreign
from ftuner.runtime.shown_progress import Progress


def load(
    model: Source, *, threads: SupportsIndex | None = None, progress: Progress | None = None,
    device: str = CPU, dtype: ElementType | None = None,
) -> Model:  # fmt: skip
    """Compile an ONNX model for this machine, for inputs of any extents.

    Args:
        model: the path of a file, its bytes, or an `onnx.ModelProto`.
        threads: the number of threads of a run, including the caller's; by default that of the
            process (`ftuner.set_num_threads`). On a GPU only the caller's thread is used.
        progress: called with (what, done, total). Without it, a bar is shown on stderr where that
            is a terminal; `FTUNER_PROGRESS=0` turns it off.
        device: `cpu`, or a GPU as torch names it: `cuda`, `cuda:1`. A model on a GPU takes arrays,
            or tensors on that GPU, and returns the same kind.
        dtype: on a GPU, the element type that float32 tensors are held in: `bfloat16` or `float16`
            halve the bytes read and written, and are multiplied many times as fast; by default as
            the file says. Weights, activations and operands of products are rounded to it; sums,
            norms, softmax and the expressions between them are computed in float32. Positions,
            masks, statistics, inputs and outputs keep their types.

    Returns:
        The model: call it with arrays by name, or use its `run`. A model that was loaded from a
        path can be pickled: it is loaded again from there. A copy of a model is the model itself.

    Raises:
        UnsupportedOperatorError: operators that ftuner, or the device, does not have; the message
            lists all of them.
        MissingModelError: there is no such file; also a `FileNotFoundError`.
        GraphError: the file is not a valid model.
        ConfigurationError: the extra `onnx`, or for a GPU `gpu`, is not installed; no such device;
            an unknown `dtype`, or any on a CPU.
        HardwareError: a GPU that kernels cannot run on.
    """
    found = _loaded(model, threads, progress, device, dtype)[0]
    if isinstance(model, str | PathLike):
        path = os.path.abspath(model)
        found.made_by = partial(load, path, threads=threads, device=device, dtype=dtype)
    return found


def _loaded(
    model: Source, threads: SupportsIndex | None, progress: Progress | None = None,
    device: str = CPU, dtype: ElementType | None = None,
) -> tuple[Model, ModelMetadata]:  # fmt: skip
    """The model, as `load` returns it, and what its file says of it."""
    backend, held = _target(device, dtype)
    record = read_model(model)

    def imported(answers: Sequence[Answer]) -> Graph:
        return import_record(record, answers).graph

    def compiled(graph: Graph) -> Model:
        graph = optimised(graph, backend.multiplies_halves)
        return Model(graph, backend, threads, progress, held)

    metadata = record.metadata
    try:
        found = compiled(imported(()))
    except RunTimeNumberError as need:
        found = LateModel(imported, compiled, need, _declared(record))
    give_back_freed()
    return found, metadata


def _declared(record: ModelRecord) -> list[TensorSpec]:
    """The outputs of a file as it declares them."""
    return [TensorSpec(found.name, found.dtype, found.dims) for found in record.declared_outputs]


def compile(
    graph: Graph, *, threads: SupportsIndex | None = None, progress: Progress | None = None,
    device: str = CPU, dtype: ElementType | None = None,
) -> Model:  # fmt: skip
    """Compile a graph for this machine, for inputs of any extents: `load` after its front end.

    Args:
        graph: made by a front end with `ftuner.graph.builder.Builder`; see docs/extending.md.
        threads, progress, device, dtype: as of `load`.

    Raises:
        UnsupportedOperatorError: operators that the device does not have; the message lists all of
            them.
        GraphError: the graph breaks a rule of its operators, or has tensors of an element type that
            the device does not have.
        ConfigurationError, HardwareError: as of `load`.
    """
    backend, held = _target(device, dtype)
    values = [*graph.inputs, *(v for node in graph.nodes for v in (*node.inputs, *node.outputs))]
    for value in values:
        if value.dtype.name not in ELEMENT_DTYPES:
            raise GraphError(f"tensor {value}; supported are {', '.join(ELEMENT_DTYPES)}")
    return Model(optimised(graph, backend.multiplies_halves), backend, threads, progress, held)


def _target(device: str, dtype: ElementType | None) -> tuple[Backend, DType | None]:
    """The back end of a device, and the element type that it holds float32 in.

    Raises:
        ConfigurationError: no such device, or an element type that it does not hold.
        HardwareError: a GPU that kernels cannot run on.
    """
    held = _half(dtype)
    backend = backend_of(device)
    if held is not None and held.name not in backend.held_dtypes:
        raise ConfigurationError(
            f"dtype is {dtype!r}, which only a GPU multiplies here: a CPU runs a model as the file "
            "says; leave dtype out, or give device='cuda'"
        )
    return backend, held


def _half(dtype: ElementType | None) -> DType | None:
    """The element type that float32 is held in, or None for float32 itself.

    Raises:
        ConfigurationError: not the name of an element type.
    """
    name = dtype_name(dtype)
    if dtype is None or name == FLOAT32.name:
        return None
    found = HALF_DTYPES.get(name or "")
    if found is None:
        raise ConfigurationError(
            f"dtype is {dtype!r}; expected None, {', '.join((FLOAT32.name, *HALF_DTYPES))}"
        )
    return found


@dataclass
class SessionOptions:
    """The settings of ONNX Runtime's `SessionOptions`. Only `intra_op_num_threads` has an effect;
    others can be set."""

    intra_op_num_threads: int = 0
    """Threads of a run; 0 for those of the process."""
    inter_op_num_threads: int = 0
    log_severity_level: int = 2
    graph_optimization_level: object = None
    execution_mode: object = None
    enable_mem_pattern: bool = True
    enable_cpu_mem_arena: bool = True


@dataclass(frozen=True)
class NodeArg:
    """An input or output of a model, as ONNX Runtime describes it."""

    name: str
    type: str
    """For example `tensor(float)`."""
    shape: list[int | str]


_ORT_TYPES = {"float32": "float", "float64": "double"}


class InferenceSession:
    """Call-compatible with `onnxruntime.InferenceSession`: change the import, keep the code."""

    def __init__(
        self,
        path_or_bytes: Source,
        sess_options: SessionOptions | None = None,
        providers: Sequence[object] | None = None,
        provider_options: Sequence[object] | None = None,
        **kwargs: object,
    ) -> None:
        """Compile a model for the CPU; see `load`. `providers` has no effect."""
        threads = int(getattr(sess_options, "intra_op_num_threads", 0) or 0)
        self._model, self._metadata = _loaded(path_or_bytes, threads or None)
        self._options = sess_options or SessionOptions()

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Foreign],
        run_options: object = None,
    ) -> list[Array]:
        """Run the model on arrays by name; returns the named outputs, or all, in order.

        Raises:
            InputError: missing or unknown names, or another dtype or number of axes.
            ShapeError: extents that contradict the model.
        """
        results = self._model.run(input_feed)
        if not output_names:
            return results
        known = {spec.name: x for spec, x in zip(self._model.outputs, results, strict=True)}
        unknown = [name for name in output_names if name not in known]
        if unknown:
            raise InputError(f"no output {', '.join(unknown)}; there are {', '.join(known)}")
        return [known[name] for name in output_names]

    def get_inputs(self) -> list[NodeArg]:
        return [_node_arg(s.name, s.dtype, s.shape) for s in self._model.inputs]

    def get_outputs(self) -> list[NodeArg]:
        return [_node_arg(s.name, s.dtype, s.shape) for s in self._model.outputs]

    def get_modelmeta(self) -> ModelMetadata:
        return self._metadata

    def get_providers(self) -> list[str]:
        return ["CPUExecutionProvider"]

    def get_session_options(self) -> SessionOptions:
        return self._options


def _node_arg(name: str, dtype: str, shape: Sequence[int | str]) -> NodeArg:
    return NodeArg(name, f"tensor({_ORT_TYPES.get(dtype, dtype)})", list(shape))


__all__ = ["InferenceSession", "Model", "NodeArg", "SessionOptions", "compile", "load"]
