"""Large weights of a model file, which are read apart from its protocol buffer."""

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.frontends.onnx_models import model_of

from ftuner.errors import FTunerError, GraphError, ParseError
from ftuner.frontends.onnx import files
from ftuner.frontends.onnx.importer import import_model, read_model
from ftuner.frontends.onnx.weight_stream import LEAST_BYTES
from ftuner.inference import load

SIDE = 600
RNG = np.random.default_rng(0)
WEIGHTS = {
    "large": RNG.standard_normal((SIDE, SIDE)).astype(np.float32),
    "small": RNG.standard_normal((1, SIDE)).astype(np.float32),
    "whole": RNG.integers(-9, 9, (SIDE, SIDE)),
    "half": RNG.standard_normal((SIDE, 2 * SIDE)).astype(np.float16),
}


def model_with(*tensors: onnx.TensorProto) -> onnx.ModelProto:
    """Products with large weights, among them some of two bytes, and a few of other sizes."""
    nodes = [
        helper.make_node("MatMul", ["x", "large"], ["product"]),
        helper.make_node("Add", ["product", "small"], ["sum"]),
        helper.make_node("Cast", ["whole"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["sum", "numbers"], ["again"]),
        helper.make_node("Cast", ["half"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["again", "wide"], ["y"]),
    ]
    model = model_of(nodes, {"x": ("float32", ["n", SIDE])}, ["y"], WEIGHTS)
    model.producer_name, model.doc_string = "tests", "what follows the graph"
    model.graph.initializer.extend(tensors)
    assert sum(t.ByteSize() > LEAST_BYTES for t in model.graph.initializer) >= 3
    return model


def constants(source: Any) -> dict[str, np.ndarray]:
    return {name: found.array for name, found in read_model(source).graph.constants.items()}


@pytest.fixture
def stored(tmp_path: Path) -> Callable[[bytes], Path]:
    def store(data: bytes) -> Path:
        path = tmp_path / "model.onnx"
        path.write_bytes(data)
        return path

    return store


def test_weights_are_those_of_the_file(stored: Callable[[bytes], Path]) -> None:
    model = model_with()
    data = model.SerializeToString()
    for source in (data, stored(data), model):
        found = constants(source)
        assert found.keys() == WEIGHTS.keys()
        for name, wanted in WEIGHTS.items():
            np.testing.assert_array_equal(found[name], wanted)
            assert found[name].dtype == wanted.dtype
    # A message has one copy of each weight less.
    message, weights = files.content(stored(data))
    assert len(message) < LEAST_BYTES
    assert sorted(x.nbytes for x in weights.values()) == sorted(
        x.nbytes for x in WEIGHTS.values() if x.nbytes > LEAST_BYTES
    )
    x = RNG.standard_normal((3, SIDE)).astype(np.float32)
    wanted = x.astype(np.float64) @ WEIGHTS["large"] + WEIGHTS["small"]
    wanted = wanted @ WEIGHTS["whole"] @ WEIGHTS["half"].astype(np.float64)
    (y,) = load(stored(data)).run({"x": x})
    np.testing.assert_allclose(y, wanted, 1e-4, 1e-3 * np.abs(wanted).max())


def large(name: str = "other", **changes: Any) -> onnx.TensorProto:
    tensor = numpy_helper.from_array(WEIGHTS["large"], name)
    tensor.MergeFrom(TensorProto(**changes))
    return tensor


def test_one_field_in_several_pieces(stored: Callable[[bytes], Path]) -> None:
    """Pieces of a message are merged, and the last of two fields counts."""
    first, second = model_with(), model_with()
    del second.graph.initializer[:]
    second.graph.initializer.append(large())
    del second.graph.node[:], second.graph.input[:], second.graph.output[:], second.opset_import[:]
    data = first.SerializeToString() + second.SerializeToString()
    found = constants(stored(data))
    assert found.keys() == {*WEIGHTS, "other"}
    np.testing.assert_array_equal(found["other"], WEIGHTS["large"])
    # An initialiser with its data twice is left to the parser.
    again = TensorProto(raw_data=WEIGHTS["large"][::-1].tobytes()).SerializeToString()
    twice = _field(7, _field(5, large("twice").SerializeToString() + again))
    found = constants(stored(first.SerializeToString() + twice))
    np.testing.assert_array_equal(found["twice"], WEIGHTS["large"][::-1])


def _field(number: int, content: bytes) -> bytes:
    """The wire format of a field of bytes."""

    def varint(value: int) -> bytes:
        head = bytes([value & 0x7F | (0x80 if value >= 0x80 else 0)])
        return head + (varint(value >> 7) if value >= 0x80 else b"")

    return varint(number << 3 | 2) + varint(len(content)) + content


@pytest.mark.parametrize(
    "tensor",
    [
        large(raw_data=WEIGHTS["large"].tobytes()[:-4]),
        large(raw_data=WEIGHTS["large"].tobytes() + bytes(4)),
        large(dims=[2]),
        large(dims=[-1]),
        large(data_type=TensorProto.DOUBLE),
        large(data_type=99),
        large(data_location=TensorProto.EXTERNAL),
        large(name="large"),
    ],
    ids=["short", "long", "dims", "negative", "dtype", "no dtype", "external", "name"],
)
def test_malformed_weights(tensor: onnx.TensorProto, stored: Callable[[bytes], Path]) -> None:
    data = model_with(tensor).SerializeToString()
    for source in (data, stored(data)):
        with pytest.raises(GraphError, match=r"other|large"):
            import_model(source)


def test_a_reference_to_the_own_file(stored: Callable[[bytes], Path]) -> None:
    """Only to a weight that is read apart; nothing else of the file is a tensor."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="")
    tensor.external_data.add(key="offset", value="8")
    with pytest.raises(GraphError, match="no file ''"):
        import_model(stored(model_with(tensor).SerializeToString()))


def outcome(source: Any) -> Any:
    try:
        return {name: x.tobytes() for name, x in constants(source).items()}
    except FTunerError as error:
        return type(error)


def test_damaged_files_are_what_the_parser_says(
    monkeypatch: pytest.MonkeyPatch, stored: Callable[[bytes], Path]
) -> None:
    whole = model_with().SerializeToString()
    generator = random.Random(0)
    # Where the fields begin, and anywhere.
    places = [*range(40), *(len(whole) - 1 - n for n in range(40))]
    places += [generator.randrange(len(whole)) for _ in range(20)]
    damaged = [whole[:place] for place in places]
    for place in places:
        data = bytearray(whole)
        data[place] ^= 1 << generator.randrange(8)
        damaged.append(bytes(data))
    damaged.append(whole + b"\x0b\x0c")
    found = [outcome(data) for data in damaged]
    assert outcome(stored(damaged[3])) == found[3] == ParseError
    monkeypatch.setattr(files.weight_stream, "LEAST_BYTES", len(whole) + 100)
    assert found == [outcome(data) for data in damaged]


PEAK = """
import sys
from pathlib import Path
from ftuner.inference import load

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))

before = peak()
load(sys.argv[1], threads=1)
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the largest resident set is Linux's")
def test_weights_are_in_memory_once(tmp_path: Path) -> None:
    count, side = 12, 2048
    weights = {f"w{i}": np.full((side, side), i, np.float32) for i in range(count)}
    nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"]) for i in range(count)]
    model = model_of(nodes, {"x0": ("float32", ["n", side])}, [f"x{count}"], weights)
    size = sum(x.nbytes for x in weights.values())
    onnx.save(model, tmp_path / "in.onnx")
    onnx.save(model, tmp_path / "out.onnx", save_as_external_data=True, location="data")
    for name in ("in.onnx", "out.onnx"):
        command = [sys.executable, "-c", PEAK, str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        # Two weights, and the compiler.
        assert size < int(done.stdout) < size + 120e6
