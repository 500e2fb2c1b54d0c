import running_max_step  # noqa: F401

from ftuner.frontends.onnx.signatures import onnx
from ftuner.graph.algebra import apply
from ftuner.graph.ir import Value


@onnx("RunningMax", domain="com.example")
def import_running_max(x: Value) -> Value:
    return apply("running_max", x)
