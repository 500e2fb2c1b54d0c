"""Compiles the steps of a graph: their kernels, the uKernels that they need, and packed weights."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from ftuner.codegen.llvm.objects.bundle import Bundle
from ftuner.graph.splitting import Compiled
from ftuner.graph.steps import Lowered, Step
from ftuner.planner.cpu.planner import PanelWidth, Planner, know_width, planner_for
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu.arrays import Array
from ftuner.runtime.cpu.kept_plans import KeptPlans, kept_plans, know_plans
from ftuner.runtime.cpu.packed_weights import know_covers
from ftuner.runtime.cpu.plan_records import kept_covers
from ftuner.runtime.cpu.products import CoverKey, PlannedRanges
from ftuner.runtime.cpu.session import CpuSession
from ftuner.runtime.cpu.step_kind import CompiledStep, Loaded, RequiredFamilies, by_library, kind_of
from ftuner.ukernels.cpu.library import LibraryName, build_library


class StepCompiler:
    """Compiles the steps of one graph once, and keeps what a saved model needs of them."""

    def __init__(self, session: CpuSession, workers: int) -> None:
        """`workers`: those that the widths of packed weights and the uKernels are chosen for."""
        self._session, self._workers = session, workers

    def compile(
        self, steps: list[Step], options: Options, saved: Compiled | None
    ) -> list[CompiledStep]:
        """Returns all steps, with what is compiled for them and with packed weights: those of a
        saved model, if it is given. Takes the steps out of their list."""
        session = self._session
        kernels, hardware = session.kernels, session.hardware
        isa, kinds = kernels.isa, [kind_of(step) for step in steps]
        made: dict[tuple[int, Hashable], Array] | None = None
        if saved is not None:
            made = {(id(of), form): x for of, form, x in saved.weights if x is not None}
        wanted: list[Bundle] = []
        known: tuple[tuple[Any, ...], ...] = ()
        plans: tuple[Any, ...] = ()
        code = None if saved is None else options.code
        if saved is not None and code is not None:
            for types, epilogue, *width in saved.widths:
                know_width(self._planner(LibraryName(types, epilogue)), PanelWidth(*width))
            symbols, known, plans = saved.symbols, saved.covers, saved.plans
        else:
            bundles = self._bundles(steps)
            symbols = _symbols(bundles)
            wanted += dict.fromkeys(bundle for bundle in bundles if bundle is not None)
        required = self._required(steps)
        families = by_library(required)
        kernels.prepare(families, wanted, options.progress)
        self._loaded = code or kernels.loaded(wanted, options.progress)

        products = {name: session.products(*name, some) for name, some in families.items()}
        for types, epilogue, *key, covers in known:
            know_covers(products[LibraryName(types, epilogue)], CoverKey(*key), covers)
        if plans:
            know_plans(KeptPlans(*plans), products)

        def kernel(bundle: Bundle) -> int:
            return self._loaded.addresses[bundle.symbol]

        sizes = {id(b.array): b.array.nbytes for s in steps for b in s.reads if b.array is not None}
        weights_bytes = sum(sizes.values())
        loaded = Loaded(
            hardware, isa, products.__getitem__, kernel, self._workers, weights_bytes,
            options.shared, made=made,
        )  # fmt: skip
        addresses = [self._loaded.addresses[name] if name else 0 for name in symbols]
        steps.reverse()
        found = [
            kind.compiled(steps.pop(), needed, address, loaded)
            for kind, needed, address in zip(kinds, required, addresses, strict=True)
        ]
        self._packed, self._covers = loaded.packed_weights(), loaded.covers
        self._extents = {(panels.n, panels.k) for panels in loaded.packed.values()}
        """Columns and k steps of packed weights."""
        return found

    def compiled(self, lowered: Lowered, planned: Sequence[PlannedRanges]) -> Compiled:
        """What was compiled, for the steps that `compile` has returned, and planned ahead."""
        required = self._required(lowered.steps)
        widths = tuple(
            (*name, *width)
            for name in by_library(required)
            for width in self._planner(name).widths.values()
            if (width.n, width.k) in self._extents
        )
        symbols = _symbols(self._bundles(lowered.steps))
        covers = tuple(
            (*name, *key, kept_covers(slots)) for (name, key), slots in self._covers.items()
        )
        plans = tuple(kept_plans(planned)) if planned else ()
        return Compiled(lowered, self._packed, self._workers, widths, symbols, covers, plans)

    def bundles(self, lowered: Lowered) -> list[Bundle]:
        """All that the steps need machine code of."""
        wanted = [bundle for bundle in self._bundles(lowered.steps) if bundle is not None]
        families = by_library(self._required(lowered.steps))
        return self._session.kernels.bundles(families, wanted)

    def _planner(self, name: LibraryName) -> Planner:
        session = self._session
        return planner_for(build_library(session.hardware, session.kernels.isa.name, *name))

    def _bundles(self, steps: Sequence[Step]) -> list[Bundle | None]:
        """The kernel of each step."""
        hardware, isa = self._session.hardware, self._session.kernels.isa
        return [kind_of(step).bundle(step, hardware, isa) for step in steps]

    def _required(self, steps: Sequence[Step]) -> list[RequiredFamilies | None]:
        """The families that each step may run."""
        hardware, isa = self._session.hardware, self._session.kernels.isa.name
        return [kind_of(s).required_families(s, hardware, isa, self._workers) for s in steps]


def _symbols(bundles: Sequence[Bundle | None]) -> tuple[str, ...]:
    return tuple("" if bundle is None else bundle.symbol for bundle in bundles)
