"""The ONNX operator com.example.Snake: x + sin(alpha x)^2 / alpha."""

from ftuner.frontends.onnx.signatures import onnx
from ftuner.graph.algebra import sin
from ftuner.graph.checks import malformed
from ftuner.graph.ir import Value


@onnx("Snake", domain="com.example")
def import_snake(x: Value, alpha: float = 1.0) -> Value:
    if alpha == 0:
        raise malformed("alpha is 0")
    sine = sin(x * alpha)
    return x + sine * sine * (1 / alpha)
