import numpy as np
import snake

import ftuner
from ftuner.core.expr import applied

rng = np.random.default_rng(0)
x = rng.standard_normal((77, 256), np.float32)
weight = rng.standard_normal((64, 256), np.float32) / 16

layer = ftuner.Dense(weight, activation=lambda y: applied("snake", y))

np.testing.assert_allclose(layer(x), snake.SNAKE.reference(x @ weight.T), rtol=1e-4, atol=1e-5)
