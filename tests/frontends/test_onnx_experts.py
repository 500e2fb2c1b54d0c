"""A mixture of experts as a file, as exporters write it and by Einsum: what onnxruntime gives."""

import numpy as np
import pytest
from tests.frontends.onnx_models import parsed

import ftuner

onnxruntime = pytest.importorskip("onnxruntime")

EXPERTS, CHOSEN, K, HIDDEN = 4, 2, 24, 40


WIDE = """
        single = Unsqueeze(x, one)
        repeated = Expand(single, spread)
        columns = Unsqueeze(repeated, last)
        tall = MatMul(ups, columns)
        wide = Squeeze(tall, last)
"""
RESULTS = """
        rows = Unsqueeze(gated, before)
        products = MatMul(rows, downs)
        results = Squeeze(products, before)
"""


def mixture(einsum: bool) -> bytes:
    """Tokens (T, K): softmax of a router, its best experts, a gated layer, a second one, and the
    sum by scores."""
    random = np.random.default_rng(7)
    shapes = {
        "router": (K, EXPERTS), "up": (EXPERTS, 2 * HIDDEN, K), "up_bias": (EXPERTS, 2 * HIDDEN),
        "down": (EXPERTS, HIDDEN, K),
    }  # fmt: skip
    weights = {n: random.standard_normal(s) / s[-1] ** 0.5 for n, s in shapes.items()}
    text = f"""(float[T, {K}] x) => (float[T, {K}] y)
            <int64[1] chosen = {{{CHOSEN}}}, int64[1] one = {{1}}, int64[1] last = {{-1}},
             int64[1] before = {{2}}, int64[3] spread = {{1, {CHOSEN}, 1}}> {{
        logits = MatMul(x, router)
        shares = Softmax<axis=-1>(logits)
        scores, index = TopK<axis=-1>(shares, chosen)
        ups = Gather<axis=0>(up, index)
        {'wide = Einsum<equation="tk,tshk->tsh">(x, ups)' if einsum else WIDE}
        ups_bias = Gather<axis=0>(up_bias, index)
        biased = Add(wide, ups_bias)
        gate, value = Split<axis=-1, num_outputs=2>(biased)
        open = Sigmoid(gate)
        gated = Mul(open, value)
        downs = Gather<axis=0>(down, index)
        {'results = Einsum<equation="tsh,tshk->tsk">(gated, downs)' if einsum else RESULTS}
        weights = Unsqueeze(scores, last)
        weighted = Mul(results, weights)
        y = ReduceSum<keepdims=0>(weighted, one)
    }}"""
    model = parsed(text, **{name: x.astype(np.float32) for name, x in weights.items()})
    return model.SerializeToString()


@pytest.mark.parametrize("einsum", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_as_onnxruntime(einsum: bool, threads: int) -> None:
    file = mixture(einsum)
    peer = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    model = ftuner.load(file, threads=threads)
    assert [step.kind for step in model.steps].count("experts") == 2
    # onnxruntime 1.31's Einsum divides by zero where there are no tokens.
    for tokens in (1, 2, 9, 100):
        x = np.random.default_rng(tokens).standard_normal((tokens, K)).astype(np.float32)
        (expected,) = peer.run(None, {"x": x})
        np.testing.assert_allclose(model.run({"x": x})[0], expected, rtol=1e-4, atol=1e-5)
    assert model.run({"x": np.zeros((0, K), np.float32)})[0].shape == (0, K)


def test_nan_in_the_scores_of_a_token() -> None:
    """Other tokens are what they were."""
    model = ftuner.load(mixture(False))
    x = np.random.default_rng(1).standard_normal((9, K)).astype(np.float32)
    expected = model.run({"x": x})[0].copy()
    x[4, 3] = np.nan
    found = model.run({"x": x})[0]
    assert np.isnan(found[4]).all()
    np.testing.assert_allclose(np.delete(found, 4, 0), np.delete(expected, 4, 0), 1e-5, 1e-6)
