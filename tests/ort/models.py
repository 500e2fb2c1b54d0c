"""Small models, as the bytes of files."""

from onnx import TensorProto, helper, load_from_string
from tests.frontends.onnx_models import parsed


def model_of(graph: str) -> bytes:
    return parsed(graph, 17).SerializeToString()


def scaled_sum(ir: int = 10, overridable: bool = False) -> bytes:
    """`z = (x + y) * weight` for rows of three, and the shape of x."""
    weight = "float[3] weight = {1, 2, 3}"
    given, stored = (f", {weight}", "") if overridable else ("", f"<{weight}>")
    text = f"""(float[batch, 3] x, float[batch, 3] y{given})
            => (float[batch, 3] z, int64[2] shape) {stored} {{
        sum = Add(x, y)
        z = Mul(sum, weight)
        shape = Shape(x)
    }}"""
    model = parsed(text, 17)
    model.ir_version = ir
    return model.SerializeToString()


def with_weight_outside() -> bytes:
    """`scaled_sum` whose weight is in a file that does not exist."""
    model = load_from_string(scaled_sum())
    (weight,) = model.graph.initializer
    weight.ClearField("float_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="weight.bin")
    data: bytes = model.SerializeToString()
    return data


def described() -> bytes:
    """A model whose file says much of it."""
    model = parsed("(float[?, n, 3] x) => (float[?, n, 3] y) { y = Exp(x) }", 17)
    model.producer_name, model.domain, model.model_version = "tests", "org.example", 3
    model.doc_string, model.graph.doc_string = "a model", "a graph"
    helper.set_model_props(model, {"language": "en", "classes": "a\nb"})
    data: bytes = model.SerializeToString()
    return data


def identity(number: int, dims: tuple[int | str, ...] = ("n",)) -> bytes:
    """A model that returns its input, of an element type by ONNX's number."""
    model = parsed("(float x) => (float y) { y = Identity(x) }", 17)
    for value in (*model.graph.input, *model.graph.output):
        value.CopyFrom(helper.make_tensor_value_info(value.name, number, dims))
    return model.SerializeToString()


def decoder() -> bytes:
    """`present` is `past` with the rows of `new` after its own, in each of two heads; and the sum
    of all rows."""
    return model_of("""(float[batch, 2, rows, 4] past, float[batch, 2, more, 4] new)
            => (float[batch, 2, 4] total, float[batch, 2, all, 4] present) <int64[1] axes = {2}> {
        present = Concat<axis=2>(past, new)
        total = ReduceSum<keepdims=0>(present, axes)
    }""")


def gathered() -> bytes:
    """Elements of `x` at the indices `i`."""
    return model_of("(float[n] x, int64[m] i) => (float[m] y) { y = Gather(x, i) }")


def of_node(op: str, inputs: str = "x", domain: str = "") -> bytes:
    """A model of one node."""
    model = parsed(f"(float[n] x) => (float[n] y) {{ y = {op}({inputs}) }}", 17)
    if domain:
        model.graph.node[0].domain = domain
        model.opset_import.append(helper.make_opsetid(domain, 1))
    return model.SerializeToString()
