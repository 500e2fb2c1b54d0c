"""Models as users have them: `ftuner.runtime.model` with what needs the rooms of reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from math import prod
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from ftuner.core.units import count
from ftuner.cost.step import Machine
from ftuner.errors import InputError
from ftuner.graph.ir import Graph
from ftuner.runtime import chosen_model, model, specialization
from ftuner.runtime.backend import Backend, Options
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.ops.operands import Operand
from ftuner.runtime.preparing import shape_of
from ftuner.runtime.shapes.binding import bind
from ftuner.runtime.variants import Variants

if TYPE_CHECKING:
    # The first imports torch.
    from ftuner.frontends.torch.calling import Calling
    from ftuner.report.model import ModelExplanation

Given = Sequence[SupportsIndex] | Operand
"""The shape of an input, or an array."""


class Model(model.Model):
    """A model compiled for one device, for inputs of any extents. Call it with arrays by name."""

    def explain(
        self, given: Mapping[str, Given] | None = None, /, **by_name: Given
    ) -> ModelExplanation:
        """The steps of a run: what was fused into them, their plans, estimates and memory.

        Args:
            given, by_name: inputs by name, each a shape or an array. With all extents that steps
                depend on, steps on a CPU have plans and estimates, which are arithmetic. With
                arrays for all inputs, the steps are also measured. Without anything, the steps
                alone.

        Returns:
            What shows itself in a terminal and in a notebook; `.save("plan.html")` writes a page.

        Raises:
            InputError: unknown names, or another number of axes.
            ShapeError: extents that contradict the model or each other, or that are negative.
        """
        inputs = {**(given or {}), **by_name}
        found = self.variants and self.variants.of(_shapes(inputs))
        assert isinstance(found, Model | None)
        return (found or self)._explained(inputs)

    def _explained(self, inputs: Mapping[str, Given]) -> ModelExplanation:
        """Like `explain`, of this model whatever the shapes."""
        values = [v for v in self._graph.inputs if v.name in inputs]
        unknown = inputs.keys() - {v.name for v in values}
        if unknown:
            known = ", ".join(v.name for v in self._graph.inputs)
            raise InputError(f"no input {', '.join(sorted(unknown))}; there are {known}")
        shapes = [_shape(v.name, inputs[v.name], v.rank) for v in values]
        extents = bind(replace(self._graph, inputs=tuple(values)), shapes)
        seconds = memory = None
        if len(values) == len(self._graph.inputs) and all(map(_is_array, inputs.values())):
            seconds, memory = self.step_seconds(inputs), self.memory(inputs)
        title = "model"
        if shapes:
            named = zip(values, shapes, strict=True)
            title += ", " + ", ".join(f"{v.name}={'x'.join(map(str, s))}" for v, s in named)
        # By name: most models are not explained.
        found: ModelExplanation = import_module("ftuner.report.model").explain_model(
            self.programs, extents, self._machine(), seconds, memory, self.weights_bytes, title
        )
        return replace(
            found, appended=self.appended, copied=self.copied, ragged=self.ragged,
            padding_kept=self.padding_kept,
        )  # fmt: skip

    def _machine(self) -> Machine | None:
        """What estimates are made for; None on a GPU, whose steps have none."""
        backend = self._backend
        if not isinstance(backend, CpuBackend):
            return None
        hardware = backend.hardware
        # The hardware model has no estimates for more threads than cores.
        return Machine(hardware, backend.kernels.isa, min(self.threads, hardware.cores))


class ModuleModel(Model):
    """A compiled PyTorch module: call it as the module, with tensors in any of the structures that
    it takes. `inputs`, `outputs`, `run` and `explain` have the tensors in these by names."""

    def __init__(
        self, graph: Graph, backend: Backend, options: Options, calling: Calling,
        variants: Variants[model.Model] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(graph, backend, options, variants)
        self.calling = calling

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Run the module; returns what it returns. Buffers and arguments that the module updates
        are updated.

        Raises:
            InputError: other arguments than the module was compiled for.
            Else as `run`.
        """
        feeds = self.calling.feeds(args, keywords)
        outputs = self._ran(feeds)
        ran = self
        if self.variants is not None and self.variants.used:
            ran = self._fitting(feeds)  # type: ignore[assignment]
        return ran.calling.returned(outputs, feeds)


class SpecializedModel(specialization.SpecializedModel, Model):
    """A model whose graph depends on numbers that are known only at run time. It explains the model
    for the numbers in arrays, if all inputs are given; else the model of the last run."""

    def _explained(self, inputs: Mapping[str, Given]) -> ModelExplanation:
        if inputs.keys() == {t.name for t in self.inputs} and all(map(_is_array, inputs.values())):
            found, sizes = self._chosen(inputs, self._coming_key())
            inputs = {**{name: np.asarray(n) for name, n in sizes.items()}, **inputs}
        else:
            found = self._current
        assert isinstance(found, Model)
        return found.explain(inputs)


class UnrankedModel(chosen_model.UnrankedModel, Model):
    """A model with inputs whose number of axes the file does not say. It explains the model for the
    shapes that are given; without any, that of the last run."""

    def _explained(self, inputs: Mapping[str, Given]) -> ModelExplanation:
        found = (self._ranked.of(_shapes(inputs)) if inputs else None) or self._current
        assert isinstance(found, Model)
        return found.explain(inputs)


def _shapes(inputs: Mapping[str, Given]) -> dict[str, tuple[int, ...]]:
    return {name: shape_of(name, x) for name, x in inputs.items()}


def _is_array(given: Given) -> bool:
    return hasattr(given, "shape")


def _shape(name: str, given: Given, rank: int) -> tuple[int, ...]:
    extents = shape_of(name, given)
    if rank == 0 and prod(extents) == 1:
        return ()
    if len(extents) != rank:
        raise InputError(
            f"input {name} was given {extents}; expected {count(rank, 'axis', 'axes')}"
        )
    return extents
