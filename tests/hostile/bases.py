"""Nodes that hostile changes begin with: for every importer of the registry, some that are right.

Those of ONNX's own operators are taken from the tests that ONNX comes with; others are listed here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper
from tests.frontends.node_cases import Case, cases

from ftuner.core.dtype import TENSOR_DTYPES
from ftuner.errors import FTunerError
from ftuner.frontends.onnx.importer import IMPORTERS, LEAST_OPSET, import_model
from ftuner.frontends.onnx.reading import domain_of
from ftuner.frontends.onnx.records import LEARNING, MICROSOFT
from ftuner.graph.ir import Graph, RandomKey
from ftuner.graph.known_values import MAX_FOLLOWED
from ftuner.runtime.reference import run_reference

Array = npt.NDArray[Any]
Key = tuple[str, str]
"""Domain and type of an operator, as the registry has them."""
KEY = np.array([3, 1], np.uint64)
"""Of the random numbers of all nodes."""
MOST_ELEMENTS = 20_000
"""Of all inputs of a node."""
LATEST_OPSET = 24
"""That this release of onnxruntime says it has; nodes of later ones are taken for it."""


@dataclass(frozen=True, eq=False)
class Node:
    """One node with its inputs, which can be pickled."""

    name: str
    domain: str
    op: str
    opset: int
    inputs: tuple[Array | None, ...]
    """None is left out."""
    fixed: frozenset[int]
    """Inputs that are constants of the model."""
    attributes: tuple[bytes, ...]
    outputs: tuple[bool, ...]
    """Whether each is asked for."""

    def with_inputs(self, changed: dict[int, Array | None]) -> Node:
        inputs = (changed.get(i, x) for i, x in enumerate(self.inputs))
        return replace(self, inputs=tuple(inputs))

    @property
    def given(self) -> list[int]:
        """The numbers of inputs that are not constants."""
        return [i for i, x in enumerate(self.inputs) if x is not None and i not in self.fixed]

    @property
    def feeds(self) -> dict[str, Array]:
        return {f"x{i}": x for i in self.given if (x := self.inputs[i]) is not None}

    def model(self) -> onnx.ModelProto:
        """A model of the node, with a symbol for every extent."""
        names = ["" if x is None else f"x{i}" for i, x in enumerate(self.inputs)]
        results = [f"y{i}" if wanted else "" for i, wanted in enumerate(self.outputs)]
        node = onnx.NodeProto(op_type=self.op, domain=self.domain, input=names, output=results)
        for data in self.attributes:
            node.attribute.append(onnx.AttributeProto.FromString(data))
        inputs = [
            helper.make_tensor_value_info(
                f"x{i}", helper.np_dtype_to_tensor_dtype(x.dtype),
                self._dims(i, x.shape),
            )
            for i in self.given if (x := self.inputs[i]) is not None
        ]  # fmt: skip
        constants = [
            numpy_helper.from_array(x, f"x{i}")
            for i in sorted(self.fixed)
            if i < len(self.inputs) and (x := self.inputs[i]) is not None
        ]
        outputs = [helper.make_empty_tensor_value_info(name) for name in results if name]
        graph = helper.make_graph([node], "hostile", inputs, outputs, constants)
        # Since 5 other operators than TreeEnsemble are deprecated.
        others = {MICROSOFT: 1, LEARNING: 5 if self.op == "TreeEnsemble" else 4}
        opsets = [helper.make_opsetid(*own) for own in {"": self.opset, **others}.items()]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)

    def _dims(self, number: int, shape: tuple[int, ...]) -> list[int | str]:
        """The dims of an input."""
        dims: list[int | str] = [f"d{number}_{axis}" for axis in range(len(shape))]
        if self.op in ("DFT", "STFT") and number == 0:
            # It decides whether numbers are complex.
            dims[-1] = shape[-1]
        return dims


def draws(graph: Graph) -> bool:
    """Whether a graph draws random numbers."""
    return any(isinstance(v, RandomKey) for v in graph.inputs)


def operands(graph: Graph, node: Node) -> list[Array]:
    """What the inputs of the graph of a node hold."""
    return [KEY if isinstance(v, RandomKey) else node.feeds[v.name] for v in graph.inputs]


def bases(most: int = 2) -> dict[Key, list[Node]]:
    """Up to so many nodes of each operator, that differ in their attributes or element types."""
    found: dict[Key, list[Node]] = {}
    seen: dict[Key, set[object]] = {}
    for key, node in (*_own(), *_of_onnx()):
        kinds = tuple(None if x is None else x.dtype.name for x in node.inputs)
        names = [onnx.AttributeProto.FromString(data).name for data in node.attributes]
        alike = (tuple(sorted(names)), kinds)
        if alike not in seen.setdefault(key, set()) and len(seen[key]) < most:
            fixed = node.fixed or _fixed(node)
            if fixed is not None:
                seen[key].add(alike)
                found.setdefault(key, []).append(replace(node, fixed=fixed))
    return found


def _of_onnx() -> Iterator[tuple[Key, Node]]:
    """The smallest first."""
    for case in sorted(cases(), key=_size):
        (node, *others) = case.model.graph.node
        key = domain_of(node.domain), node.op_type
        arrays = dict(zip((v.name for v in case.model.graph.input), case.inputs, strict=True))
        known = all(name in arrays for name in node.input if name)
        if others or key not in IMPORTERS or not known or _size(case) > MOST_ELEMENTS:
            continue
        inputs = tuple(np.asarray(arrays[n]) if n else None for n in node.input)
        if any(x is not None and x.dtype.name not in TENSOR_DTYPES for x in inputs):
            continue
        versions = {domain_of(o.domain): o.version for o in case.model.opset_import}
        opset = versions.get("", LATEST_OPSET)
        attributes = tuple(a.SerializeToString() for a in node.attribute)
        opset = max(min(opset, LATEST_OPSET), LEAST_OPSET)
        outputs = tuple(map(bool, node.output))
        given = inputs, frozenset[int](), attributes, outputs
        yield key, Node(case.name, node.domain, node.op_type, opset, *given)


def _size(case: Case) -> int:
    """Elements of its inputs; of sequences, which no model takes, and of strings, which changes are
    not of, more than there may be."""
    arrays = [x for x in case.inputs if isinstance(x, np.ndarray) and not x.dtype.hasobject]
    return sum(x.size for x in arrays) if len(arrays) == len(case.inputs) else MOST_ELEMENTS + 1


def _fixed(node: Node) -> frozenset[int] | None:
    """The inputs that have to be constants; None if the node is not supported."""
    small = {i for i, x in enumerate(node.inputs) if x is not None and x.size <= MAX_FOLLOWED}
    whole = {i for i in small if (x := node.inputs[i]) is not None and x.dtype.kind == "i"}
    for fixed in (set[int](), whole - {0}, small - {0}, small):
        changed = replace(node, fixed=frozenset(fixed))
        try:
            graph = import_model(changed.model()).graph
            run_reference(graph, operands(graph, changed))
        except FTunerError:
            continue
        return changed.fixed
    return None


def _own() -> Iterator[tuple[Key, Node]]:
    """Operators that ONNX has no tests of."""
    random = np.random.default_rng(0)

    def floats(*shape: int) -> Array:
        return random.standard_normal(shape).astype(np.float32)

    x, row, column, image = floats(2, 3, 8), floats(8), floats(4, 8), floats(1, 2, 5, 6)
    levels, kernel = random.integers(0, 256, image.shape, np.uint8), floats(4, 2, 3, 3)
    matrix, weight = levels[0, 0], random.integers(-128, 128, (6, 4), np.int8)
    taps = random.integers(-128, 128, kernel.shape, np.int8)
    # Scales of which no quotient is half a level, which peers round either way.
    scale, zero, own_zero = np.float32(0.0917), np.uint8(120), np.int8(3)
    of_x, of_w, of_y = [scale, zero], [scale, own_zero], [np.float32(1.9), zero]
    of_share = [np.float32(1 / 256), np.uint8(0)]
    region = np.array([[0, 1, 0, 5, 4]], np.float32)
    activation = {"activation": "LeakyRelu"}
    window = {"kernel_shape": [2, 3], "pads": [1, 0, 0, 1]}
    words, segments = (np.array(x, np.int32) for x in ([[0, 4, 2], [3, 3, 1]], [[0, 1, 1]] * 2))
    joint, joint_bias, heads = floats(8, 12), floats(12), {"num_heads": 2}
    tables = [random.integers(0, 256, n, np.uint8) for n in ((5, 8), (4, 8), (2, 8), 8, 8)]
    blocks = {"K": 8, "N": 5, "bits": 4, "block_size": 16}
    machine: dict[str, Any] = {
        "kernel_type": "RBF", "kernel_params": [0.5, 0.0, 3.0], "rho": [0.25],
        "support_vectors": [*floats(16)], "coefficients": [0.5, -1.0],
    }  # fmt: skip
    tree: dict[str, Any] = {
        "nodes_treeids": [0] * 3, "nodes_nodeids": [0, 1, 2], "nodes_featureids": [1, 0, 0],
        "nodes_values": [0.25, 0.0, 0.0], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0],
    }  # fmt: skip
    leaves: dict[str, Any] = {
        "nodes_featureids": [1], "nodes_modes": numpy_helper.from_array(np.zeros(1, np.uint8), "m"),
        "nodes_splits": numpy_helper.from_array(floats(1), "s"), "tree_roots": [0],
        "nodes_truenodeids": [0], "nodes_falsenodeids": [1], "nodes_trueleafs": [1],
        "nodes_falseleafs": [1], "leaf_targetids": [0, 1], "n_targets": 2,
        "leaf_weights": numpy_helper.from_array(floats(2), "w"),
    }  # fmt: skip
    chances, drops = random.random((2, 8), np.float32), [x, np.float32(0.25), np.array(True)]
    ids, codes = words.astype(np.int64), partial(random.integers, 0, 256, dtype=np.uint8)
    signed = partial(random.integers, -64, 64, dtype=np.int8)
    tokens, of_joint = (words, segments), (signed((4, 12)), joint_bias)
    linear = {"coefficients": [*floats(16)], "intercepts": [0.5, -1.0]}
    ends = {"treeids": [0, 0], "nodeids": [1, 2], "ids": [0, 0], "weights": [-0.5, 1.0]}

    def of_tree(of: str) -> dict[str, Any]:
        return tree | {f"{of}_{name}": numbers for name, numbers in ends.items()}

    rows: list[tuple[str, str, tuple[Any, ...], dict[str, Any]]] = []

    def add(domain: str, op: str, *inputs: Any, **attributes: Any) -> None:
        rows.append((domain, op, inputs, attributes))

    plain, microsoft, learning = (partial(add, domain) for domain in ("", MICROSOFT, LEARNING))
    plain("RandomNormal", shape=[2, 3], mean=1.0)
    plain("RandomNormalLike", x, scale=2.0)
    plain("RandomUniform", shape=[2, 3], seed=1.0)
    plain("RandomUniformLike", x, high=2.0)
    plain("Bernoulli", chances)
    plain("Multinomial", chances, sample_size=3)
    plain("Dropout", *drops, seed=1)
    plain("SimplifiedLayerNormalization", x, row, axis=-1, epsilon=1e-5)
    plain("GlobalLpPool", image, p=3)
    plain("MaxRoiPool", image, region, pooled_shape=[2, 2])
    plain("RoiAlign", image, region[:, 1:], np.zeros(1, np.int64), sampling_ratio=0)
    microsoft("BiasGelu", x, row)
    microsoft("FastGelu", x, row)
    microsoft("Gelu", x)
    microsoft("QuickGelu", x, alpha=1.5)
    microsoft("FusedMatMul", x, column, transB=1, alpha=0.5)
    microsoft("Attention", x, joint, joint_bias, **heads)
    microsoft("MultiHeadAttention", x, x + 1, x - 1, **heads)
    microsoft(
        "QAttention", levels[0, :, :3, :4], *of_joint, scale, scale, None, zero, own_zero, **heads
    )
    microsoft(
        "EmbedLayerNormalization", *tokens, *map(floats, (5, 4, 2), [8] * 3), row, row, epsilon=1e-5
    )
    microsoft(
        "QEmbedLayerNormalization", *tokens, *tables, None, *[scale] * 5, *[zero] * 5, epsilon=1e-5
    )
    microsoft("MatMulNBits", x, codes((5, 1, 8)), floats(5, 1), **blocks)
    microsoft("MatMulBnb4", x, codes(20), floats(3), K=8, N=5, block_size=16, quant_type=1)
    microsoft("CDist", x[0], x[0] + 1, metric="euclidean")
    microsoft("GatherBlockQuantized", codes((5, 8)), np.array([4, 0]), floats(5, 1), block_size=16)
    learning("ArrayFeatureExtractor", x[0], np.array([2, 0]))
    learning("Binarizer", row, threshold=0.25)
    learning("Imputer", column, imputed_value_floats=[0.5], replaced_value_float=math.nan)
    learning("LabelEncoder", ids, keys_int64s=[4, 0, 3], values_floats=[1.0, 2.0, 3.0])
    learning(
        "LinearClassifier", column, **linear, classlabels_ints=[7, 3], post_transform="LOGISTIC"
    )
    learning("LinearRegressor", column, **linear, targets=2)
    learning("Normalizer", column, norm="L1")
    learning("SVMClassifier", column, **machine, vectors_per_class=[1, 1], classlabels_ints=[3, 1])
    learning("SVMRegressor", column, **machine, n_supports=2)
    learning("CategoryMapper", ids, cats_int64s=[4, 0, 3], cats_strings=["a", "b", "c"])
    learning("TreeEnsemble", column, **leaves)
    learning("TreeEnsembleClassifier", column, **of_tree("class"), classlabels_int64s=[3, 1])
    learning("TreeEnsembleRegressor", column, **of_tree("target"), n_targets=1)
    learning("OneHotEncoder", ids, cats_int64s=[4, 0, 3])
    learning("Scaler", column, offset=[0.5], scale=[2.0])
    microsoft("DequantizeLinear", levels, *of_x)
    microsoft(
        "DynamicQuantizeLSTM",
        x,
        signed((1, 8, 12)),
        signed((1, 3, 12)),
        *[None] * 5,
        *[floats(1) / 64, np.zeros(1, np.int8)] * 2,
        hidden_size=3,
    )
    microsoft("DynamicQuantizeMatMul", image, weight, scale, own_zero)
    microsoft("FusedConv", image, kernel, **activation, activation_params=[0.5])
    microsoft("FusedGemm", column, row[:, None], **activation, activation_alpha=0.5)
    microsoft("MatMulIntegerToFloat", matrix, weight, scale, scale, *of_x[1:], own_zero)
    microsoft(
        "GroupQueryAttention",
        floats(2, 3, 16),
        x,
        x + 1,
        None,
        None,
        np.full(2, 2, np.int32),
        np.int32(3),
        num_heads=2,
        kv_num_heads=1,
    )
    microsoft("RotaryEmbedding", x, np.array([[0, 1, 2], [5, 6, 7]]), floats(9, 4), floats(9, 4))
    microsoft("NhwcMaxPool", levels, **window)
    microsoft("QGemm", matrix, *of_x, weight, *of_w, None, *of_y, alpha=0.5)
    microsoft("QLinearAdd", levels, *of_x, matrix, *of_x, *of_y)
    microsoft("QLinearAveragePool", levels, *of_x, *of_y, **window)
    microsoft("QLinearConcat", *of_y, levels, *of_x, levels, *of_x, axis=1)
    microsoft("QLinearConv", levels, *of_x, taps, *of_w, *of_y, pads=[1, 0, 0, 1])
    microsoft("QLinearGlobalAveragePool", levels, *of_x, *of_y, channels_last=0)
    microsoft("QLinearLeakyRelu", levels, *of_x, *of_y, alpha=0.5)
    microsoft("QLinearMul", levels, *of_x, matrix, *of_x, *of_y)
    microsoft("QLinearReduceMean", levels, *of_x, *of_y, axes=[2], keepdims=0)
    microsoft("QLinearSigmoid", levels, *of_x, *of_y)
    microsoft("QLinearSoftmax", levels, *of_x, *of_share, axis=3, opset=13)
    microsoft("QLinearWhere", matrix > 99, levels, *of_x, matrix, *of_x, *of_y)
    microsoft("QuantizeLinear", image, *of_x)
    microsoft("SkipLayerNormalization", x, x + 1, row, row, epsilon=1e-5)
    microsoft("SkipSimplifiedLayerNormalization", x, x + 1, row, epsilon=1e-5)
    for domain, op, inputs, attributes in rows:
        made = tuple(helper.make_attribute(k, v).SerializeToString() for k, v in attributes.items())
        given = tuple(None if i is None else np.asarray(i) for i in inputs)
        # The norm comes with the number of tokens that count, and the label with its score.
        two = "EmbedLayer" in op or op.endswith("Classifier")
        outputs = (True, True) if two else (True,)
        # Keys and values come with the result.
        outputs = (True,) * 3 if op == "GroupQueryAttention" else outputs
        # onnxruntime takes tables only as constants, or of known extents.
        fixed = [i for i in range(2, len(given)) if "EmbedLayer" in op and given[i] is not None]
        node = Node(op, domain, op, 17, given, frozenset(fixed), made, outputs)
        yield (domain, op), node
