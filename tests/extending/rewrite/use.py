import numpy as np
import snake_rule  # noqa: F401

import ftuner
from ftuner.core.dim import symbol
from ftuner.core.dtype import FLOAT32
from ftuner.graph.algebra import sin
from ftuner.graph.builder import Builder
from ftuner.graph.passes.pipeline import optimised

builder = Builder()
x = builder.input("x", FLOAT32, (symbol("rows"), 256))
with builder.writing():
    y = sin(x) ** 2 + x
graph = builder.graph([x], [("y", y)])
assert [node.op for node in optimised(graph).nodes] == ["snake"]

model = ftuner.compile(graph)
for rows in (1, 77, 300):
    given = np.random.default_rng(0).standard_normal((rows, 256), np.float32)
    np.testing.assert_allclose(model(x=given)["y"], given + np.sin(given) ** 2, rtol=1e-5)
