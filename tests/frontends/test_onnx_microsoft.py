"""onnxruntime's own operators that its optimisers write, beside onnxruntime's results."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from tests.conftest import CORE_ISAS
from tests.frontends.onnx_models import both_ways, by_onnxruntime, node_model

from ftuner.errors import FTunerError, UnsupportedOperatorError
from ftuner.frontends.onnx.importer import import_model
from ftuner.frontends.onnx.records import MICROSOFT
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model
from ftuner.runtime.reference import run_reference

RANDOM = np.random.default_rng(0)
Inputs = Sequence["np.ndarray[Any, Any] | None"]


def floats(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


def model_for(op: str, inputs: Inputs, *given: Any, **named: Any) -> tuple[Any, dict[str, Any]]:
    """A model of one node of onnxruntime's domain, and its feeds. `given`: which inputs are
    constants, and the number of outputs."""
    named |= zip(("fixed", "outputs"), given, strict=False)
    return node_model(op, inputs, domain=MICROSOFT, **named)


def agrees(op: str, inputs: Inputs, *given: Any, **attributes: Any) -> None:
    """References and compiled code give what onnxruntime gives."""
    model, feeds = model_for(op, inputs, *given, **attributes)
    expected = by_onnxruntime(model, feeds)
    for found in both_ways(model, feeds):
        for x, wanted in zip(found, expected, strict=True):
            assert x.dtype == wanted.dtype
            np.testing.assert_allclose(x, wanted, rtol=2e-4, atol=2e-5)


def refused(
    what: str, op: str, inputs: Inputs, error: type[FTunerError] = FTunerError,
    fixed: Sequence[int] | None = None, **attributes: Any,
) -> None:  # fmt: skip
    model, _ = model_for(op, inputs, fixed or range(1, len(inputs)), **attributes)
    with pytest.raises(error, match=what):
        import_model(model)


# Attention.

B, S, N, H = 2, 5, 3, 4
D = N * H
RAGGED = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]], np.int32)
MASKS: Mapping[str, Any] = {
    "none": None,
    "of keys": RAGGED,
    "of a whole sequence": np.array([[1, 1, 1, 1, 0], [0, 0, 0, 0, 0]], np.int32),
    "of queries and keys": RANDOM.integers(0, 2, (B, S, S)).astype(np.int32),
    "of lengths": np.array([5, 2], np.int32),
    "of ends and begins": np.array([5, 3, 1, 0], np.int32),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("causal", [0, 1])
def test_attention(mask: str, causal: int) -> None:
    inputs = [floats(B, S, 7), floats(7, 3 * D), floats(3 * D), MASKS[mask]]
    agrees("Attention", inputs, [1, 2], num_heads=N, unidirectional=causal)


def test_attention_with_all_it_takes() -> None:
    past, bias = floats(2, B, N, 3, H), floats(1, N, S, S)
    mask = np.ones((B, S + 3), np.int32)
    mask[1, :4] = 0
    inputs = [floats(B, S, 7), floats(7, 3 * D), floats(3 * D), mask, past]
    agrees("Attention", inputs, [1, 2], 2, num_heads=N, scale=0.3, mask_filter_value=-50.0)
    agrees("Attention", inputs, [1, 2], 2, num_heads=N, unidirectional=1)
    agrees("Attention", inputs[:3], [1, 2], 2, num_heads=N)
    agrees("Attention", [*inputs[:3], RAGGED, None, bias], [1, 2], num_heads=N)
    wide = [floats(B, S, 7), floats(7, 2 * D + 2 * N), floats(2 * D + 2 * N)]
    agrees("Attention", wide, [1, 2], num_heads=N, qkv_hidden_sizes=[D, D, 2 * N])


def test_attention_refuses() -> None:
    inputs = [floats(B, S, 7), floats(7, 3 * D), floats(3 * D)]
    refused("do_rotary is 1", "Attention", inputs, num_heads=N, do_rotary=1)
    refused("num_heads is 0", "Attention", inputs, num_heads=0)
    refused("5 heads of", "Attention", inputs, num_heads=5)
    refused("three numbers", "Attention", inputs, num_heads=N, qkv_hidden_sizes=[D, D])


@pytest.mark.parametrize("mask", ["none", "of keys", "of lengths"])
@pytest.mark.parametrize("causal", [0, 1])
def test_multi_head_attention(mask: str, causal: int) -> None:
    inputs = [*(floats(B, S, D) for _ in range(3)), floats(3 * D), MASKS[mask]]
    agrees("MultiHeadAttention", inputs, [3], num_heads=N, unidirectional=causal)


def test_multi_head_attention_with_all_it_takes() -> None:
    query, key, value = floats(B, S, D), floats(B, 4, D), floats(B, 4, 2 * N)
    agrees("MultiHeadAttention", [query, key, value], num_heads=N, scale=0.4)
    past = [floats(B, N, 3, H), floats(B, N, 3, H)]
    same = [floats(B, S, D) for _ in range(3)]
    bias = floats(B, 1, S, S + 3)
    agrees("MultiHeadAttention", [*same, None, None, bias, *past], (), 3, num_heads=N)
    heads = [floats(B, N, 6, H), floats(B, N, 6, H)]
    agrees("MultiHeadAttention", [query, *heads], num_heads=N)
    refused("packed", "MultiHeadAttention", [floats(B, S, N, 3, H)], num_heads=N)


@pytest.mark.parametrize(("rows", "past", "keys"), [(1, 0, 4), (3, 0, 5), (3, 2, 4), (5, 0, 2)])
def test_causal_queries_that_are_not_the_last_keys(rows: int, past: int, keys: int) -> None:
    """Query i sees the past and the first i + 1 keys; the last query sees all."""
    inputs: Inputs = [floats(B, rows, D), floats(B, keys, D), floats(B, keys, D)]
    before = [floats(B, N, past, H), floats(B, N, past, H)] if past else []
    bias = floats(B, 1, rows, past + keys)
    for addend in (None, bias):
        operands = [*inputs, None, None, addend, *before]
        agrees("MultiHeadAttention", operands, (), 1 + len(before), num_heads=N, unidirectional=1)


def test_quantised_attention() -> None:
    def levels(dtype: str, *shape: int) -> Any:
        # With more bits, onnxruntime's products saturate on CPUs without VNNI.
        low, high = (-64, 64) if dtype == "int8" else (0, 256)
        return RANDOM.integers(low, high, shape).astype(dtype)

    scales = [np.float32(0.02), np.float32(0.03)]
    for dtype, zero in (("int8", 3), ("uint8", 130)):
        inputs = [levels("uint8", B, S, 7), levels(dtype, 7, 3 * D), floats(3 * D), *scales,
                  RAGGED, np.uint8(120), np.array(zero, dtype)]  # fmt: skip
        agrees("QAttention", inputs, [1, 2, 3, 4, 6, 7], num_heads=N)
        agrees("QAttention", [*inputs[:5], None, *inputs[6:], floats(2, B, N, 3, H)],
               [1, 2, 3, 4, 6, 7], 2, num_heads=N, unidirectional=1)  # fmt: skip


# Embeddings.

IDS = np.array([[0, 4, 8, 2, 1], [3, 3, 0, 0, 7]], np.int32)
SEGMENTS = np.array([[0, 0, 1, 1, 1], [0, 1, 0, 1, 1]], np.int32)


def test_embedding() -> None:
    tables = [floats(9, 6), floats(12, 6), floats(2, 6)]
    norm = [floats(6), floats(6)]
    fixed = [2, 3, 4, 5, 6]
    op = "EmbedLayerNormalization"
    agrees(op, [IDS, SEGMENTS, *tables, *norm, RAGGED], fixed, 3, epsilon=1e-5)
    agrees(op, [IDS, None, *tables[:2], None, *norm], fixed, 2)
    positions = np.array([[4, 3, 2, 1, 0], [7, 8, 9, 10, 11]], np.int32)
    agrees(op, [IDS, SEGMENTS, *tables, *norm, None, positions], fixed, 3)
    agrees(op, [IDS, SEGMENTS, *tables, *norm, None, positions[:1]], fixed, 3)


def test_quantised_embedding() -> None:
    tables = [RANDOM.integers(0, 256, s).astype(np.uint8) for s in ((9, 6), (12, 6), (2, 6), 6, 6)]
    scales = [np.float32(x) for x in (0.02, 0.03, 0.01, 0.02, 0.05)]
    zeros = [np.uint8(x) for x in (120, 128, 99, 0, 255)]
    inputs = [IDS, SEGMENTS, *tables, RAGGED, *scales, *zeros]
    fixed = [i for i in range(18) if i not in (0, 1, 7)]
    agrees("QEmbedLayerNormalization", inputs, fixed, 2, epsilon=1e-5)


@pytest.mark.each_value
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("width", "block"), [(64, 16), (48, 32), (20, 64)])
@pytest.mark.parametrize("zeros", [False, True])
def test_rows_by_blocks(bits: int, width: int, block: int, zeros: bool) -> None:
    blocks = -(-width // block)
    table = RANDOM.integers(0, 256, (11, width * bits // 8)).astype(np.uint8)
    zero = RANDOM.integers(0, 256, (11, -(-blocks * bits // 8))).astype(np.uint8)
    ids = np.array([[0, 10, -1], [3, 3, -11]], np.int64)
    inputs = [table, ids, floats(11, blocks), zero if zeros else None]
    agrees("GatherBlockQuantized", inputs, [0, 2, 3], bits=bits, block_size=block)
    agrees("GatherBlockQuantized", [table, ids[0, :1], *inputs[2:]], [0, 2, 3], bits=bits,
           block_size=block, quantize_axis=-1)  # fmt: skip


def test_rows_by_blocks_of_matrices() -> None:
    table = RANDOM.integers(0, 256, (5, 3, 40)).astype(np.uint8)
    inputs = [table, np.array([4, 0], np.int32), floats(5, 3, 3), table[..., :3]]
    for given in (inputs, [*inputs[:3], None]):
        agrees("GatherBlockQuantized", given, [0, 2, 3], bits=8, block_size=16, quantize_axis=2)


@pytest.mark.parametrize(
    ("what", "attributes"),
    [("bits is 3", {"bits": 3}), ("block_size is 24", {"block_size": 24}),
     ("gather_axis is not 0", {"gather_axis": 1}), ("is not the last", {"quantize_axis": 0}),
     (r"scales .*expected \[7, 2\]", {"block_size": 16}),
     (r"zero points .*expected uint8 \[7, 1\]", {"block_size": 32})],
)  # fmt: skip
def test_rows_by_blocks_refuse(what: str, attributes: Mapping[str, int]) -> None:
    inputs = [np.zeros((7, 16), np.uint8), np.zeros(3, np.int64), floats(7, 1),
              np.zeros((7, 2), np.uint8)]  # fmt: skip
    refused(what, "GatherBlockQuantized", inputs, fixed=[0, 2, 3], **attributes)


def test_rows_by_blocks_of_a_table_that_comes_at_run_time() -> None:
    inputs = [np.zeros((7, 16), np.uint8), np.zeros(3, np.int64), floats(7, 1)]
    model, _ = model_for("GatherBlockQuantized", inputs, block_size=32)
    with pytest.raises(UnsupportedOperatorError, match="the shape of data"):
        import_model(model)


# Products.


@pytest.mark.each_value
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("depth", "block"), [(64, 16), (50, 32), (33, 64)])
@pytest.mark.parametrize("zeros", ["none", "packed", "floats"])
def test_products_by_blocks(bits: int, depth: int, block: int, zeros: str) -> None:
    if (bits, zeros) == (8, "floats"):
        pytest.skip("onnxruntime has none")
    columns, blocks = 7, -(-depth // block)
    weight = RANDOM.integers(0, 256, (columns, blocks, block * bits // 8)).astype(np.uint8)
    scales = (0.1 * floats(columns, blocks)).astype(np.float32)
    packed = RANDOM.integers(0, 256, (columns, -(-blocks * bits // 8))).astype(np.uint8)
    zero = {"none": None, "packed": packed, "floats": 3 * floats(columns, blocks)}[zeros]
    inputs = [floats(2, 3, depth), weight, scales, zero, None, floats(columns)]
    agrees("MatMulNBits", inputs, [1, 2, 3, 5], bits=bits, block_size=block, K=depth, N=columns)


def test_products_by_blocks_refuse() -> None:
    sizes = {"K": 32, "N": 7, "block_size": 32}
    inputs = [floats(3, 32), np.zeros((7, 1, 16), np.uint8), floats(7, 1)]
    refused("bits is 3", "MatMulNBits", inputs, bits=3, **sizes)
    refused("block_size is 8", "MatMulNBits", inputs, **(sizes | {"block_size": 8}))
    refused(r"expected \[7, 2, 16\]", "MatMulNBits", inputs, **(sizes | {"K": 64}))
    order = np.zeros(32, np.int32)
    refused("g_idx", "MatMulNBits", [*inputs, None, order], UnsupportedOperatorError, **sizes)
    model, _ = model_for("MatMulNBits", inputs, **sizes)
    with pytest.raises(UnsupportedOperatorError, match="the weight is known only at run time"):
        import_model(model)


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize(("depth", "columns", "block"), [(64, 8, 64), (17, 3, 16), (50, 6, 128)])
def test_products_by_levels_of_four_bits(depth: int, columns: int, block: int, kind: int) -> None:
    count = depth * columns
    weight = RANDOM.integers(0, 256, -(-count // 2)).astype(np.uint8)
    inputs = [floats(2, 3, depth), weight, np.abs(floats(-(-count // block)))]
    sizes = {"K": depth, "N": columns, "block_size": block}
    agrees("MatMulBnb4", inputs, [1, 2], quant_type=kind, **sizes)


@pytest.mark.parametrize("isa", CORE_ISAS)
@pytest.mark.parametrize("kind", [0, 1])
def test_products_by_large_weights_of_four_bits(
    kind: int, isa: str, backend_of: Callable[[str], CpuBackend]
) -> None:
    """The weight stays as it is in memory: few rows look its numbers up in registers, many rows
    read a panel that is widened once."""
    depth, columns, block = 192, 149, 32
    weight = RANDOM.integers(0, 256, depth * columns // 2).astype(np.uint8)
    scales = np.abs(floats(depth * columns // block))
    sizes = {"K": depth, "N": columns, "block_size": block}
    for rows in (1, 2, 7, 70):
        inputs = [floats(rows, depth), weight, scales]
        model, feeds = model_for("MatMulBnb4", inputs, [1, 2], quant_type=kind, **sizes)
        graph = import_model(model).graph
        assert "block_matmul" in [node.op for node in graph.nodes]
        (expected,) = by_onnxruntime(model, feeds)
        (reference,) = run_reference(graph, list(feeds.values()))
        (found,) = Model(optimised(graph, halves=False), backend_of(isa)).run(feeds)
        for one in (reference, found):
            np.testing.assert_allclose(one, expected, 1e-4, 1e-4)


def test_the_levels_of_four_bits() -> None:
    """Each is the one of onnxruntime, to the last bit."""
    weight = np.array([i << 4 | (i + 1) for i in range(0, 16, 2)], np.uint8)
    for kind in (0, 1):
        inputs = [np.eye(16, dtype=np.float32), weight, np.ones(1, np.float32)]
        given = {"K": 16, "N": 1, "block_size": 16, "quant_type": kind}
        model, feeds = model_for("MatMulBnb4", inputs, [1, 2], **given)
        (expected,) = by_onnxruntime(model, feeds)
        (found,) = run_reference(import_model(model).graph, list(feeds.values()))
        np.testing.assert_array_equal(found, expected)


def test_products_by_levels_of_four_bits_refuse() -> None:
    sizes = {"K": 32, "N": 7, "block_size": 32}
    inputs = [floats(3, 32), np.zeros(112, np.uint8), floats(7)]
    refused("quant_type is 2", "MatMulBnb4", inputs, quant_type=2, **sizes)
    refused("for K 64", "MatMulBnb4", inputs, quant_type=1, **(sizes | {"K": 64}))
    refused("block_size is 24", "MatMulBnb4", inputs, quant_type=1, **(sizes | {"block_size": 24}))


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_distances(metric: str, dtype: str) -> None:
    agrees("CDist", [floats(5, 4).astype(dtype), floats(7, 4).astype(dtype)], metric=metric)


def test_distances_refuse() -> None:
    refused("metric 'cosine'", "CDist", [floats(5, 4), floats(7, 4)], metric="cosine")
    refused("two axes", "CDist", [floats(5, 4, 1), floats(7, 4)])
