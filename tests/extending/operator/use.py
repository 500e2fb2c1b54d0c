import numpy as np
import running_max_onnx  # noqa: F401
from onnx import TensorProto, helper

import ftuner

x, y = (
    helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 100]) for name in ("x", "y")
)
nodes = [
    helper.make_node("Sin", ["x"], ["sine"]),
    helper.make_node("RunningMax", ["sine"], ["largest"], domain="com.example"),
    helper.make_node("Sub", ["largest", "sine"], ["y"]),
]
opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.example", 1)]
graph = helper.make_graph(nodes, "drawdown", [x], [y])
model = ftuner.load(helper.make_model(graph, opset_imports=opsets, ir_version=10))

for rows in (1, 77, 300):
    given = np.random.default_rng(0).standard_normal((rows, 100), np.float32)
    sine = np.sin(given)
    expected = np.maximum.accumulate(sine, axis=1) - sine
    np.testing.assert_allclose(model(x=given)["y"], expected, rtol=1e-5, atol=1e-6)
