"""Models from ONNX files and from graphs."""

from __future__ import annotations

import logging
import os
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

from ftuner.core.dtype import FLOAT32
from ftuner.core.frozen import dataclass
from ftuner.core.given import BatchAxis, ElementType
from ftuner.errors import AllocationError, ConfigurationError, ExportError, FTunerError, ParseError
from ftuner.graph.ir import Graph
from ftuner.graph.splitting import SplitGraph
from ftuner.models import Model, SpecializedModel
from ftuner.runtime.backend import Backend, Options
from ftuner.runtime.collections_off import WITHOUT_COLLECTIONS
from ftuner.runtime.devices import CPU
from ftuner.runtime.preparing import Extents
from ftuner.runtime.request import Request
from ftuner.runtime.saved import container, kept
from ftuner.runtime.saved import models as saved_models
from ftuner.runtime.shared_weights import SharedWeights
from ftuner.runtime.shown_progress import Progress
from ftuner.runtime.specialization import NewModels, SavedSpecialization
from ftuner.runtime.variants import Variants

if TYPE_CHECKING:
    from ftuner.frontends.onnx.reading import Source
    from ftuner.frontends.onnx.records import ModelRecord

_LOG = logging.getLogger(__name__)
# The compiler and front ends are imported by name: a model that was compiled before needs neither.


@dataclass(frozen=True)
class Origin:
    """The path that a model was loaded from, and how. A call loads it again."""

    path: str
    request: Request
    device: str | None = CPU

    def __call__(self) -> Model:
        return _loaded(self.path, self.request, self.device)


def load(
    model: Source, *, threads: SupportsIndex | None = None, progress: Progress | None = None,
    device: str = CPU, dtype: ElementType | None = None, append_in_place: bool = False,
    random_seed: SupportsIndex | None = None, memory_limit: SupportsIndex | None = None,
    warm: Mapping[str, Extents] | None = None, precision: str = FLOAT32.name,
    unpad: Literal["auto"] | None = None, batch_axis: BatchAxis | None = None,
) -> Model:  # fmt: skip
    """Compile an ONNX model for this machine, for inputs of any extents.

    Args:
        model: the path of a file in ONNX's or onnxruntime's format, its bytes, or an
            `onnx.ModelProto`.
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
        append_in_place: for decoders on a CPU. An output that appends new rows to an input, such as
            the keys and values of all tokens so far, is then a read-only view of memory with room
            for more. A run that is given such an output, as it was returned, writes the new rows
            after those that are there, instead of copying all of them; earlier outputs keep their
            elements. Any other array is copied, as ever: one of your own, or an output that was
            given to a run before (a second continuation of one text). That copy is made by the
            caller's thread alone, so that a beam search, which reorders the past for each token, is
            slower. Where data says which rows are written (GroupQueryAttention, TensorScatter), a
            run may write over rows of the output that it continues: that array shows them, and is
            refused if it is given again. Attention has the same bits as without. `Model.appended`
            names these inputs and outputs. An output keeps all of its memory alive, with the rows
            that were appended later.
        random_seed: of the operators that draw random numbers, from 0 below 2 ** 64. The n-th run
            of a model then draws the same numbers in each process, with any number of threads. By
            default they are new in each run. Either way, successive and concurrent runs draw
            different numbers.
        memory_limit: on a CPU, the most bytes that the model keeps between runs beside weights and
            code: memory of intermediate results, programs of shapes, and outputs that the caller
            has freed. What was used least recently is freed first. A run that needs more than this
            for its intermediate results and its program is refused, whatever ran before; outputs
            do not count. Runs of several threads at once may take more together, until they end. By
            default each graph keeps the memory of its largest inputs for each concurrent caller,
            and at most 40 MiB of programs. `Model.kept_bytes` is what is kept now.
        warm: shapes that the model is prepared for before it is returned; see `Model.prepare`.
        precision: in which products of float32 by weights are computed, on CPUs that have an
            instruction named here; sums, and all else, stay float32. `bfloat16` rounds both
            operands to 8 bits of significand, and those of both products of attention, powers
            included, by heads of at least 16 elements (AVX512-BF16, AMX, BFDOT). `int8-dynamic`
            rounds the weight to 8-bit levels with a scale for each column, and rows to levels with
            a scale for each, so that a row does not depend on the others of its batch (AVX-VNNI,
            AVX512-VNNI).
            `int4-weights` rounds weights of at least 16384 elements to 4 bits with a scale for each
            32 steps of k, on any CPU; rows stay float32. `int4-dynamic` rounds such weights so, and
            rows as `int8-dynamic` does, also by weights that a file has in blocks of levels.
            Nothing is rounded unless it is asked for. Products that a file has quantised are
            computed in integers in any case.
        unpad: "auto" has `run` leave out the padding of a batch, on a CPU: rows of which the mask,
            an input of requests by positions, ends with zeros. Each then has the bits that it has
            in `Model.run_batch`, and outputs are zero at the positions that were left out. This is
            done where the graph proves that nothing else depends on them; `Model.padding_kept` says
            why not. Masks of other forms, such as padding on the left, are run as they are, and so
            is a batch in which a request has no position.
        batch_axis: for an ONNX model that does not name its dims: the axis of its inputs that
            counts requests, or that of each input by name, without inputs that have none. These
            dims are then known to be equal, and so are other dims without a name, by their number,
            of inputs with as many axes, such as tokens and their mask. `Model.run_batch` then runs
            more steps together, and `unpad` finds the mask. Inputs whose extents differ all the
            same are run by a variant, which the first such call compiles.

    Returns:
        The model: call it with arrays by name, or use its `run`. A model that was loaded from a
        path can be pickled: it is loaded again from there. A copy of a model is the model itself.

    Raises:
        UnsupportedOperatorError: operators that ftuner, or the device, does not have; the message
            lists all of them.
        MissingFileError: there is no such file; also a `FileNotFoundError`.
        GraphError: the file is not a valid model.
        ConfigurationError: the extra `onnx`, or for a GPU `gpu`, is not installed; no such device;
            an unknown `dtype`, or any on a CPU; an unknown `unpad`; an unknown `precision`, or one
            that the device has no instruction for; `append_in_place` on a GPU; a `random_seed` or
            `memory_limit` that is not such a number; a `memory_limit` on a GPU; a `batch_axis` for
            another model than an ONNX one.
        InputError: a `batch_axis` that an input does not have, or that it has one extent of, or
            that contradicts the names of the file.
        InputError, ShapeError, MemoryLimitError: shapes of `warm`; see `Model.prepare`.
        HardwareError: a GPU that kernels cannot run on.
    """
    request = Request(
        threads, progress, device, dtype, append_in_place, random_seed, memory_limit, warm,
        precision, unpad, batch_axis,
    )  # fmt: skip
    return _loaded(model, request)


def save(model: Model, path: str | PathLike[str], *, isas: Sequence[str] = ()) -> None:
    """Write a compiled model to one file: steps, packed weights, machine code, and the hardware
    model that its plans are made by. `load` of the file needs neither onnx nor a compiler, and the
    model has the same bits. Processes that load it share the memory of its weights.

    The file is machine code: load no file that you would not run. It is for machines that have all
    instructions that this one was compiled for, and for this version of ftuner; others compile it
    again, with a warning, if llvmlite is installed, and refuse it otherwise.

    Args:
        model: on a CPU. Variants for other shapes than its file declares are not saved. Where the
            graph depends on numbers in the inputs, it is saved for those of the runs so far.
        path: a name that ends in `.ftuner`. A file of this name is replaced as a whole, so that
            processes that have it loaded keep the old one.
        isas: the instruction sets to have machine code for, each with its own packed weights; by
            default that of the model. For others the model must have been loaded from a path,
            from which it is compiled again.

    Raises:
        SavedModelError: a model on a GPU, one with an input whose number of axes the file does not
            say, or one with steps from outside ftuner.
        ConfigurationError: a name with another ending, a file that cannot be written, an ISA that
            this machine does not have, or one that the model was not compiled for where it was not
            loaded from a path.
        CompileError: the compiler failed.
    """
    saved_models.save([_for_isa(model, isa) for isa in isas] or [model], path)


def _for_isa(model: Model, isa: str) -> Model:
    """The model compiled for an ISA."""
    own = next(iter(model.all_executables()), None)
    if own is not None and own.isa == isa:
        return model
    origin = model.made_by
    if not isinstance(origin, Origin):
        raise ConfigurationError(
            f"the model was not loaded from a path, so that it cannot be compiled for {isa}; save "
            "it for its own ISA, or load it from an ONNX file"
        )
    return _loaded(origin.path, replace(origin.request, isa=isa, warm=None))


def _loaded(source: Any, request: Request, device: str | None = CPU) -> Model:
    """`load`. `device`: None for that of a program of torch."""
    origin = None
    if isinstance(source, str | PathLike):
        origin = Origin(os.path.abspath(source), replace(request, progress=None), device)
    if isinstance(source, _of_torch("nn", "Module")):
        raise ExportError(
            f"{type(source).__name__} is a module, which is compiled with example inputs: "
            "ftuner.compile(module, (x,))"
        )
    if isinstance(source, _of_torch("onnx", "ONNXProgram")):
        source = source.model_proto
    saved = origin is not None and container.is_saved(source)
    exported = isinstance(source, _of_torch("export", "ExportedProgram"))
    of_torch = exported or (origin is not None and origin.path.endswith(".pt2"))
    if request.batch_axis is not None and (saved or of_torch):
        raise ConfigurationError("batch_axis is for ONNX models; leave it out")
    if saved:
        with WITHOUT_COLLECTIONS:
            found = _saved_model(source, request, origin)
    elif of_torch:
        frontend = _torch_frontend("exported")
        make = frontend.exported_program if exported else frontend.read_program
        made = make(source if exported else os.path.abspath(source))
        found = _compiler().compile_program(made, request, device, origin)
    else:
        read = partial(_read, source, request.batch_axis)
        if origin is not None and not os.path.isfile(origin.path):
            # It raises, and nothing is to be prepared for it.
            read()
        with WITHOUT_COLLECTIONS, request.backend().probed_ahead():
            # A message may be changed after it was loaded.
            again = read if origin or isinstance(source, bytes) else cache(read)
            found, _ = model_of_file(again, request, origin.path if origin else None, origin)
    if request.warm:
        found.prepare(request.warm)
    return found


def _compiler() -> Any:
    return import_module("ftuner.compiler")


def _read(source: Any, batch_axis: BatchAxis | None) -> ModelRecord:
    record: ModelRecord = import_module("ftuner.frontends.onnx.importer").read_model(source)
    if batch_axis is not None:
        room = import_module("ftuner.frontends.onnx.batch_axis")
        record = room.with_batch_axis(record, batch_axis)
    return record


def model_of_file(
    read: Callable[[], ModelRecord], request: Request, path: str | None,
    origin: Origin | None = None, given: object = (),
) -> tuple[Model, Callable[[], ModelRecord]]:  # fmt: skip
    """The model of a file that is to be compiled, and what returns its header: the model that the
    cache has of it, or a new one, which the cache then keeps.

    Args:
        read: reads the file.
        path: that of the file; None where the cache keeps nothing of it.
        origin: of a model that can be made again.
        given: what `read` depends on beside the file; its text says all of it.

    Raises:
        As `load`, and what `read` does.
    """
    backend = request.backend()
    options = request.options(backend, origin)
    place = None if path is None else kept.place_of(path, request, backend, given)
    with WITHOUT_COLLECTIONS:
        kept_one = None if place is None else _kept_model(place, read, options)
        if kept_one is not None:
            return kept_one
        noted: list[kept.Read] = []

        def read_noted() -> ModelRecord:
            record = read()
            header = record.header()
            noted.append(kept.Read(lambda: header, bool(record.repeated), record.files))
            return record

        compiler = _compiler()
        with backend.compiled_ahead():
            found: Model = compiler.compile_file(read_noted, backend, options)
        if place is not None:
            place.keep(found, noted[0])
            _keep_later(place, found, noted[0])
        return found, noted[0].header


def _keep_later(place: kept.Place, model: Model, read: kept.Read) -> None:
    """Have the cache keep a model again when it has new parts."""
    if isinstance(model, SpecializedModel):
        this = weakref.ref(model)

        def note() -> None:
            found = this()
            try:
                if found is not None:
                    place.keep(found, read)
            except Exception as error:  # The run that brought the part has its outputs.
                _LOG.warning("%s is not kept in the cache: %r", place.path, error)

        model.note_new = note


def _kept_model(
    place: kept.Place, read: Callable[[], ModelRecord], options: Options
) -> tuple[Model, Callable[[], ModelRecord]] | None:
    """The model that the cache has, and its header; None if there is none, or it is damaged."""
    found = place.found()
    if found is None:
        return None
    header: Callable[[], ModelRecord] = found.read.header
    # Models for several answers, also for later ones, read one copy of what is packed again.
    shared = replace(options, shared=options.shared or SharedWeights())

    def again() -> ModelRecord:
        place.expect_same()
        return read()

    maker = cache(lambda: _compiler().variant_maker(again, place.backend, options))
    new = cache(lambda: _compiler().new_models(again, place.backend, shared))
    variants: Variants[Any] | None = None
    if found.read.repeated:
        variants = Variants(
            lambda shapes: header().variant(shapes), lambda key, check: maker()(key, check)
        )
    try:
        coded = options if isinstance(found.graph, SplitGraph) else shared
        coded = replace(coded, code=found.code)
        late = NewModels(lambda answers: new().imported(answers), lambda g: new().compiled(g))
        model = _restored(found.graph, place.backend, coded, late, variants)
        _keep_later(place, model, found.read)
        return (model, header) if place.is_unchanged(found.read) else None
    except (AllocationError, ConfigurationError):
        raise
    except OSError as error:
        _LOG.info("%s: %s", place.path, error)
        return None
    except (FTunerError, *container.MALFORMED) as error:
        # What is made of a file that changes meanwhile says nothing of the entry.
        if place.is_unchanged(found.read):
            place.spoiled(found, error)
        return None


def _restored(
    graph: SplitGraph | SavedSpecialization, backend: Backend, options: Options,
    new: NewModels | None = None, variants: Variants[Any] | None = None,
) -> Model:  # fmt: skip
    """The model of what was compiled before. `new`, `variants`: as of `SpecializedModel`."""
    if isinstance(graph, SplitGraph):
        return Model(graph, backend, options, variants)
    return SpecializedModel(
        graph.first, graph.outputs, options, new, variants, lambda x: Model(x, backend, options)
    )


def _saved_model(path: str | PathLike[str], request: Request, origin: Origin | None) -> Model:
    """`load` of a file that `save` has written.

    Raises:
        ParseError: it is malformed.
    """
    if request.device != CPU or request.dtype is not None or request.precision != FLOAT32.name:
        raise ConfigurationError(
            f"{path} is compiled for a CPU; for another device, dtype or precision load the ONNX "
            "model"
        )
    saved = saved_models.read(path, request.isa)
    if request.append_in_place and not saved.append_in_place:
        raise ConfigurationError(
            f"{path} was saved without append_in_place; leave it out, or save the model with it"
        )
    request = replace(request, append_in_place=saved.append_in_place)
    options = request.options(saved.backend, origin)
    # A file starts fast: the first run of a shape plans it.
    options = replace(options, code=saved.code, plans_ahead=False)
    try:
        return _restored(saved.graph, saved.backend, options)
    except FTunerError:
        raise
    except container.MALFORMED as error:
        raise ParseError(f"{path} is malformed: {type(error).__name__}: {error}") from error


def compile(
    program: Any, example_inputs: Any = None, *, dynamic_shapes: Any = None,
    threads: SupportsIndex | None = None, progress: Progress | None = None,
    device: str | None = None, dtype: ElementType | None = None, append_in_place: bool = False,
    random_seed: SupportsIndex | None = None, memory_limit: SupportsIndex | None = None,
    warm: Mapping[str, Extents] | None = None, precision: str = FLOAT32.name,
    unpad: Literal["auto"] | None = None,
) -> Model:  # fmt: skip
    """Compile a PyTorch module, or a graph, for this machine, for inputs of any extents.

    Args:
        program: a `torch.nn.Module`; a program of `torch.export`, or the path of its `.pt2` file; a
            graph that was made with `ftuner.graph.builder.Builder`, see docs/extending.md; or what
            `load` takes.
        example_inputs: of a module: a tuple of arguments, or a mapping of arguments by name.
            Tensors in them are inputs of the model, in whatever structures; all else is constant.
        dynamic_shapes: of a module, as of `torch.export.export`. By default, all extents are
            dynamic that can be; which cannot is logged.
        device: by default the one that the module is on.
        threads, progress, dtype, append_in_place, random_seed, memory_limit: as of `load`.
        warm, precision, unpad: as of `load`.

    Returns:
        The model. That of a module or an exported program is called as these are: with tensors, in
        the structures that they take, and returns what they return. Parameters are constants of the
        model: where they are replaced or updated later, compile the module again. A call that takes
        another branch on extents than the example inputs compiles the module for these, too, as
        long as the module is kept and unchanged.

    Raises:
        ExportError: torch makes no program of the module.
        UnsupportedOperatorError: operators that ftuner, or the device, does not have; the message
            lists all of them.
        GraphError: the graph breaks a rule of its operators, or has tensors of an element type that
            the device does not have.
        ConfigurationError, HardwareError, InputError, ShapeError, MemoryLimitError: as of `load`.
    """
    request = Request(
        threads, progress, device or CPU, dtype, append_in_place, random_seed, memory_limit, warm,
        precision=precision, unpad=unpad,
    )  # fmt: skip
    found: Model
    if isinstance(program, Graph):
        found = _compiler().compile_graph(program, request)
    elif example_inputs is not None:
        made = _torch_frontend("modules").module_program(program, example_inputs, dynamic_shapes)
        found = _compiler().compile_program(made, request, device)
    else:
        return _loaded(program, request, device)
    if warm:
        found.prepare(warm)
    return found


def _torch_frontend(room: str) -> Any:
    return import_module(f"ftuner.frontends.torch.{room}")


def _of_torch(*path: str) -> Any:
    """A class of torch, or an empty tuple where torch is not imported."""
    found: Any = sys.modules.get("torch")
    for name in path:
        found = getattr(found, name, None)
    return found or ()


__all__ = ["Model", "compile", "load", "save"]
