"""Running models by onnxruntime, or by ONNX's reference evaluator where that lacks a kernel."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator
from tests.random_graphs.cases import Case, Feeds
from tests.random_graphs.table import LATEST
from tests.reference import Array

Run = Callable[[Feeds], list[Any]]

MENDED = {
    "Softmax": 13, "LogSoftmax": 13, "BatchNormalization": 14, "Slice": LATEST, "LRN": LATEST + 1,
    "GlobalMaxPool": LATEST + 1,
}  # fmt: skip
"""Versions since which ONNX's evaluator is right: it takes Softmax of before as the later one,
computes BatchNormalization by statistics of its own, begins a Slice whose start is before the first
element elsewhere than the specification says, sums for LRN as many channels as there are images,
and reduces the axes of a picture for GlobalMaxPool whatever the rank."""


LIMITED = (
    "not currently supported", "Invalid num_outputs value", "batch_size must be 1 when",
    "is NaN",
)  # fmt: skip
"""What onnxruntime says where a kernel of it lacks a part of its operator (a GroupQueryAttention
of several sequences with a past takes one position each, a Binarizer no NaN), or where a Split has
an empty piece, on which implementations do not agree."""


LARGE = 1e3
"""From here on numbers are lost that onnxruntime's LRN adds to the sum of a window, and takes away
as the window moves on."""


class SilentError(Exception):
    """The peer cannot say."""


class RefusedError(Exception):
    """The peer has no way to run the model, or not on these inputs."""


def onnxruntime_of(case: Case) -> Run | None:
    """None where onnxruntime lacks a kernel.

    Raises:
        RefusedError: it says that the model is invalid.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(case.model, options)
    except Exception as error:
        if "NOT_IMPLEMENTED" in str(error):
            return None
        raise RefusedError(str(error)) from None

    slides, pools = (
        any(node.op_type == op for node in case.proto.graph.node) for op in ("LRN", "MaxPool")
    )

    def run(feeds: Feeds) -> list[Any]:
        if slides and any(
            x.dtype.kind == "f" and not np.all(np.abs(x) < LARGE) for x in feeds.values()
        ):
            raise SilentError("sums of a sliding window after large numbers")
        try:
            found = [np.asarray(x) for x in session.run(None, dict(feeds))]
            return [_of_no_element(x) for x in found] if pools else found
        except Exception as error:
            raise (SilentError if any(text in str(error) for text in LIMITED) else RefusedError)(
                str(error)
            ) from None

    return run


def _of_no_element(x: Array) -> Array:
    """A result in which the maximum of a window of padding alone, for onnxruntime the lowest
    number, is minus infinity."""
    if x.dtype.kind != "f":
        return x
    return np.where(x == np.finfo(x.dtype).min, -np.inf, x).astype(x.dtype)


def _misread(node: onnx.NodeProto, version: int) -> bool:
    """Whether ONNX's evaluator is known to be wrong on a node: see `MENDED`; and where a pool
    rounds its extents up, it counts windows that begin in the padding. What Unique gives it sorts
    if that is all, and takes from the first axis if it is not to be sorted. It ignores the lengths
    of sequences, limits and coupled gates of recurrences, has other probabilities of support
    vectors, runs no loop without a condition, has lists in the place of optional tensors, and
    places of maxima of its own."""
    named = {a.name for a in node.attribute}
    if node.op_type in ("RNN", "GRU", "LSTM") and (
        any(node.input[4:5]) or named & {"clip", "input_forget"}
    ):
        return True
    if node.op_type == "SVMClassifier" and "prob_a" in named:
        return True
    if node.op_type == "Loop" and not node.input[1]:
        return True
    if node.op_type.startswith("Optional") or (node.op_type == "MaxPool" and any(node.output[1:])):
        return True
    if node.op_type == "Slice" and len(node.input) < 5:
        return False
    if node.op_type == "Unique":
        return any(a.name == "sorted" and not a.i for a in node.attribute)
    rounds_up = any(a.name == "ceil_mode" and a.i for a in node.attribute)
    return rounds_up or version < MENDED.get(node.op_type, 0)


def evaluator_of(case: Case) -> Run | None:
    """ONNX's own implementation in NumPy; None where it lacks an operator."""
    proto = case.proto
    version = next(o.version for o in proto.opset_import if o.domain in ("", "ai.onnx"))
    if any(_misread(node, version) for node in proto.graph.node):
        return None
    try:
        evaluator = ReferenceEvaluator(proto)
    except Exception:  # It has errors of many types, and some of its operators need other packages.
        return None

    def run(feeds: Feeds) -> list[Any]:
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                return [np.asarray(x) for x in evaluator.run(None, dict(feeds))]
        except Exception as error:
            raise RefusedError(f"{type(error).__name__}: {error}") from None

    return run
