"""Operators that users define: `ftuner.operator`; see docs/own_operators.md."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from inspect import Parameter
from typing import Any

import numpy as np
from numpy import ndarray

from ftuner.core.dim import maximum
from ftuner.core.dtype import ELEMENT_DTYPES
from ftuner.define.binding import Operands, expect_equal
from ftuner.define.bounds import Bounds
from ftuner.define.groups import groups
from ftuner.define.meaning import meaning
from ftuner.define.signature import Signature, parsed
from ftuner.define.tracing import Definition, parameters, traced
from ftuner.define.values import values
from ftuner.errors import (
    ConfigurationError,
    DefinitionError,
    DTypeError,
    OperandError,
    ScheduleError,
)
from ftuner.frontends.onnx.signatures import onnx
from ftuner.graph.builder import Builder
from ftuner.graph.checks import require
from ftuner.graph.ir import Value, building
from ftuner.inference import Model, compile
from ftuner.runtime.devices import CPU
from ftuner.runtime.ops.operands import on_gpu
from ftuner.tasks.recurrences import scan
from ftuner.tasks.step import OPERATOR as SCHEDULED

_Given = tuple[tuple[str, type, Any], ...]
"""Attributes: their names, types and values. 1, 1.0 and True are equal in Python."""
_ATTRIBUTES = ("int", "float", "bool", "str", "tuple[int, ...]", "tuple[float, ...]")
"""What attributes may be annotated as."""


def operator(signature: str) -> Callable[[Callable[..., Any]], Operator]:
    """Define an operator by a Python function, which is run once, on symbols.

        @ftuner.operator("(m, k), (k, n), (n) -> (m, n)")
        def gated(a, b, bias):
            return lambda i, j: tanh(sum(a[i, k] * b[k, j] for k in axis) + bias[j])

    Args:
        signature: the types and extents of operands and results, as NumPy's generalised functions
            have them: see `ftuner.define.signature`.

    Returns:
        A decorator, which makes an `Operator`. The function takes the operands and, after `*`,
        attributes: numbers and texts. It returns, for each result, a function from indices to the
        element there, written in Python's operators and the functions of `ftuner.define`.

    Raises:
        DefinitionError: the signature or the definition is malformed, or reads outside of an
            operand whatever the extents; the message begins with the file and line.
    """
    frame = sys._getframe(1)
    where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    given = parsed(signature, where)

    def defined(function: Callable[..., Any]) -> Operator:
        code = function.__code__
        return Operator(function, given, f"{code.co_filename}:{code.co_firstlineno}")

    return defined


@dataclass
class _Made:
    """Holds what is compiled for one schedule of an operator."""

    models: dict[object, Model] = field(default_factory=dict)
    known: Any = None
    """The call cache of calls without attributes; None where there is none."""


class Operator:
    """An operator that is defined by a function. Call it with arrays, tensors, or values of a
    graph."""

    def __init__(self, function: Callable[..., Any], signature: Signature, where: str) -> None:
        self._function, self.signature, self._where = function, signature, where
        self.__name__, self.__doc__ = function.__name__, function.__doc__
        self.__module__, self.__qualname__ = function.__module__, function.__qualname__
        self.attributes = parameters(function, signature, where)
        self._definitions: dict[_Given, Definition] = {}
        self._made = _Made()
        names = [*inspect.signature(function).parameters][: len(signature.operands)]
        self._operands = Operands(self.__name__, names, signature)
        self._schedule: Any = None
        self._defaults: _Given | None = None
        if all(p.default is not p.empty for p in self.attributes):
            self._defaults = self._given({})
            self._traced(self._defaults)

    def __repr__(self) -> str:
        return f"<operator {self.__name__}{self.signature.text!r}>"

    def __call__(self, *operands: Any, **attributes: Any) -> Any:
        """The results: one, or a tuple of several.

        Args:
            operands: NumPy arrays or torch tensors of any strides, of the signature's types, all on
                one device, which are computed at once; or values of a graph, to which the nodes of
                the operator are added, and are fused with what stands around.
            attributes: those of the function.

        Raises:
            ShapeError: extents that do not fit the signature, or with which an operand would be
                read outside of its axes.
            DTypeError: element types that do not fit the signature.
            OperandError: an operand is not an array; too few or too many are given.
            IndexRangeError: an index in the data is out of range.
            DefinitionError: an attribute is missing or unknown.
        """
        if Value in map(type, operands):
            found: list[Any] = [*self._values(operands, attributes)]
        else:
            made, known = self._made, None
            if not attributes and made.known is not None:
                known = made.known.call(*operands)
                if known is not None and known is not False:
                    return known
            model = self._model(made.models, operands, attributes)
            names = self._operands.names
            found = model.run(dict(zip(names, operands, strict=True)))
            if known is False or (made.known is None and not attributes):
                made.known = model.remembered(made.known, operands, found)
        return found[0] if len(found) == 1 else tuple(found)

    def compiled(self, *operands: Any, **attributes: Any) -> Model:
        """The model that runs calls with such operands: of their dtypes and ranks, for any extents.
        It is made at the first of these calls; `explain` shows its steps. Raises as a call does."""
        return self._model(self._made.models, operands, attributes)

    def _model(
        self, models: dict[object, Model], operands: Sequence[Any], attributes: Mapping[str, Any]
    ) -> Model:
        """`compiled`, one of `models`."""
        self._expect_count(operands)
        forms, device = list[object](), CPU
        for one, x in zip(self.signature.operands, operands, strict=True):
            try:
                forms.append(x.dtype)
                shape = x.shape
            except AttributeError:
                name = self._operands.names[len(forms) // 2]
                what = f"operand {name} of {self.__name__} is a {type(x).__name__}"
                raise OperandError(f"{what}; expected an array or a tensor") from None
            rank = len(shape)
            # Of axes that broadcast, those of one element are compiled as such.
            lead = shape[: rank - len(one.shape)] if one.batched else ()
            forms.append(tuple(n == 1 for n in lead) if 1 in lead else rank)
            if type(x) is not ndarray and on_gpu(x):
                device = str(x.device)
        given = self._given(attributes)
        key = (given, device, *forms)
        found = models.get(key)
        if found is None:
            found = models[key] = self._compiled(operands, given, device)
        return found

    def _compiled(self, operands: Sequence[Any], given: _Given, device: str) -> Model:
        builder, inputs = Builder(), list[Value]()
        for number, (name, x) in enumerate(zip(self._operands.names, operands, strict=True)):
            dtype = ELEMENT_DTYPES.get(str(x.dtype).removeprefix("torch."))
            if dtype is None:
                raise DTypeError(f"operand {name} of {self.__name__} has the dtype {x.dtype}")
            inputs.append(builder.input(name, dtype, self._operands.symbolic(number, x.shape)))
        with builder.writing():
            results = self._written(inputs, given)
        names = ["result"] if len(results) == 1 else [f"result{n}" for n in range(len(results))]
        graph = builder.graph(inputs, list(zip(names, results, strict=True)))
        return compile(graph, device=device, progress=lambda *_: None)

    def reference(self, *arrays: Any, **attributes: Any) -> Any:
        """The results by NumPy, floats in float64: what the definition means, element by element.
        It needs memory for all indices of a reduction at once. Raises as a call does."""
        self._expect_count(arrays)
        given = [np.asarray(x) for x in arrays]
        definition = self._traced(self._given(attributes))
        dtypes = [ELEMENT_DTYPES.get(x.dtype.name) for x in given]
        binding = self._operands.binding(dtypes, [x.shape for x in given], expect_equal)
        found = meaning(definition, given, binding)
        return found[0] if len(found) == 1 else tuple(found)

    def use(self, schedule: Any) -> None:
        """Compute the operator by a schedule (`ftuner.schedule(definition=operator)`) on CPUs,
        where all operands have the dtype of the schedule.

        Raises:
            ScheduleError: the schedule has other operands or results, or the operator has
                attributes, or axes `...`.
        """
        given = self.signature
        types = [(len(one.shape), False) for one in given.operands]
        types += [(len(one.shape), True) for one in given.results]
        wanted = [(len(array.shape), array.is_output) for array in schedule.arrays]
        batched = any(one.batched for one in given.operands)
        if self.attributes or batched or types != wanted:
            what = f"{self._where}: {self.__name__}{given.text!r} is scheduled by {schedule!r}"
            expected = "the same operands, results and axes, none of them '...', and no attributes"
            raise ScheduleError(f"{what}; expected {expected}")
        # Calls that run meanwhile go on with what they have.
        self._schedule, self._made = schedule, _Made()

    # Definitions.

    def _given(self, attributes: Mapping[str, Any]) -> _Given:
        """All attributes, with their defaults, as a key."""
        if not attributes and self._defaults is not None:
            return self._defaults
        whole = {**{p.name: p.default for p in self.attributes}, **attributes}
        unknown = sorted({*attributes} - {p.name for p in self.attributes})
        missing = [name for name, value in whole.items() if value is Parameter.empty]
        if unknown or missing:
            what = f"no attribute {unknown[0]}" if unknown else f"attribute {missing[0]} is missing"
            raise DefinitionError(f"{self._where}: {self.__name__}: {what}")
        frozen = {k: tuple(v) if isinstance(v, list) else v for k, v in whole.items()}
        return tuple((name, type(value), value) for name, value in frozen.items())

    def _traced(self, given: _Given) -> Definition:
        found = self._definitions.get(given)
        if found is None:
            named = {name: value for name, _, value in given}
            found = traced(self._function, self.signature, named, self._where)
            groups(found.recurrences, self._operands.extents)
            for need in Bounds(found, self._operands.extents).needs:
                if isinstance(need.dim, int) and need.dim < 0:
                    raise DefinitionError(need.text)
            self._definitions[given] = found
        return found

    def _values(self, operands: Sequence[Any], attributes: Mapping[str, Any]) -> list[Value]:
        self._expect_count(operands)
        for name, x in zip(self._operands.names, operands, strict=True):
            if not isinstance(x, Value):
                what = f"operand {name} of {self.__name__} is a {type(x).__name__}"
                raise OperandError(f"{what}; expected a value of a graph, as the others are")
        return self._written(operands, self._given(attributes))

    def _written(self, operands: Sequence[Value], given: _Given) -> list[Value]:
        """The results as values, in the builder that is being written to."""
        schedule = self._schedule
        if schedule is not None and all(x.dtype == schedule.dtype for x in operands):
            self._operands.bound([x.shape for x in operands], require)
            extents = (*schedule.extents_of([x.shape for x in operands]).values(),)
            return [*building().add_many(SCHEDULED, *operands, schedule=schedule, extents=extents)]
        return self.defined(operands, given)

    def defined(self, operands: Sequence[Value], given: _Given = ()) -> list[Value]:
        """The results as values by the definition, whatever the schedule."""
        definition = self._traced(given)
        shapes = [x.shape for x in operands]
        binding = self._operands.binding([x.dtype for x in operands], shapes, require)
        bounds = Bounds(definition, binding.names)
        for need in bounds.needs:
            require(need.count * maximum(-need.dim, 0), 0, need.text)
        return values(definition, operands, bounds, binding, scan)

    def _expect_count(self, operands: Sequence[object]) -> None:
        names = self._operands.names
        if len(operands) != len(names):
            what = f"{self.__name__} takes {', '.join(names)}"
            raise OperandError(f"{what}; {len(operands)} are given")

    # Elsewhere.

    @cached_property
    def importer(self) -> Callable[..., Any]:
        """The importer of nodes of ONNX files; see `frontends.onnx.signatures`."""

        def imported(*operands: Value, **attributes: Any) -> Value | list[Value]:
            found = self._values(operands, attributes)
            return found[0] if len(found) == 1 else found

        found = [Parameter(name, Parameter.POSITIONAL_ONLY, annotation="Value")
                 for name in self._operands.names]  # fmt: skip
        for p in self.attributes:
            kind = p.annotation
            if kind is p.empty:
                kind = type(p.default) if p.default is not p.empty else "nothing"
            name = kind if isinstance(kind, str) else inspect.formatannotation(kind)
            if name not in _ATTRIBUTES:
                what = f"attribute {p.name} of {self.__name__} is annotated as {name}"
                raise ConfigurationError(f"{what}; a file needs one of {', '.join(_ATTRIBUTES)}")
            found.append(p.replace(annotation=name))
        imported.__signature__ = inspect.Signature(found)  # type: ignore[attr-defined]
        imported.__module__, imported.__qualname__ = self.__module__, self.__qualname__
        return imported

    def torch(self, name: str) -> Any:
        """The operator as one of PyTorch, `torch.ops.namespace.name`, which `torch.export`,
        `torch.compile` and `ftuner.compile` know: `torch.compile(backend="ftuner")` and
        `ftuner.compile` fuse it, others call it as a whole. It has no gradient.

        Args:
            name: `namespace::name`.

        Raises:
            ConfigurationError: the name is taken, or is no such name.
        """
        return import_module("ftuner.torch.operators").registered(self, name)


def register(domain: str, name: str, operator: Operator, replace: bool = False) -> None:
    """Have ONNX files use an operator as `domain::name`. Nodes give its operands as inputs, and its
    attributes by name.

    Args:
        domain: a domain of your own. Operators of ONNX and of ftuner cannot be replaced.
        replace: whether an operator that was registered before is replaced, as a notebook wants
            it whose cells run again.

    Raises:
        ConfigurationError: the name is taken; `operator` is none; an attribute has a type that
            files do not have.
    """
    importer = getattr(operator, "importer", None)
    if importer is None:
        what = f"{type(operator).__name__} is no operator"
        raise ConfigurationError(f"{what}; make one with @ftuner.operator(...)")
    onnx(name, domain=domain, replace=replace)(importer)
