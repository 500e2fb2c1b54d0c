"""How models are made: of a graph, of the record of an ONNX file, of a program of PyTorch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING

from ftuner.core.dtype import ELEMENT_DTYPES
from ftuner.core.operating_system import give_back_freed
from ftuner.errors import FTunerError, GraphError, IndexRangeError, ShapeError
from ftuner.frontends.onnx.importer import import_record
from ftuner.frontends.onnx.records import InputRecord, ModelRecord, OutputRecord, Variant
from ftuner.graph.ir import Graph
from ftuner.graph.passes.pipeline import optimised
from ftuner.graph.specialization import Answer, RunTimeNumberError
from ftuner.graph.splitting import SplitGraph, divided
from ftuner.models import Model, ModuleModel, SpecializedModel, UnrankedModel
from ftuner.runtime.backend import Backend, Options
from ftuner.runtime.cpu.memory import reuse
from ftuner.runtime.model import ANY_RANK, TensorSpec
from ftuner.runtime.request import Request
from ftuner.runtime.shared_weights import SharedWeights
from ftuner.runtime.specialization import NewModels
from ftuner.runtime.variants import Check, Shapes, Variants, variants_of_extents

if TYPE_CHECKING:
    # It imports torch.
    from ftuner.frontends.torch.exported import Program

_LOG = logging.getLogger(__name__)
MadeBy = Callable[[], object]
"""As of `Options`."""
MakeVariant = Callable[[Variant, Check], Model]


def compile_graph(graph: Graph, request: Request) -> Model:
    """The model of a graph that a user has built.

    Raises:
        GraphError: a value of a dtype that models do not have.
        As `Request.backend` and `Request.options`.
    """
    backend = request.backend()
    options = request.options(backend)
    values = [*graph.inputs, *(v for node in graph.nodes for v in (*node.inputs, *node.outputs))]
    for value in values:
        if value.dtype.name not in ELEMENT_DTYPES:
            raise GraphError(f"tensor {value}; supported are {', '.join(ELEMENT_DTYPES)}")
    return compiled(replace(graph), backend, options)


def compile_program(
    program: Program, request: Request, device: str | None, made_by: MadeBy | None = None
) -> Model:
    """The model of a program of torch. `device`: None for that of the program."""
    request = replace(request, device=device or program.device)
    backend = request.backend()
    options = request.options(backend, made_by)
    if program.again is None:
        return _module_model(program, backend, options)
    # What is compiled later may find other elements in the same memory.
    weights = import_module("ftuner.frontends.torch.weights")
    options = replace(options, shared=weights.StorageWeights())
    first, again = program.calling.bound, program.again

    def made(shapes: Shapes) -> tuple[Graph, Model]:
        found = again(shapes)
        return found.calling.bound, _module_model(found, backend, options)

    return _module_model(program, backend, options, variants_of_extents(first, made))


def _module_model(
    program: Program, backend: Backend, options: Options, variants: Variants[Model] | None = None
) -> ModuleModel:
    with reuse():
        parts = _parts(program.graph, backend, options)
        found = ModuleModel(parts, backend, options, program.calling, variants)
    give_back_freed()
    return found


def compile_file(read: Callable[[], ModelRecord], backend: Backend, options: Options) -> Model:
    """Compile the model that `read` gives: `load` with another way of reading a file.

    Raises:
        As `load`, and what `read` does.
    """
    records = [read()]
    header = records[0].header()
    if any(v.dims is None for v in header.inputs):
        first = partial(records.__getitem__, 0)
        ranked = Variants(header.variant, variant_maker(first, backend, options))
        return UnrankedModel(
            _declared(header.inputs), _declared(header.declared_outputs), ranked,
            Model(Graph((), (), ()), backend, options), options,
        )  # fmt: skip

    def again() -> ModelRecord:
        record = read()
        if record.header() != header:
            raise GraphError("the model's file has changed since it was loaded")
        return record

    variants = None
    if header.repeated:
        variants = Variants(header.variant, variant_maker(again, backend, options))
    try:
        return _made(records, backend, options, variants)
    except (ShapeError, IndexRangeError) as refused:
        # What is computed of extents may be impossible because names are wrong.
        apart = Variant((), header.repeated)
        try:
            found = _made([read().varied(apart)], backend, options)
        except FTunerError:
            raise refused from None
        _LOG.warning("%s: %s", apart, refused)
        return found


def _made(
    records: list[ModelRecord], backend: Backend, options: Options,
    variants: Variants[Model] | None = None, check: Check | None = None,
) -> Model:  # fmt: skip
    """The model of a record, which is taken out of its list: its weights are freed as they are
    packed, if nothing else refers to them. `check`: called before anything is compiled."""
    with reuse():
        record = records.pop()
        try:
            graph = _imported(record, ())
        except RunTimeNumberError as need:
            options = replace(options, shared=options.shared or SharedWeights())
            new = new_models(lambda: record, backend, options)
            outputs = _declared(record.declared_outputs)
            found: Model = SpecializedModel(need, outputs, options, new, variants)
        else:
            del record
            if check is not None:
                check(graph)
            found = compiled(graph, backend, options, variants)
    give_back_freed()
    return found


def compiled(
    graph: Graph, backend: Backend, options: Options, variants: Variants[Model] | None = None
) -> Model:
    """The model of a graph, which loses its nodes."""
    return Model(_parts(graph, backend, options), backend, options, variants)


def _parts(graph: Graph, backend: Backend, options: Options) -> SplitGraph:
    """The parts of a graph, which loses its nodes, as they are compiled."""
    halves, narrow = backend.multiplies_halves, backend.narrow_dtypes
    whole = optimised(graph.moved(), halves, narrow, options.precision)
    return divided(whole, options.unpad)


def variant_maker(
    read: Callable[[], ModelRecord], backend: Backend, options: Options
) -> MakeVariant:
    """A function that makes the model for other shapes than a file declares; they share weights."""
    options = replace(options, shared=SharedWeights())

    def variant(wanted: Variant, check: Check) -> Model:
        found = _made([read().varied(wanted)], backend, options, check=check)
        level = logging.WARNING if wanted.apart else logging.INFO
        _LOG.log(level, "%s: compiled for such inputs", wanted)
        return found

    return variant


def new_models(read: Callable[[], ModelRecord], backend: Backend, options: Options) -> NewModels:
    """Makes the models for new answers; the first has the file read. `options` has shared
    weights."""
    record = cache(read)
    return NewModels(
        lambda answers: _imported(record(), answers),
        lambda graph: compiled(replace(graph), backend, options),
    )


def _imported(record: ModelRecord, answers: Sequence[Answer]) -> Graph:
    return import_record(record, answers).graph


def _declared(records: Sequence[InputRecord | OutputRecord]) -> list[TensorSpec]:
    """Inputs or outputs of a file as it declares them."""
    return [
        TensorSpec(
            found.name, str(found.dtype),
            ANY_RANK if found.dims is None else tuple("?" if n is None else n for n in found.dims),
        )
        for found in records
    ]  # fmt: skip
