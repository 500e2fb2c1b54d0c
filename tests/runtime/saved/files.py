"""Models that are saved, with inputs."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from tests.frontends.onnx_models import parsed

RNG = np.random.default_rng(3)
Arrays = Mapping[str, Any]
ONES = {"x": np.ones((5, 48), np.float32)}


def weight(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def dense() -> tuple[Any, Arrays]:
    """Two products that share a weight, and one of two operands."""
    text = """(float[n, 48] x) => (float[n, 48] y, float[n, n] z) {
        a = MatMul(x, w)
        b = Relu(a)
        c = MatMul(b, w)
        y = Add(c, v)
        t = Transpose<perm=[1, 0]>(y)
        z = MatMul(y, t)
    }"""
    return parsed(text, 17, w=weight(48, 48), v=weight(48)), {"x": weight(7, 48)}


def pictures() -> tuple[Any, Arrays]:
    """A Winograd convolution, one of few channels, depthwise ones in a chain, groups, a pool."""
    text = """(float[n, 3, h, w] x) => (float[n, 24, 1, 1] y) <float zero = {0}, float six = {6}> {
        a = Conv<pads=[1, 1, 1, 1], strides=[2, 2]>(x, w0)
        b = Clip(a, zero, six)
        c = Conv<pads=[1, 1, 1, 1]>(b, w1)
        d = Conv(c, w2)
        e = Clip(d, zero, six)
        f = Conv<group=96, pads=[1, 1, 1, 1]>(e, w3)
        g = Clip(f, zero, six)
        h = Conv(g, w4)
        i = Add(h, c)
        j = Conv<group=2>(i, w5)
        y = GlobalAveragePool(j)
    }"""
    weights = {
        "w0": weight(16, 3, 3, 3), "w1": weight(16, 16, 3, 3), "w2": weight(96, 16, 1, 1),
        "w3": weight(96, 1, 3, 3), "w4": weight(16, 96, 1, 1), "w5": weight(24, 8, 1, 1),
    }  # fmt: skip
    return parsed(text, 17, **weights), {"x": weight(2, 3, 37, 41)}


def recurrent() -> tuple[Any, Arrays]:
    node = "y, h, c = LSTM<hidden_size=20>(x, w, r, b)"
    text = f"(float[s, n, 9] x) => (float[] y, float[] h, float[] c) {{ {node} }}"
    weights = {"w": weight(1, 80, 9), "r": weight(1, 80, 20), "b": weight(1, 160)}
    return parsed(text, 17, **weights), {"x": weight(6, 3, 9)}


def loop() -> tuple[Any, Arrays]:
    """A loop whose body has a weight, within a model of several parts."""
    text = """(float[n, 33] x, int64 trips) => (float[n, 2] y) {
        z = Loop(trips, "", x) <body = body (int64 i, bool go, float[n, 33] s)
                => (bool on, float[n, 33] u) {
            t = MatMul(s, w)
            u = Tanh(t)
            on = Identity(go)
        }>
        y = MatMul(z, v)
    }"""
    made = parsed(text, 17, v=weight(33, 2), w=weight(33, 33))
    # The body's own weight.
    made.graph.node[0].attribute[0].g.initializer.append(made.graph.initializer.pop())
    return made, {"x": weight(4, 33), "trips": np.array(3)}


def found() -> tuple[Any, Arrays]:
    """An extent that depends on data, and elements that are chosen by it."""
    text = """(float[n, m] x) => (float[] y) {
        at = NonZero(x)
        rows = Transpose<perm=[1, 0]>(at)
        floats = Cast<to=1>(rows)
        y = MatMul(floats, w)
    }"""
    x = (RNG.standard_normal((5, 6)) > 0).astype(np.float32)
    return parsed(text, 17, w=weight(2, 5)), {"x": x}


def words() -> tuple[Any, Arrays]:
    text = """(string[n] x) => (float[n] y) {
        v = ai.onnx.ml.LabelEncoder<keys_strings=["a", "b"], values_floats=[1.5, -0.0],
                                    default_float=inf>(x)
        y = Neg(v)
    }"""
    return parsed(text, 17), {"x": np.array(["a", "b", "c"], object)}


def gathered() -> tuple[Any, Arrays]:
    """A table that no step packs, of 16-bit floats, and symbolic positions."""
    text = """(int64[n, s] ids) => (float[] y, int64[2] s) {
        a = Gather(table, ids)
        b = Cast<to=1>(a)
        s = Shape(ids)
        m = ReduceMean<axes=[-1]>(b)
        y = Sub(b, m)
    }"""
    table = weight(31, 17).astype(np.float16)
    return parsed(text, 17, table=table), {"ids": RNG.integers(-31, 31, (3, 4))}


MODELS = (dense, pictures, recurrent, loop, found, words, gathered)
