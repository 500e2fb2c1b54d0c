import numpy as np
import rsqrt

import ftuner
from ftuner.core.dim import symbol
from ftuner.core.dtype import FLOAT32
from ftuner.graph.builder import Builder

builder = Builder()
x = builder.input("x", FLOAT32, (symbol("rows"), 256))
squares = builder.add("reduce", builder.add("multiply", x, x), kind="sum", axes=(1,))
y = builder.add("rsqrt", squares)
model = ftuner.compile(builder.graph([x], [("y", y)]))

for rows in (1, 77, 300):
    given = np.random.default_rng(0).standard_normal((rows, 256), np.float32)
    expected = rsqrt.RSQRT.reference((given * given).sum(axis=1))
    np.testing.assert_allclose(model(x=given)["y"], expected, rtol=1e-5)
