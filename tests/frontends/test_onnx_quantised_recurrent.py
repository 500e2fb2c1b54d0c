"""DynamicQuantizeLSTM gives what its specification does in float64, with products of integers, on
every ISA, by each way of multiplying levels, alone and in a team."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.conftest import CORE_ISAS
from tests.frontends.onnx_models import model_of

from ftuner.core.dtype import INT16, UINT8
from ftuner.frontends.onnx.importer import import_model
from ftuner.frontends.onnx.records import MICROSOFT
from ftuner.graph.passes.pipeline import optimised
from ftuner.hardware.model import Isa
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model
from ftuner.runtime.reference import run_reference
from ftuner.schedules.recurrence import cpu_binding
from ftuner.schedules.recurrence.cpu_plan import RecurrenceCut

Arrays = Mapping[str, Any]
NAMES = ("X", "W", "R", "B", "lengths", "initial_h", "initial_c", "P", "ws", "wz", "rs", "rz")
RESULTS = ("Y", "Y_h", "Y_c")
LEAST_MARGIN = 1e-4
"""How far from a tie each level is, before it is rounded: float32 and float64 round alike."""


class Case(NamedTuple):
    """A layer; `dtype` and `zero` of its weights."""

    direction: str
    length: int
    batch: int
    width: int
    hidden: int
    dtype: str = "int8"
    zero: int = 0
    per_column: bool = False
    optional: tuple[str, ...] = ("B",)

    @property
    def backwards(self) -> tuple[bool, ...]:
        both = {"forward": (False,), "reverse": (True,)}
        return both.get(self.direction, (False, True))

    def operands(self, seed: int) -> dict[str, Any]:
        rng, d, h = np.random.default_rng(seed), len(self.backwards), self.hidden
        info = np.iinfo(self.dtype)

        def floats(*shape: int, size: float = 1.0) -> Any:
            return (size * rng.standard_normal(shape)).astype(np.float32)

        def weight(k: int) -> Any:
            return rng.integers(info.min, info.max, (d, k, 4 * h), self.dtype, endpoint=True)

        columns = (d, 4 * h) if self.per_column else (d,)
        found = {
            "X": floats(self.length, self.batch, self.width), "B": floats(d, 8 * h, size=0.2),
            "initial_h": floats(d, self.batch, h), "initial_c": floats(d, self.batch, h),
            "P": floats(d, 3 * h), "W": weight(self.width), "R": weight(h),
            "lengths": rng.integers(0, self.length + 1, self.batch, np.int32),
        }  # fmt: skip
        for name, k in (("w", self.width), ("r", h)):
            found[f"{name}s"] = rng.uniform(0.5, 1.5, columns).astype(np.float32) / (128 * k**0.5)
            off = rng.integers(-9, 10, columns) if self.per_column and self.zero else 0
            found[f"{name}z"] = np.broadcast_to(self.zero + off, columns).astype(self.dtype)
        kept = {"X", "W", "R", "ws", "wz", "rs", "rz", *self.optional}
        return {name: found[name] for name in NAMES if name in kept}

    def model(self, operands: Arrays) -> onnx.ModelProto:
        names = [name if name in operands else "" for name in NAMES]
        node = helper.make_node(
            "DynamicQuantizeLSTM", names, RESULTS, domain=MICROSOFT, hidden_size=self.hidden,
            direction=self.direction,
        )  # fmt: skip
        types = {"X": ("float32", ["steps", "batch", self.width])}
        return model_of([node], types, RESULTS, {n: v for n, v in operands.items() if n != "X"})


class Truth:
    """The results in float64, and the least distance of a level from a tie."""

    def __init__(self, case: Case, operands: Arrays) -> None:
        self.margin, self._case, self._operands = 0.5, case, operands
        d = len(case.backwards)
        ys, hs, cs = zip(*(self._direction(n, case.backwards[n]) for n in range(d)), strict=True)
        self.results = np.stack(ys, 1), np.stack(hs), np.stack(cs)

    def _levels(self, values: Any) -> tuple[Any, float, float]:
        """The levels of values, their scale and their zero point: DynamicQuantizeLinear."""
        low, high = min(values.min(initial=0), 0), max(values.max(initial=0), 0)
        scale = (high - low) / 255 or 1.0
        exact = np.append(values.ravel(), -low) / scale
        ties = np.abs(exact - np.floor(exact) - 0.5)
        self.margin = min(self.margin, ties.min(initial=0.5))
        zero = np.clip(np.rint(-low / scale), 0, 255)
        return np.clip(np.rint(values / scale) + zero, 0, 255), scale, zero

    def _product(self, values: Any, weight: str, number: int) -> Any:
        """Rows times a weight, as exact sums of integers, and scaled."""
        levels, scale, zero = self._levels(values)
        name, given = weight.lower(), self._operands
        b = given[weight][number].astype(np.int64) - given[f"{name}z"][number].astype(np.int64)
        sums = (levels - zero).astype(np.int64) @ b
        return sums * (scale * given[f"{name}s"][number].astype(np.float64))

    def _direction(self, number: int, backwards: bool) -> tuple[Any, Any, Any]:
        case, given = self._case, self._operands
        shape = case.batch, case.hidden
        of_bias = given["B"][number].astype(np.float64).reshape(2, -1).sum(0)
        holes = given["P"][number].astype(np.float64) if "P" in given else np.zeros(3 * case.hidden)
        states = [
            given[name][number].astype(np.float64) if name in given else np.zeros(shape)
            for name in ("initial_h", "initial_c")
        ]
        lengths = given.get("lengths", np.full(case.batch, case.length))
        h, c = (np.where(lengths[:, None] > 0, state, 0) for state in states)
        parts = self._product(given["X"].astype(np.float64), "W", number) + of_bias
        y = np.zeros((case.length, *shape))
        for t in reversed(range(case.length)) if backwards else range(case.length):
            i, o, f, g = np.split(parts[t] + self._product(h, "R", number), 4, 1)
            of_i, of_o, of_f = np.split(holes, 3)
            goes_on = t < lengths[:, None]
            new = _sigmoid(f + of_f * c) * c + _sigmoid(i + of_i * c) * np.tanh(g)
            c = np.where(goes_on, new, c)
            h = np.where(goes_on, _sigmoid(o + of_o * new) * np.tanh(new), h)
            y[t] = np.where(goes_on, h, 0)
        return y, h, c


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def without_ties(case: Case) -> tuple[dict[str, Any], Truth]:
    """Operands of which no level is near a tie, and the results."""
    for seed in range(40):
        operands = case.operands(seed)
        truth = Truth(case, operands)
        if truth.margin > LEAST_MARGIN:
            return operands, truth
    raise AssertionError(f"every seed has a level near a tie: {case}")


ALL = ("B", "lengths", "initial_h", "initial_c", "P")
CASES = (
    Case("forward", 3, 1, 1, 1), Case("reverse", 4, 5, 7, 17, "uint8", 128, True, ALL),
    Case("bidirectional", 4, 3, 5, 66, "int8", 5, True, ("B", "lengths", "P")),
    Case("bidirectional", 3, 2, 9, 128, "int8", 0, False, ("B", "initial_h", "initial_c")),
    # Levels less the zero point do not fit 8 bits.
    Case("forward", 3, 4, 6, 13, "uint8", 60, False, ("B",)),
)  # fmt: skip


@pytest.mark.parametrize("words", [True, False], ids=["words", "pairs"])
@pytest.mark.parametrize("isa", CORE_ISAS)
def test_what_the_specification_gives(
    isa: str, words: bool, backend_of: Callable[[str], CpuBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = backend_of(isa)
    if words and UINT8 not in backend.hardware.isa(isa).narrow_dtypes:
        pytest.skip("no instruction multiplies bytes")
    if not words:
        monkeypatch.setattr(Isa, "narrow_dtypes", frozenset())
    used = set()
    multiplied = cpu_binding._multiplied
    monkeypatch.setattr(
        cpu_binding, "_multiplied", lambda *given: [used.add(x := multiplied(*given)), x][1]
    )
    for case in CASES:
        operands, truth = without_ties(case)
        graph = import_model(case.model(operands)).graph
        x = operands["X"]
        fast = optimised(graph, halves=False, words=(UINT8,) if words else ())
        results = [run_reference(graph, [x])]
        for threads in (1, 2):
            with monkeypatch.context() as patch:
                if threads > 1:
                    patch.setattr(cpu_binding, "recurrence_cut", _team)
                results.append(Model(fast, backend, Options(threads)).run({"X": x}))
        for found in results:
            for one, wanted in zip(found, truth.results, strict=True):
                np.testing.assert_allclose(one, wanted, 1e-4, 2e-5, err_msg=str(case))
    assert (UINT8 if words else INT16) in used


def _team(*arguments: Any) -> RecurrenceCut:
    *_, rows, _most = arguments
    return RecurrenceCut(rows, 2)


def test_a_large_weight_stays_narrow() -> None:
    """The importer does not fold what is made of large constants: the weight is not among that."""
    case = Case("forward", 1, 1, 8, 256)
    graph = import_model(case.model(case.operands(0))).graph
    (node,) = [node for node in graph.nodes if node.op == "recurrence"]
    assert node.inputs[1].dtype.name == "int8"
    assert node.inputs[1].constant is not None
