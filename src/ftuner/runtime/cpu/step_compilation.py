"""Compiles the steps of a graph: their kernels, the uKernels that they need, and packed weights."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from ftuner.codegen.llvm.objects.bundle import Bundle
from ftuner.graph.splitting import Compiled
from ftuner.graph.steps import Lowered, Step
from ftuner.planner.cpu.panel_width import know_width
from ftuner.planner.cpu.planner import PanelWidth, Planner, planner_for
from ftuner.runtime.cpu.arrays import Array
from ftuner.runtime.cpu.products import Products
from ftuner.runtime.cpu.required_families import RequiredFamilies, by_library
from ftuner.runtime.cpu.session import CpuSession
from ftuner.runtime.cpu.steps.contract import CompiledStep, Loaded
from ftuner.runtime.cpu.steps.kinds import kind_of
from ftuner.runtime.shared_weights import SharedWeights
from ftuner.runtime.shown_progress import Progress
from ftuner.ukernels.cpu.library import LibraryName, build_library


class StepCompiler:
    """Compiles the steps of one graph once, and keeps what a saved model needs of them."""

    def __init__(self, session: CpuSession, workers: int) -> None:
        """`workers`: those that the widths of packed weights and the uKernels are chosen for."""
        self._session, self._workers = session, workers

    def know(self, widths: Sequence[tuple[Any, ...]]) -> None:
        """Take over the widths of packed weights, as `Compiled` has them."""
        for types, epilogue, *width in widths:
            know_width(self._planner(LibraryName(types, epilogue)), PanelWidth(*width))

    def compile(
        self, steps: list[Step], progress: Progress | None, shared: SharedWeights | None,
        made: Mapping[tuple[int, Hashable], Array] | None,
    ) -> list[CompiledStep]:  # fmt: skip
        """Returns all steps, with what is compiled for them and with packed weights: those of
        `made`, if it is given. Takes the steps out of their list."""
        session = self._session
        kernels, hardware = session.kernels, session.hardware
        isa, kinds = kernels.isa, [kind_of(step) for step in steps]
        bundles, required = self._needed(steps)
        wanted = list(dict.fromkeys(bundle for bundle in bundles if bundle is not None))
        families = by_library(required)
        kernels.prepare(families, wanted, progress)
        self._loaded = kernels.loaded(wanted, progress)

        def products(name: LibraryName) -> Products:
            return session.products(*name, families[name])

        def kernel(bundle: Bundle) -> int:
            return self._loaded.addresses[bundle.symbol]

        sizes = {id(b.array): b.array.nbytes for s in steps for b in s.reads if b.array is not None}
        weights_bytes = sum(sizes.values())
        loaded = Loaded(
            hardware, isa, products, kernel, self._workers, weights_bytes, shared, made=made
        )
        addresses = [0 if bundle is None else kernel(bundle) for bundle in bundles]
        steps.reverse()
        found = [
            kind.compiled(steps.pop(), needed, address, loaded)
            for kind, needed, address in zip(kinds, required, addresses, strict=True)
        ]
        self._packed = loaded.packed_weights()
        self._extents = {(panels.n, panels.k) for panels in loaded.packed.values()}
        """Columns and k steps of packed weights."""
        return found

    def compiled(self, lowered: Lowered) -> Compiled:
        """What was compiled, for the steps that `compile` has returned."""
        _, required = self._needed(lowered.steps)
        widths = tuple(
            (*name, *width)
            for name in by_library(required)
            for width in self._planner(name).widths.values()
            if (width.n, width.k) in self._extents
        )
        return Compiled(lowered, self._packed, self._workers, widths)

    def objects(self, lowered: Lowered) -> dict[Bundle, bytes]:
        """The machine code that the steps need.

        Raises:
            CompileError: the compiler failed.
        """
        bundles, required = self._needed(lowered.steps)
        wanted = [bundle for bundle in bundles if bundle is not None]
        return self._session.kernels.objects(by_library(required), wanted)

    def _planner(self, name: LibraryName) -> Planner:
        session = self._session
        return planner_for(build_library(session.hardware, session.kernels.isa.name, *name))

    def _needed(
        self, steps: Sequence[Step]
    ) -> tuple[list[Bundle | None], list[RequiredFamilies | None]]:
        """The kernel of each step, and the families that it may run."""
        hardware, isa = self._session.hardware, self._session.kernels.isa
        kinds = [kind_of(step) for step in steps]
        return (
            [kind.bundle(s, hardware, isa) for kind, s in zip(kinds, steps, strict=True)],
            [
                kind.required_families(step, hardware, isa.name, self._workers)
                for kind, step in zip(kinds, steps, strict=True)
            ],
        )
