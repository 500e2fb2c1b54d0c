"""Nodes that hostile changes begin with: for every importer of the registry, some that are right.

Those of ONNX's own operators are taken from the tests that ONNX comes with; others are listed here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
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
        yield (
            key,
            Node(
                case.name,
                node.domain,
                node.op_type,
                opset,
                inputs,
                frozenset(),
                attributes,
                outputs,
            ),
        )


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
    words, segments = (
        np.array([[0, 4, 2], [3, 3, 1]], np.int32),
        np.array([[0, 1, 1]] * 2, np.int32),
    )
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
    for domain, op, inputs, attributes in (
        ("", "RandomNormal", [], {"shape": [2, 3], "mean": 1.0}),
        ("", "RandomNormalLike", [x], {"scale": 2.0}),
        ("", "RandomUniform", [], {"shape": [2, 3], "seed": 1.0}),
        ("", "RandomUniformLike", [x], {"high": 2.0}),
        ("", "Bernoulli", [chances], {}),
        ("", "Multinomial", [chances], {"sample_size": 3}),
        ("", "Dropout", drops, {"seed": 1}),
        ("", "SimplifiedLayerNormalization", [x, row], {"axis": -1, "epsilon": 1e-5}),
        ("", "GlobalLpPool", [image], {"p": 3}),
        ("", "MaxRoiPool", [image, region], {"pooled_shape": [2, 2]}),
        ("", "RoiAlign", [image, region[:, 1:], np.zeros(1, np.int64)], {"sampling_ratio": 0}),
        (MICROSOFT, "BiasGelu", [x, row], {}),
        (MICROSOFT, "FastGelu", [x, row], {}),
        (MICROSOFT, "Gelu", [x], {}),
        (MICROSOFT, "QuickGelu", [x], {"alpha": 1.5}),
        (MICROSOFT, "FusedMatMul", [x, column], {"transB": 1, "alpha": 0.5}),
        (MICROSOFT, "Attention", [x, joint, joint_bias], heads),
        (MICROSOFT, "MultiHeadAttention", [x, x + 1, x - 1], heads),
        (
            MICROSOFT,
            "QAttention",
            [
                levels[0, :, :3, :4],
                random.integers(-99, 99, (4, 12), np.int8),
                joint_bias,
                scale,
                scale,
                None,
                zero,
                own_zero,
            ],
            heads,
        ),
        (
            MICROSOFT,
            "EmbedLayerNormalization",
            [words, segments, floats(5, 8), floats(4, 8), floats(2, 8), row, row],
            {"epsilon": 1e-5},
        ),
        (
            MICROSOFT,
            "QEmbedLayerNormalization",
            [words, segments, *tables, None, *[scale] * 5, *[zero] * 5],
            {"epsilon": 1e-5},
        ),
        (
            MICROSOFT,
            "MatMulNBits",
            [x, random.integers(0, 256, (5, 1, 8), np.uint8), floats(5, 1)],
            blocks,
        ),
        (
            MICROSOFT,
            "MatMulBnb4",
            [x, random.integers(0, 256, 20, np.uint8), floats(3)],
            {"K": 8, "N": 5, "block_size": 16, "quant_type": 1},
        ),
        (MICROSOFT, "CDist", [x[0], x[0] + 1], {"metric": "euclidean"}),
        (
            MICROSOFT,
            "GatherBlockQuantized",
            [random.integers(0, 256, (5, 8), np.uint8), np.array([4, 0]), floats(5, 1)],
            {"block_size": 16},
        ),
        (LEARNING, "ArrayFeatureExtractor", [x[0], np.array([2, 0])], {}),
        (LEARNING, "Binarizer", [row], {"threshold": 0.25}),
        (
            LEARNING,
            "Imputer",
            [column],
            {"imputed_value_floats": [0.5], "replaced_value_float": math.nan},
        ),
        (
            LEARNING,
            "LabelEncoder",
            [words.astype(np.int64)],
            {"keys_int64s": [4, 0, 3], "values_floats": [1.0, 2.0, 3.0]},
        ),
        (
            LEARNING,
            "LinearClassifier",
            [column],
            {
                "coefficients": [*floats(16)],
                "intercepts": [0.5, -1.0],
                "classlabels_ints": [7, 3],
                "post_transform": "LOGISTIC",
            },
        ),
        (
            LEARNING,
            "LinearRegressor",
            [column],
            {"coefficients": [*floats(16)], "intercepts": [0.5, -1.0], "targets": 2},
        ),
        (LEARNING, "Normalizer", [column], {"norm": "L1"}),
        (
            LEARNING,
            "SVMClassifier",
            [column],
            {**machine, "vectors_per_class": [1, 1], "classlabels_ints": [3, 1]},
        ),
        (LEARNING, "SVMRegressor", [column], {**machine, "n_supports": 2}),
        (
            LEARNING,
            "CategoryMapper",
            [words.astype(np.int64)],
            {"cats_int64s": [4, 0, 3], "cats_strings": ["a", "b", "c"]},
        ),
        (LEARNING, "TreeEnsemble", [column], leaves),
        (
            LEARNING,
            "TreeEnsembleClassifier",
            [column],
            {
                **tree,
                "class_treeids": [0, 0],
                "class_nodeids": [1, 2],
                "class_ids": [0, 0],
                "class_weights": [-0.5, 1.0],
                "classlabels_int64s": [3, 1],
            },
        ),
        (
            LEARNING,
            "TreeEnsembleRegressor",
            [column],
            {
                **tree,
                "target_treeids": [0, 0],
                "target_nodeids": [1, 2],
                "target_ids": [0, 0],
                "target_weights": [-0.5, 1.0],
                "n_targets": 1,
            },
        ),
        (LEARNING, "OneHotEncoder", [words.astype(np.int64)], {"cats_int64s": [4, 0, 3]}),
        (LEARNING, "Scaler", [column], {"offset": [0.5], "scale": [2.0]}),
        (MICROSOFT, "DequantizeLinear", [levels, *of_x], {}),
        (
            MICROSOFT,
            "DynamicQuantizeLSTM",
            [
                x,
                random.integers(-64, 64, (1, 8, 12), np.int8),
                random.integers(-64, 64, (1, 3, 12), np.int8),
                *[None] * 5,
                *[floats(1) / 64, np.zeros(1, np.int8)] * 2,
            ],
            {"hidden_size": 3},
        ),
        (MICROSOFT, "DynamicQuantizeMatMul", [image, weight, scale, own_zero], {}),
        (MICROSOFT, "FusedConv", [image, kernel], {**activation, "activation_params": [0.5]}),
        (MICROSOFT, "FusedGemm", [column, row[:, None]], {**activation, "activation_alpha": 0.5}),
        (
            MICROSOFT,
            "MatMulIntegerToFloat",
            [matrix, weight, scale, scale, *of_x[1:], own_zero],
            {},
        ),
        (
            MICROSOFT,
            "GroupQueryAttention",
            [floats(2, 3, 16), x, x + 1, None, None, np.full(2, 2, np.int32), np.int32(3)],
            {"num_heads": 2, "kv_num_heads": 1},
        ),
        (
            MICROSOFT,
            "RotaryEmbedding",
            [x, np.array([[0, 1, 2], [5, 6, 7]]), floats(9, 4), floats(9, 4)],
            {},
        ),
        (MICROSOFT, "NhwcMaxPool", [levels], window),
        (MICROSOFT, "QGemm", [matrix, *of_x, weight, *of_w, None, *of_y], {"alpha": 0.5}),
        (MICROSOFT, "QLinearAdd", [levels, *of_x, matrix, *of_x, *of_y], {}),
        (MICROSOFT, "QLinearAveragePool", [levels, *of_x, *of_y], window),
        (MICROSOFT, "QLinearConcat", [*of_y, levels, *of_x, levels, *of_x], {"axis": 1}),
        (MICROSOFT, "QLinearConv", [levels, *of_x, taps, *of_w, *of_y], {"pads": [1, 0, 0, 1]}),
        (MICROSOFT, "QLinearGlobalAveragePool", [levels, *of_x, *of_y], {"channels_last": 0}),
        (MICROSOFT, "QLinearLeakyRelu", [levels, *of_x, *of_y], {"alpha": 0.5}),
        (MICROSOFT, "QLinearMul", [levels, *of_x, matrix, *of_x, *of_y], {}),
        (MICROSOFT, "QLinearReduceMean", [levels, *of_x, *of_y], {"axes": [2], "keepdims": 0}),
        (MICROSOFT, "QLinearSigmoid", [levels, *of_x, *of_y], {}),
        (MICROSOFT, "QLinearSoftmax", [levels, *of_x, *of_share], {"axis": 3, "opset": 13}),
        (MICROSOFT, "QLinearWhere", [matrix > 99, levels, *of_x, matrix, *of_x, *of_y], {}),
        (MICROSOFT, "QuantizeLinear", [image, *of_x], {}),
        (MICROSOFT, "SkipLayerNormalization", [x, x + 1, row, row], {"epsilon": 1e-5}),
        (MICROSOFT, "SkipSimplifiedLayerNormalization", [x, x + 1, row], {"epsilon": 1e-5}),
    ):
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
