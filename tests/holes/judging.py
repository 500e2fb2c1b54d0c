"""What a model with holes is held to: right, as onnxruntime says, or refused by name."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime
from tests.holes import declarations, feeding, versions
from tests.holes.bases import BASES, Array, Base, Feeds, exported

import ftuner

Run = Callable[[Feeds], list[Array]]
ROUGHLY = {"rtol": 1e-3, "atol": 1e-4}


def _holes_of(module: ModuleType) -> dict[str, Any]:
    """The public functions that a module defines."""
    return {
        name: found for name, found in vars(module).items()
        if isinstance(found, FunctionType) and found.__module__ == module.__name__
        and not name.startswith("_")
    }  # fmt: skip


_VERSIONS = _holes_of(versions)
BESIDES = {name: hole for name, hole in _VERSIONS.items() if name.startswith("beside")}
MODEL_HOLES = _holes_of(declarations) | {n: x for n, x in _VERSIONS.items() if n not in BESIDES}
REFUSED_BY_PEERS = (
    "The input tensor cannot be reshaped to the requested shape",
    "operand cannot broadcast on dim",
    "OpKernelContext::OutputMLValue",
)
"""What onnxruntime does not run, and ftuner does: an extent of -1 of a tensor without elements that
the other extents decide; products that broadcast 1 to 0; a sum of axes that are named alike and
differ, for which it has planned the memory of one operand."""
FEEDINGS = _holes_of(feeding)
REFUSED = frozenset({
    "an_input_without_type", "a_dead_product", "a_dead_unknown_node",
    "an_initialiser_twice", "an_output_twice", "a_tensor_made_twice", "an_input_twice",
    "an_initialiser_named_as_an_output", "no_opset", "no_opset_of_onnx", "two_opsets",
    "two_names_of_onnx", "a_function_that_is_not_there", "a_function_of_an_operator_of_onnx",
    "a_constant_that_is_too_short", "a_constant_that_is_too_long",
    "beside_truncated", "beside_empty", "beside_missing",
})  # fmt: skip
"""Holes that no model is loaded with: what a model means is not known, or its file is damaged."""


@dataclass
class Verdict:
    """What became of the holes of a base."""

    findings: list[str] = field(default_factory=list)
    answers: int = 0
    refusals: dict[str, int] = field(default_factory=dict)
    """By the name of the error."""
    loaded: set[str] = field(default_factory=set)
    """Holes that a model was loaded with."""


def judge(payload: tuple[str, Sequence[int]]) -> Verdict:
    """All holes, each with each seed, in a base: its name, or a folder of an exported file."""
    name, seeds = payload
    base = BASES[name]() if name in BASES else exported(Path(name))
    verdict = Verdict()
    folder = Path(tempfile.mkdtemp(prefix="holes-"))
    path = folder / "model.onnx"
    path.write_bytes(base.model)
    whole = _onnxruntime(path)
    loaded = ftuner.load(path, threads=1)
    for seed in seeds:
        for hole, change in MODEL_HOLES.items():
            model = base.proto
            change(model, Random(seed))
            _judge_model(
                f"{base.name}, {hole}, seed {seed}", hole, model, base, whole, verdict, path
            )
    for hole, apart in BESIDES.items():
        model = base.proto
        contents = apart(model)
        (folder / versions.BESIDE).unlink(missing_ok=True)
        if contents is not None:
            (folder / versions.BESIDE).write_bytes(contents)
        _judge_model(f"{base.name}, {hole}", hole, model, base, whole, verdict, path)
    for seed in seeds:
        for hole, change in FEEDINGS.items():
            for number, given in enumerate(base.feeds):
                feeds = dict(given)
                change(feeds, Random(seed))
                what = f"{base.name}, {hole}, seed {seed}, feeds {number}"
                _judge_run(what, loaded.run, whole, None, feeds, verdict)
    return verdict


def _judge_model(
    what: str, hole: str, model: onnx.ModelProto, base: Base, whole: Run, verdict: Verdict,
    path: Path,
) -> None:  # fmt: skip
    path.write_bytes(model.SerializeToString())
    try:
        loaded = ftuner.load(path, threads=1)
    except ftuner.FTunerError as error:
        _refuse(error, verdict)
        return
    except Exception as error:
        verdict.findings.append(f"{what}: {type(error).__name__}: {error!s:.300}")
        return
    verdict.loaded.add(hole)
    try:
        peer: Run | None = _onnxruntime(path)
    except Exception:
        peer = None
    for number, feeds in enumerate(base.feeds):
        _judge_run(f"{what}, feeds {number}", loaded.run, peer, whole, feeds, verdict)


def _judge_run(
    what: str, run: Run, peer: Run | None, whole: Run | None, feeds: Feeds, verdict: Verdict
) -> None:
    """Compare with a peer. Where that refuses the model, or to run it, compare with the model that
    holes were made in, if only declarations changed."""
    try:
        results = run(dict(feeds))
    except ftuner.FTunerError as error:
        _refuse(error, verdict)
        return
    except Exception as error:
        verdict.findings.append(f"{what}: {type(error).__name__}: {error!s:.300}")
        return
    verdict.answers += 1
    wanted = None
    for reference in (peer, whole):
        try:
            wanted = None if reference is None else reference(dict(feeds))
        except Exception as error:
            refusal = str(error)
            continue
        if wanted is not None:
            break
    if wanted is None:
        if not any(text in refusal for text in REFUSED_BY_PEERS):
            verdict.findings.append(f"{what}: an answer where onnxruntime says {refusal:.300}")
    elif text := _difference(results, wanted):
        verdict.findings.append(f"{what}: {text}")


def _refuse(error: ftuner.FTunerError, verdict: Verdict) -> None:
    name = type(error).__name__
    verdict.refusals[name] = verdict.refusals.get(name, 0) + 1


def _onnxruntime(path: Path) -> Run:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options)
    return lambda feeds: [np.asarray(x) for x in session.run(None, feeds)]


def _difference(found: Sequence[Array], wanted: Sequence[Array]) -> str:
    if len(found) != len(wanted):
        return f"{len(found)} outputs, not {len(wanted)}"
    for number, (x, y) in enumerate(zip(found, wanted, strict=True)):
        if x.dtype != y.dtype or x.shape != y.shape:
            return f"output {number} is {x.dtype}{x.shape}, not {y.dtype}{y.shape}"
        if not np.allclose(x, y, **ROUGHLY, equal_nan=True):
            return f"output {number} is apart by {np.nanmax(np.abs(x - y)):.2g}"
    return ""
