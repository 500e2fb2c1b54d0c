"""For each operator, cases whose dtypes and layouts are open."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from tests.codegen.llvm.nest_cases import CASES
from tests.codegen.llvm.nest_running import A, Array, B, Bindings, C, Case, Make, below, values_of

from ftuner.core.attention_softmax import AttentionSoftmax
from ftuner.core.dim import Dim, Shape, minimum
from ftuner.core.dtype import TENSOR_DTYPES, DType
from ftuner.core.evaluation import evaluate
from ftuner.core.recurrence import Activation, Cell
from ftuner.graph.ops.layout import _PAD_MODES
from ftuner.graph.ops.reduction import KINDS
from ftuner.graph.ops.scattering import _COMBINE
from ftuner.graph.ops.windows import _REDUCED, ARGMAX

FLAGS = (False, True)
VARIANTS: Mapping[str, Mapping[str, tuple[object, ...]]] = {
    "reduce": {"kind": tuple(KINDS)},
    "arg_reduce": {"kind": ("argmax", "argmin"), "last": FLAGS},
    "cumulative_sum": {"exclusive": FLAGS, "reverse": FLAGS},
    "cumulative_product": {"exclusive": FLAGS, "reverse": FLAGS},
    "softmax": {"log": FLAGS},
    "norm": {"rms": FLAGS},
    "pad": {"mode": _PAD_MODES},
    "scatter_elements": {"kind": ("none", *_COMBINE)},
    "scatter_nd": {"kind": ("none", *_COMBINE)},
    "write_rows": {"circular": FLAGS},
    "cast": {"to": tuple(TENSOR_DTYPES.values())},
    "bit_cast": {"of": tuple(TENSOR_DTYPES.values()), "to": tuple(TENSOR_DTYPES.values())},
    "top_k": {"largest": FLAGS},
    "attention": {"safe": FLAGS},
    "expert_matmul": {"transposed": FLAGS},
    "suppress": {"centred": FLAGS},
    "trees": {"missing": FLAGS},
    "window_reduce": {"kind": (*_REDUCED, ARGMAX)},
}
"""Attributes that choose what code is made, and their values."""


@dataclass(frozen=True, eq=False)
class Template:
    """A case of an operator for operands of any dtypes."""

    cases: tuple[Case, ...]
    """Alike but for dtypes, and how their elements are made."""
    weights: frozenset[int] = frozenset()
    """Operands that are constants."""

    @property
    def op(self) -> str:
        return self.cases[0].op

    @property
    def attributes(self) -> Mapping[str, Any]:
        return self.cases[0].attributes

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        return tuple(shape for _, shape in self.cases[0].operands)

    def of(self, dtypes: Sequence[DType]) -> Case:
        """The case for operands of some dtypes: elements are made as for dtypes of their kinds."""
        kinds = [dtype.kind for dtype in dtypes]
        found = next((c for c in self.cases if [t.dtype.kind for t in c.types] == kinds), None)
        names = [dtype.name for dtype in dtypes]
        operands = tuple(zip(names, self.shapes, strict=True))
        return replace(found or self.cases[0], operands=operands)


def variant(op: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Those attributes that `VARIANTS` lists."""
    return {name: attributes[name] for name in VARIANTS.get(op, {}) if name in attributes}


def _of_nests() -> Iterator[Template]:
    """Of the cases that nests are tested with: the first for each variant and number of
    operands."""
    for op, cases in CASES.items():
        seen = []
        for case in cases:
            key = (len(case.operands), variant(op, case.attributes))
            if key in seen:
                continue
            seen.append(key)
            shapes = [shape for _, shape in case.operands]
            alike = [
                c for c in cases
                if [s for _, s in c.operands] == shapes and c.attributes == case.attributes
            ]  # fmt: skip
            yield Template(tuple(alike))


def _casts() -> Iterator[Template]:
    """To each dtype."""
    for to in VARIANTS["cast"]["to"]:
        yield Template(tuple(replace(case, attributes={"to": to}) for case in CASES["cast"]))


def _large(*arrays: Array, **attributes: Any) -> Array:
    """A size of results that come of adding up and multiplying a dozen small numbers."""
    return np.asarray(1e4)


def _dots(x: Array, y: Array) -> Array:
    total: Array = np.matmul(np.abs(x), np.abs(y.astype(np.float64)))
    return total


def _row_of(extent: Dim) -> Callable[[Bindings], Make]:
    """Positions along an axis, counted from its begin."""

    def made(bindings: Bindings) -> Make:
        n = evaluate(extent, bindings)
        return lambda random, shape, dtype: random.integers(0, max(n, 1), shape).astype(dtype)

    return made


def _chances(bindings: Bindings) -> Make:
    """Probabilities, of which what is computed is well determined."""
    return lambda random, shape, dtype: random.uniform(0.1, 0.9, shape).astype(dtype)


def _others() -> Iterator[Template]:
    """Of operators without a definition, and of those that finish what a copy began."""
    for kind in VARIANTS["scatter_elements"]["kind"]:
        yield Template((
            Case("scatter_elements", (("float32", (B, C)), ("int64", (A, C)), ("float32", (A, C))),
                 {"axis": 0, "kind": kind}, (values_of, below(B), values_of), size=_large),
        ))  # fmt: skip
        yield Template((
            Case("scatter_nd", (("float32", (B, C, 3)), ("int64", (A, 2)), ("float32", (A, 3))),
                 {"kind": kind}, (values_of, below(minimum(B, C)), values_of), size=_large),
        ))  # fmt: skip
    for circular in FLAGS:
        yield Template((
            Case("write_rows", (("float32", (A, B, 3)), ("int64", (A,)), ("float32", (A, 1, 3))),
                 {"axis": 1, "circular": circular}, (values_of, _row_of(B), values_of)),
        ))  # fmt: skip
    yield Template((Case("reshape", (("float32", (A, B, C)),), {"shape": (A * B, C)}),))
    yield Template((Case("concat", (("float32", (A, B)), ("float32", (A, C))), {"axis": 1}),))
    for largest in FLAGS:
        attributes = {"axis": 1, "k": minimum(B, 3), "largest": largest}
        yield Template((Case("top_k", (("float32", (A, B, C)),), attributes),))
    yield Template((Case("non_zero", (("float32", (B, C)),), {"count": "found"}),))
    yield Template((Case("extents", (("int64", (2,)),), {"counts": ("one", "other")}),))
    for axis, ordered in itertools.product((None, 0), FLAGS):
        attributes = {"axis": axis, "ordered": ordered, "count": "found"}
        yield Template((Case("unique", (("float32", (B, C)),), attributes),))
    yield Template((Case("determinant", (("float32", (A, B, B)),), {}, (), 8.0, _large),))
    for op in ("coupled_probabilities", "couple"):
        yield Template((Case(op, (("float32", (A, 3)),), {}, (_chances,)),))
    boxes = (("float32", (A, 2, C)), ("float32", (A, C, 4)))
    for centred in FLAGS:
        attributes = {
            "centred": centred, "iou_threshold": 0.2, "score_threshold": None, "limit": 3,
        }  # fmt: skip
        yield Template((Case("suppress", boxes, attributes),))
    attributes = {**attributes, "count": "kept"}
    yield Template((Case("non_max_suppression", boxes, attributes),))
    yield Template((Case("kept_boxes", (("int64", (A, B, C, 3)),), {"count": "kept"}),))
    yield Template(
        (
            Case(
                "narrow_matmul", (("float32", (A, B, 24)), ("int8", (24, 35))), {}, (), 64.0, _dots
            ),
        ),
        frozenset({1}),
    )
    yield from _attentions()
    yield from _recurrences()
    yield from _experts()
    yield from _trees()


def _attentions() -> Iterator[Template]:
    operands = tuple(
        ("float32", shape) for shape in ((A, 2, B, 8), (A, 2, 8, C), (A, 2, C, 6), (A, 1, B, C))
    )
    for masks in (0, 1):
        for causal in (None, C - B):
            softmax = AttentionSoftmax(0.5, causal, hidden=-1e4, safe=causal is None)
            yield Template((
                Case("attention", operands[: 3 + masks], vars(softmax), (), 200.0, _large_sums),
            ))  # fmt: skip


def _large_sums(*arrays: Array, **attributes: Any) -> Array:
    """A size of weighted sums of values, and of what scores change them by."""
    return np.asarray(50.0)


def _recurrences() -> Iterator[Template]:
    """With every optional operand, and with none."""
    hidden, sigmoid, tanh = 5, Activation("sigmoid"), Activation("tanh")
    lstm = Cell("lstm", (sigmoid, tanh, tanh), reverse=True, initial=True, peepholes=True,
                lengths=True)  # fmt: skip
    gru = Cell("gru", (sigmoid, tanh))
    for cell in (lstm, gru):
        columns = len(cell.gates) * hidden
        shapes: list[Shape] = [(A, B, columns), (columns, hidden)]
        operands = [("float32", shape) for shape in shapes]
        if cell is lstm:
            operands += [("float32", (B, hidden))] * 2
            operands += [("float32", (3 * hidden,)), ("int32", (B,))]
        makes = (*(values_of for _ in operands[:-1]), _lengths if cell is lstm else values_of)
        attributes = {"cell": cell}
        yield Template((
            Case("recurrence", tuple(operands), attributes, makes),
        ))  # fmt: skip


def _experts() -> Iterator[Template]:
    """Products by four experts, whose weights lie either way."""
    for transposed in FLAGS:
        weight = (4, 35, 24) if transposed else (4, 24, 35)
        shapes = [
            ("float32", (B, 24)),
            ("float32", weight),
            ("int64", (B, A)),
            ("float32", (4, 35)),
        ]
        makes = (values_of, values_of, below(4), values_of)
        attributes = {"transposed": transposed}
        yield Template((
            Case("expert_matmul", tuple(shapes), attributes, makes, 64.0, _large),
        ))  # fmt: skip


def _given(elements: Sequence[Any]) -> Callable[[Bindings], Make]:
    return lambda bindings: lambda random, shape, dtype: np.array(elements, dtype)


def _trees() -> Iterator[Template]:
    """Two trees of one split each."""
    nodes = [[0, 0, 2, -1], [2, 1, 4, -1], [0, 0, 1, 0], [0, 0, 2, 1], [0, 0, 3, 2], [0, 0, 4, 3]]
    splits = [0.1, -0.2, *[np.nan] * 4]
    makes = values_of, _given(splits), _given(nodes)
    for missing in FLAGS:
        attributes = {"trees": 2, "depth": 1, "missing": missing}
        shapes = ("float32", (A, 3)), ("float32", (6,)), ("int32", (6, 4))
        yield Template((Case("trees", shapes, attributes, makes),), frozenset({1, 2}))


def _lengths(bindings: Bindings) -> Make:
    """Lengths of sequences of up to A steps."""
    most = evaluate(A, bindings)
    return lambda random, shape, dtype: random.integers(0, most + 1, shape).astype(dtype)


def _by_operator(templates: Iterable[Template]) -> dict[str, tuple[Template, ...]]:
    found: dict[str, tuple[Template, ...]] = {}
    for template in templates:
        found[template.op] = (*found.get(template.op, ()), template)
    return found


TEMPLATES = {**_by_operator(_of_nests()), **_by_operator(_casts()), **_by_operator(_others())}
