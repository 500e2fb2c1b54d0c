import expressions
import numpy as np

rng = np.random.default_rng(0)
w = rng.standard_normal((256, 64), np.float32) / 16
b = rng.standard_normal(64, np.float32)

model = expressions.load(
    """
hidden = x @ w + b
y = hidden * sigmoid(1.5 * hidden)
""",
    inputs={"x": ("rows", 256)},
    weights={"w": w, "b": b},
)

for rows in (1, 77, 300):
    x = rng.standard_normal((rows, 256), np.float32)
    hidden = x @ w + b
    expected = hidden / (1 + np.exp(-1.5 * hidden))
    np.testing.assert_allclose(model(x=x)["y"], expected, rtol=1e-4, atol=1e-5)
