"""The tests of operators that ONNX comes with, as cases for an importer.

Each is a model of one operator (or of what it expands to) with inputs and outputs. A case is run as
it is, and with a symbol for every extent of its inputs, by references and compiled. Inputs whose
values decide shapes become constants where the importer says so, or stay inputs as they come.
`python -m tests.frontends.node_cases` prints the counts.
"""

import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tests.conftest import THOROUGH
from tests.frontends.onnx_models import compiled

from ftuner.core.dtype import HALF_DTYPES
from ftuner.errors import GraphError, UnsupportedOperatorError
from ftuner.frontends.onnx.importer import Imported, import_model, import_record, read_model
from ftuner.graph.arrays import held_in
from ftuner.graph.ir import Graph, RandomKey
from ftuner.graph.specialization import Answer, RunTimeNumberError, answered, sized
from ftuner.runtime.reference import run_reference

CORE_SHARE = 5
ROUNDINGS = 4
"""Of half precision, or of a sum, by which results may differ."""
UNIT_ROUNDOFF = 2.0**-24
"""Of float32."""
RUN_KEY = np.array([1, 0], np.uint64)
"""Of the random numbers of a case."""
PASSED, WRONG = "passed", "wrong"
UNSUPPORTED_DTYPE = "dtype"
UNSUPPORTED_OPERATOR = "operator"
UNSUPPORTED_SHAPE = "data-dependent shape"


RANDOM = ("test_bernoulli", "test_training_dropout")
"""What begins the names of cases whose outputs are numbers of NumPy's generator, or whether a drawn
one is less than another: they are left out. `tests/frontends/test_onnx_random_numbers.py` has these
operators."""


@dataclass(frozen=True, eq=False)
class Case:
    """A model with inputs and what it gives for them."""

    name: str
    model: Any
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    rtol: float
    atol: float

    @property
    def operator(self) -> str:
        """What the case is about: the one operator, else what its name says."""
        nodes = self.model.graph.node
        return str(nodes[0].op_type) if len(nodes) == 1 else f"{self.name} (expanded)"


@dataclass(frozen=True)
class Outcome:
    """What became of a case: one of the words above, and why."""

    kind: str
    why: str = ""
    fixed: tuple[int, ...] = ()
    """Inputs that had to be constants."""


@cache
def cases() -> tuple[Case, ...]:
    """All cases of single operators."""
    with warnings.catch_warnings():
        # Some cases compute infinities on purpose.
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        loaded = load_model_tests(kind="node")
    return tuple(
        Case(
            test.name,
            test.model,
            tuple(map(_array, inputs)),
            tuple(map(_array, outputs)),
            test.rtol,
            test.atol,
        )
        for test in loaded
        if not test.name.startswith(RANDOM)
        for inputs, outputs in (test.data_sets or [])[:1]
    )


def parameters(every: int = 1, expanded: int = 1) -> list[Any]:
    """Returns cases as parameters of a test: the first one of each operator, and every `every`th
    after it; of operators written out by others, every `expanded`th; all of them where
    `--every-combination` is given. The core has every `CORE_SHARE`th of these; the others are
    `full`."""
    if THOROUGH in os.environ:
        every = expanded = 1
    earlier: Counter[str] = Counter()
    found = []
    for case in cases():
        # Expanded cases are of the operator that their name begins with.
        single = len(case.model.graph.node) == 1
        subject = case.operator if single else case.name.split("_")[1]
        chosen, skipped = divmod(earlier[subject], every if single else expanded)
        earlier[subject] += 1
        if not skipped:
            marks = [pytest.mark.full] if chosen % CORE_SHARE else []
            found.append(pytest.param(case, id=case.name, marks=marks))
    return found


def _array(value: Any) -> Any:
    """A tensor as an array; what is no tensor as it is."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, (np.ndarray, np.generic)) else value


@cache
def symbolic(case: Case) -> Case:
    """The case with inputs whose extents the model does not name."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for number, value in enumerate(model.graph.input):
        dims = list(value.type.tensor_type.shape.dim)
        if case.operator in ("GatherND", "ScatterND") and number == 1:
            # It decides how many axes the result has.
            dims.pop()
        if case.operator in ("DFT", "STFT") and number == 0:
            # It decides whether numbers are complex.
            dims.pop()
        for dim in dims:
            dim.Clear()
    return Case(case.name, model, case.inputs, case.outputs, case.rtol, case.atol)


def _with_constants(model: Any, inputs: tuple[Any, ...], fixed: set[int]) -> Any:
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for number in sorted(fixed):
        name = model.graph.input[number].name
        changed.graph.initializer.append(numpy_helper.from_array(np.asarray(inputs[number]), name))
    return changed


def _candidates(case: Case) -> Iterator[set[int]]:
    """Sets of inputs that may have to be constants: none, small integers, all that is small."""
    yield set()
    small = {i for i, x in enumerate(case.inputs) if isinstance(x, np.ndarray) and x.size <= 64}
    yield {i for i in small if case.inputs[i].dtype in (np.int64, np.int32) and i > 0}
    yield {i for i in small if i > 0}
    yield small


Execute = Callable[[Graph, Sequence[Any]], list[Any]]
"""What runs a graph: the NumPy references, or compiled code."""


@cache
def run(case: Case, execute: Execute = run_reference, as_it_comes: bool = False) -> Outcome:
    """Import a case, and compare what its graph gives. `as_it_comes`: all inputs stay inputs."""
    outcome = Outcome(UNSUPPORTED_SHAPE)
    for fixed in [set[int]()] if as_it_comes else _candidates(case):
        model = _with_constants(case.model, case.inputs, fixed)
        given = [x for i, x in enumerate(case.inputs) if i not in fixed]
        try:
            if as_it_comes:
                imported, given = _resolved(model, given, execute)
            else:
                imported = import_model(model)
        except UnsupportedOperatorError as error:
            if re.search(r"type \S+ is not supported|bits are not supported", str(error)):
                return Outcome(UNSUPPORTED_DTYPE, str(error))
            kind = UNSUPPORTED_OPERATOR if "not supported" in str(error) else UNSUPPORTED_SHAPE
            outcome = Outcome(kind, str(error))
            if kind == UNSUPPORTED_OPERATOR:
                return outcome
            continue
        except GraphError as error:
            return Outcome(WRONG, f"{type(error).__name__}: {error}")
        except Exception as error:  # Whatever else it is, it is wrong.
            return Outcome(WRONG, f"{type(error).__name__}: {error}")
        try:
            why = _difference(case, imported, given, execute)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        return Outcome(WRONG if why else PASSED, why, tuple(sorted(fixed)))
    return outcome


def _resolved(model: Any, given: list[Any], execute: Execute) -> tuple[Imported, list[Any]]:
    """The graph for the numbers in some inputs, and its operands."""
    record, answers = read_model(model), list[Answer]()
    while True:
        try:
            return import_record(record, answers), given
        except RunTimeNumberError as need:
            (found,) = execute(need.computed(), given)
            answer, sizes = answered(need.value.name, need.exact, np.asarray(found))
            answers.append(answer)
            given = [*given, *map(sized, sizes)]


def _difference(case: Case, imported: Imported, given: Sequence[Any], execute: Execute) -> str:
    draws = any(isinstance(v, RandomKey) for v in imported.graph.inputs)
    results = execute(imported.graph, [*given, *([RUN_KEY] if draws else [])])
    if len(results) != len(case.outputs):
        return f"{len(results)} outputs, not {len(case.outputs)}"
    for name, result, wanted in zip(imported.outputs, results, case.outputs, strict=True):
        rtol, atol = case.rtol, case.atol
        half = HALF_DTYPES.get(wanted.dtype.name)
        if half is not None:
            # ONNX's reference rounds each step, ours what is kept.
            rtol = max(rtol, ROUNDINGS * half.unit_roundoff)
            atol = max(atol, half.unit_roundoff)
            # References hold bfloat16 in float32, compiled code does not.
            result, wanted = (x.astype(held_in(half)) for x in (result, wanted))
        if case.operator in ("DFT", "STFT"):
            # Sums that cancel are as exact as the largest of them.
            atol = max(atol, ROUNDINGS * UNIT_ROUNDOFF * float(np.abs(wanted).max()))
        if result.shape != wanted.shape or result.dtype != wanted.dtype:
            return f"{name} is {result.dtype}{result.shape}, not {wanted.dtype}{wanted.shape}"
        if wanted.dtype == object:
            if result.tolist() != wanted.tolist():
                return f"{name} is {result!r:.200}, not {wanted!r:.200}"
            continue
        # Random numbers are others than those of ONNX's reference.
        if not draws and not np.allclose(result, wanted, rtol, atol, equal_nan=True):
            return f"{name} is {result!r:.200}, not {wanted!r:.200}"
    return ""


def main() -> None:
    """Print what became of all cases."""
    for title, change, comes in (
        ("as they are", lambda c: c, False),
        ("with symbols", symbolic, False),
        ("as they come", lambda c: c, True),
        ("as they come, with symbols", symbolic, True),
    ):
        outcomes = {case: run(change(case), compiled, comes) for case in cases()}
        counts = Counter(outcome.kind for outcome in outcomes.values())
        print(f"{title}: {', '.join(f'{kind} {n}' for kind, n in counts.most_common())}")
        for kind in (UNSUPPORTED_OPERATOR, UNSUPPORTED_DTYPE, UNSUPPORTED_SHAPE):
            operators = Counter(c.operator for c, o in outcomes.items() if o.kind == kind)
            print(f"  {kind}: {', '.join(f'{op} {n}' for op, n in operators.most_common(200))}")
        for case, outcome in outcomes.items():
            if outcome.kind in (WRONG, UNSUPPORTED_SHAPE):
                print(f"  {outcome.kind}: {case.name}: {outcome.why}")


if __name__ == "__main__":
    main()
