import numpy as np
import snake_importer  # noqa: F401
from onnx import TensorProto, helper

import ftuner

x, y = (
    helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 256]) for name in ("x", "y")
)
node = helper.make_node("Snake", ["x"], ["y"], domain="com.example", alpha=2.0)
opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.example", 1)]
graph = helper.make_graph([node], "snake", [x], [y])
model = ftuner.load(helper.make_model(graph, opset_imports=opsets, ir_version=10))

for rows in (1, 77, 300):
    given = np.random.default_rng(0).standard_normal((rows, 256), np.float32)
    expected = given + np.sin(2 * given) ** 2 / 2
    np.testing.assert_allclose(model(x=given)["y"], expected, rtol=1e-5, atol=1e-6)
