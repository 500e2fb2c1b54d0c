"""Products by experts, against products in float64: any choice, any extents, any number of rows."""

import numpy as np
import pytest
from tests.graph.graphs import Array, Maker, S, T

from ftuner.core.dtype import FLOAT32, FLOAT64, INT32, INT64, DType
from ftuner.errors import IndexRangeError
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model
from ftuner.schedules.experts import cpu_binding as steps


class Experts:
    """A model of one product by experts, with its reference."""

    def __init__(
        self, backend: CpuBackend, experts: int, k: int, n: int, transposed: bool = False,
        biased: bool = False, dtype: DType = FLOAT32, threads: int = 1, index: DType = INT64,
    ) -> None:  # fmt: skip
        random, g = np.random.default_rng(2), Maker()
        shape = (experts, n, k) if transposed else (experts, k, n)
        self.weight = random.standard_normal(shape).astype(dtype.name)
        self.bias = random.standard_normal((experts, n)).astype(dtype.name)
        self.k, self.experts, self.dtype, self.index = k, experts, dtype, index
        operands = [g.given("x", S, k, dtype=dtype), g.constant(self.weight)]
        operands.append(g.given("index", S, T, dtype=index))
        operands += [g.constant(self.bias)] if biased else []
        y = g.add("expert_matmul", *operands, transposed=transposed, node="experts of a layer")
        self.transposed, self.biased = transposed, biased
        self.model = Model(optimised(g.made(y), halves=False), backend, Options(threads))
        assert [s.kind for s in self.model.steps][-1] == "experts"

    def check(self, index: Array) -> None:
        index = index.astype(self.index.name)
        x = np.random.default_rng(3).standard_normal((len(index), self.k)).astype(self.dtype.name)
        found = self.run(x, index)
        weight = self.weight.astype(np.float64)
        weight = weight.swapaxes(1, 2) if self.transposed else weight
        expected = np.einsum("tk,tskn->tsn", x.astype(np.float64), weight[index])
        if self.biased:
            expected = expected + self.bias[index]
        size = 1e-5 if self.dtype == FLOAT32 else 1e-12
        np.testing.assert_allclose(found, expected, rtol=size, atol=size * self.k)

    def run(self, x: Array, index: Array) -> Array:
        return self.model.run({"x": x, "index": index})[0]


@pytest.mark.each_value
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_choices(widest: CpuBackend, transposed: bool, biased: bool, threads: int) -> None:
    own = Experts(widest, 6, 33, 150, transposed, biased, threads=threads)
    random = np.random.default_rng(4)
    for tokens, slots in ((1, 1), (1, 3), (2, 2), (7, 1), (40, 2), (150, 4)):
        own.check(random.integers(-6, 6, (tokens, slots)))
    # All rows have one expert; one expert has one row; a token has an expert several times.
    own.check(np.full((50, 2), 3))
    own.check(np.concatenate([np.full((50, 2), 5), [[0, 5]]]))
    own.check(np.array([[1, 1, 1], [2, 1, 2]]))


@pytest.mark.parametrize("n", [1, 3, 16, 64, 65, 200])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
def test_extents(widest: CpuBackend, dtype: DType, n: int) -> None:
    for k in (1, 7, 64):
        own = Experts(widest, 3, k, n, biased=True, dtype=dtype)
        own.check(np.random.default_rng(n + k).integers(0, 3, (20, 2)))


def test_one_expert_and_int32(widest: CpuBackend) -> None:
    own = Experts(widest, 1, 20, 40, index=INT32)
    own.check(np.zeros((9, 2)))
    own.check(np.full((3, 1), -1))


def test_blocks_of_rows(widest: CpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows of an expert than a block has."""
    monkeypatch.setattr(steps, "block_rows", lambda *_: 8)
    own = Experts(widest, 3, 24, 100, biased=True, threads=2)
    own.check(np.random.default_rng(5).integers(0, 3, (90, 2)))
    own.check(np.full((17, 1), 2))


def test_no_tokens(widest: CpuBackend) -> None:
    own = Experts(widest, 3, 8, 5)
    assert own.run(np.zeros((0, 8), np.float32), np.zeros((0, 2), np.int64)).shape == (0, 2, 5)
    assert own.run(np.zeros((4, 8), np.float32), np.zeros((4, 0), np.int64)).shape == (4, 0, 5)


@pytest.mark.parametrize("wrong", [3, -4, 2**62, -(2**63), 2**63 - 1])
@pytest.mark.parametrize("threads", [1, 2])
def test_index_out_of_range(widest: CpuBackend, wrong: int, threads: int) -> None:
    own = Experts(widest, 3, 8, 5, threads=threads)
    index = np.array([[0, 1], [2, wrong], [1, 0]])
    with pytest.raises(IndexRangeError, match="experts of a layer"):
        own.run(np.zeros((3, 8), np.float32), index)
    own.check(np.array([[0, -1], [-3, 2]]))


def test_other_rows_are_untouched_by_nan(widest: CpuBackend) -> None:
    """NaN in a row of x stays in that row's results."""
    own = Experts(widest, 2, 8, 70)
    x = np.ones((5, 8), np.float32)
    x[2] = np.nan
    found = own.run(x, np.zeros((5, 1), np.int64))
    assert np.isnan(found[2]).all()
    assert np.isfinite(np.delete(found, 2, axis=0)).all()


def test_every_isa(backend: CpuBackend) -> None:
    own = Experts(backend, 4, 19, 77, biased=True)
    own.check(np.random.default_rng(6).integers(-4, 4, (30, 2)))
