"""The contract of kinds of steps: what code a step needs, its record, and its cost."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import field, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from ftuner.codegen.llvm.native.records import Step as StepSlot
from ftuner.codegen.llvm.objects.bundle import Bundle
from ftuner.core.cpu.tile import ROW
from ftuner.core.dim import Dim, Shape, static
from ftuner.core.evaluation import evaluate
from ftuner.core.frozen import dataclass
from ftuner.cost.step import Machine, StepCost, estimate_of
from ftuner.errors import SavedModelError
from ftuner.graph.buffers import Buffer, View, hollow
from ftuner.graph.ragged import Rows
from ftuner.graph.sources import made_again, note_hollow
from ftuner.graph.splitting import PackedWeight
from ftuner.graph.steps import KernelStep, Step
from ftuner.hardware.model import CpuHardware, Isa
from ftuner.planner.cpu.plan import Plan
from ftuner.runtime.cpu.arrays import Array
from ftuner.runtime.cpu.packed_weights import Panels, UsedCovers, pack_several, unpacked
from ftuner.runtime.cpu.products import Products
from ftuner.runtime.cpu.record_layout import RecordLayout
from ftuner.runtime.shapes.layout import StridedArray
from ftuner.runtime.shared_weights import SharedWeights
from ftuner.runtime.step_kinds import CommonKind, S, StepKinds
from ftuner.ukernels.cpu.library import Family, Library, LibraryName, Operands


class RequiredFamilies(NamedTuple):
    """The families that one step may run, all of one library."""

    library: LibraryName
    families: tuple[Family, ...]
    width: int
    """Panel width of the step's packed weight in vectors; 0 if it has none."""


def for_packed_weight(library: Library, n: int, width: int) -> RequiredFamilies:
    """The families for rows of A, read in place, by a weight of `n` columns in panels of `width`
    vectors."""
    families = library.families(Operands((ROW,), ("panels",)), n, width)
    return RequiredFamilies(LibraryName(library.types, library.epilogue), families, width)


def by_library(
    required: Iterable[RequiredFamilies | None],
) -> dict[LibraryName, tuple[Family, ...]]:
    """Group families by library, without repeats. None stands for a step without uKernels."""
    found: dict[LibraryName, dict[Family, None]] = {}
    for one in required:
        if one is not None:
            found.setdefault(one.library, {}).update(dict.fromkeys(one.families))
    return {name: tuple(families) for name, families in found.items()}


K = TypeVar("K", bound=KernelStep)
Extents = Mapping[str, int]
"""The values of symbols."""
SavedPanels = Mapping[tuple[int, Hashable], Array]
"""Packed weights by what was packed, and how."""


@dataclass(frozen=True)
class Loaded:
    """The loaded functions of a graph's steps, and the weights that are packed so far."""

    hardware: CpuHardware
    isa: Isa
    products: Callable[[LibraryName], Products]
    """A library with all families that the graph requires."""
    kernel: Callable[[Bundle], int]
    """The address of the kernel of a bundle that a step of the graph has."""
    workers: int
    """Workers of a run."""
    weights_bytes: int
    """Bytes of all constants of the graph."""
    shared: SharedWeights | None = None
    """Packed weights of other graphs, too; None if they share none."""
    packed: dict[tuple[int, Hashable], Panels] = field(default_factory=dict)
    """Packed weights by identity of the array, what is packed of it, and how. Steps that read one
    weight with one width share them."""
    made: SavedPanels | None = None
    """Packed weights of a saved model, by the keys of `packed`, without those of arrays that it
    has; None if weights are packed now."""
    covers: UsedCovers = field(default_factory=dict)
    """Covers that steps read."""
    chains: dict[int, tuple[Step, object]] = field(default_factory=dict)
    """Of chains of steps, by their identity: the chain without packed weights, and its planner."""
    hollows: dict[int, Array] = field(default_factory=dict)
    """What is left of arrays that are packed, by their identity."""

    def packed_weights(self) -> tuple[PackedWeight, ...]:
        """All that was packed, by what is left of the arrays."""
        return tuple(
            PackedWeight(self.hollows[array], form, panels.packed)
            for (array, form), panels in self.packed.items()
        )

    def emptied(self, view: View) -> View:
        """A view of a packed weight without its elements. Steps that read one array share what is
        left of it, so that it can stand for the array when they are compiled again."""
        buffer = view.buffer
        assert buffer.array is not None
        if buffer.packed:
            # Of a saved model: nothing is left of it.
            self.hollows[id(buffer.array)] = buffer.array
            return view
        left = self.hollows.get(id(buffer.array))
        if left is None:
            left = self.hollows[id(buffer.array)] = hollow(buffer.array.dtype, buffer.array.shape)
            note_hollow(left, buffer.array)
        return replace(view, buffer=replace(buffer, array=left, packed=True))


def packed_once(
    array: Array, shape: Shape, products: Products, width: int, loaded: Loaded, turned: bool = False
) -> Panels:
    """A weight of (k, n) in panels of `width` vectors, which steps share. `turned`: whether the
    array has it as (n, k)."""
    k, n = static(shape)
    form = "n by k" if turned else "k by n"

    def matrices(array: Array) -> Array:
        return array.reshape(1, n, k) if turned else array.reshape(k, n).T[None]

    return packed_as(array, form, (n, k), matrices, products, width, loaded)


def packed_as(
    array: Array, form: Hashable, extents: tuple[int, int], matrices: Callable[[Array], Array],
    products: Products, width: int, loaded: Loaded,
) -> Panels:  # fmt: skip
    """Matrices that are made of an array, in panels of `width` vectors, one matrix after the other;
    steps that make the same matrices share them. `form`: names what is made of the array, for equal
    `extents`. `extents`: n and k of each matrix. `matrices`: makes (count, n, k) of the array."""
    library = products.compiled.library
    key = (form, *extents, width, library.lanes, library.types.b)

    def packed(given: Array) -> Array:
        return pack_several(products, given, width).packed

    return kept_panels(
        array, key, extents, lambda x: packed(matrices(x)), width, loaded,
        lambda made: packed(_unpacked(array, key, extents, made)),
    )  # fmt: skip


def _unpacked(
    array: Array, wanted: tuple[Any, ...], extents: tuple[int, int], made: SavedPanels
) -> Array:
    """The matrices of a saved model that are packed for panels or vectors of other widths than
    `wanted` says.

    Raises:
        SavedModelError: it has no such matrices.
    """
    n, k = extents
    for (of, form), packed in made.items():
        if of == id(array) and isinstance(form, tuple) and len(form) == len(wanted):
            *head, width, lanes, dtype = form
            if (*head, dtype) == (*wanted[:-3], wanted[-1]):
                each = packed.reshape(-1, -(-n // lanes) * lanes * k)
                return np.stack([unpacked(Panels(x, width, n, k), lanes) for x in each])
    raise SavedModelError(f"the file lacks a packed weight, {wanted}; save it again")


def kept_panels(
    array: Array, form: Hashable, extents: tuple[int, int], make: Callable[[Array], Array],
    width: int, loaded: Loaded, repack: Callable[[SavedPanels], Array] | None = None,
) -> Panels:  # fmt: skip
    """What `make` packs of an array in a form, which steps of the program share, and models of a
    file. `repack`: makes it of the packed weights of a saved model without the array.

    Raises:
        SavedModelError: a saved model does not have it.
    """
    key = (id(array), form)
    panels = loaded.packed.get(key)
    if panels is None:
        packed = None if loaded.made is None else loaded.made.get(key)
        if packed is None:
            whole = array if loaded.made is None else made_again(array)
            if whole is None:
                if repack is None or loaded.made is None:
                    raise SavedModelError(f"the file lacks a packed weight, {form}; save it again")
                packed = repack(loaded.made)
            else:
                pack = partial(make, whole)
                packed = pack() if loaded.shared is None else loaded.shared.get(whole, form, pack)
        panels = loaded.packed[key] = Panels(packed, width, *extents, loaded.weights_bytes)
    return panels


class CompiledStep(ABC):
    """A step whose functions are loaded."""

    step: Step
    """The step, without the array of a weight that is packed."""
    panels: Panels | None = None
    """Its packed weight, if it has one."""

    @abstractmethod
    def lay_out(self, records: RecordLayout, at: int) -> None:
        """Lay out the record of the step, whose slots begin at slot `at`, and all that it points
        to; say which tasks the step has."""

    @property
    def weight_panels(self) -> tuple[int, int]:
        """The number of panels of a weight that chunks of a product may be, and the bytes of all;
        zeros for any other step."""
        return 0, 0

    def order_of_sums(self, rows: Rows, count: int, workers: int) -> Hashable:
        """For a row-wise step of `count` rows: what the bits of a row depend on beside its
        operands; None if that differs between rows. Reductions of nests have one order."""
        return ""


class StepReport(NamedTuple):
    """A step at known extents."""

    plan: str
    """The plan in words."""
    cost: StepCost
    product: Plan | None = None
    """The plan of a product."""
    kind: str | None = None
    """The kind of step that does the work, if it is not the step's own."""


def no_cost(machine: Machine) -> StepCost:
    """The cost of a step without elements."""
    return StepCost(0, 0, 0, estimate_of(machine, 1, 0.0, 0.0, 0.0, ()))


class StepKind(CommonKind[S], ABC):
    """One kind of step. The module of a kind has one, `KIND`."""

    has_workspace: ClassVar[bool] = False
    """Whether steps use the workspace. There is one, so such steps do not run concurrently."""
    writes_apart: ClassVar[bool] = False
    """Whether no other step writes what a step does, though perhaps elsewhere in the same buffer:
    parts of one result have steps that run concurrently."""

    def required_families(
        self, step: S, hardware: CpuHardware, isa: str, workers: int
    ) -> RequiredFamilies | None:
        """The families of uKernels that the step may run at any extents; None if it runs none.
        `workers`: of a run."""
        return None

    def bundle(self, step: S, hardware: CpuHardware, isa: Isa) -> Bundle | None:
        """The kernel that is compiled for the step; None if it runs uKernels alone."""
        return None

    @abstractmethod
    def compiled(
        self, step: S, required: RequiredFamilies | None, kernel: int, loaded: Loaded
    ) -> CompiledStep:
        """The step with its functions, its weight packed. `required`: its `required_families`;
        `kernel`: the address of the kernel of its `bundle`, or 0."""

    @abstractmethod
    def report(
        self, step: S, extents: Extents, machine: Machine, resident_bytes: int
    ) -> StepReport:
        """The plan and the cost of the step. `resident_bytes`: what passes between two runs
        of the step, which decides from where its constants are read."""


KINDS = StepKinds[StepKind[Any]]("cpu")
kind_of = KINDS.of


@dataclass(frozen=True)
class CompiledKernel(CompiledStep):
    """The kernel reads the addresses of the step's buffers and the values of some dims."""

    step: Step
    address: int
    parameters: tuple[Dim, ...]
    tasks: Dim
    checks: tuple[str, ...] = ()
    """What a status of n + 1 means."""

    def lay_out(self, records: RecordLayout, at: int) -> None:
        arrays = [(buffer, 0) for buffer in (*self.step.reads, *self.step.writes)]
        dims = records.kernel(at, self.address, arrays, len(self.parameters))
        for slot, number in enumerate(records.dims.numbers(self.parameters), dims):
            records.dim(slot, number)
        records.equal_tasks(self.tasks)
        if self.checks:
            records.check(at + StepSlot.STATUS, self.checks)


class KernelKind(StepKind[K]):
    """A step that is one kernel."""

    @abstractmethod
    def tasks(self, step: K) -> Dim:
        """The number of the kernel's tasks, which take equally long."""

    def compiled(
        self, step: K, required: RequiredFamilies | None, kernel: int, loaded: Loaded
    ) -> CompiledStep:
        return CompiledKernel(step, kernel, step.parameters(), self.tasks(step))


def strided(view: View, extents: Extents) -> StridedArray:
    """The shape and strides of a view."""
    layout = view.layout
    size = layout.dtype.itemsize
    shape = tuple(evaluate(d, extents) for d in layout.shape)
    strides = tuple(size * evaluate(d, extents) for d in layout.strides)
    return StridedArray(shape, strides, size)


def addressed(views: Iterable[View]) -> list[tuple[Buffer, Dim]]:
    """The buffers of views and their offsets, as `RecordLayout.kernel` takes them."""
    return [(view.buffer, view.layout.offset) for view in views]


def touched(view: View, extents: Extents) -> int:
    """Bytes of the elements of a view, each counted once."""
    array = strided(view, extents)
    axes = zip(array.shape, array.strides, strict=True)
    elements = math.prod(n if stride or not n else 1 for n, stride in axes)
    return elements * array.itemsize
