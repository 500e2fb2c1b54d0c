import numpy as np
import rsqrt

import ftuner
from ftuner.core.dim import symbol
from ftuner.core.dtype import FLOAT32
from ftuner.graph.algebra import apply
from ftuner.graph.builder import Builder

builder = Builder()
x = builder.input("x", FLOAT32, (symbol("rows"), 256))
with builder.writing():
    y = apply("rsqrt", (x * x).reduce("sum", [1], keep=False))
model = ftuner.compile(builder.graph([x], [("y", y)]))

for rows in (1, 77, 300):
    given = np.random.default_rng(0).standard_normal((rows, 256), np.float32)
    expected = rsqrt.RSQRT.reference((given * given).sum(axis=1))
    np.testing.assert_allclose(model(x=given)["y"], expected, rtol=1e-5)
