"""What a mutant is held to: it is loaded or refused by name, soon and in little memory; and what is
loaded runs as references and onnxruntime do."""

import math
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
from tests.mutants.corpus import BESIDE
from tests.mutants.mutating import mutant
from tests.random_graphs.cases import Case, Feeds
from tests.random_graphs.checking import CPU
from tests.random_graphs.checking import check as check_case

from ftuner.core.dim import Symbolic, symbols_of
from ftuner.core.evaluation import evaluate
from ftuner.errors import FTunerError
from ftuner.frontends.onnx.importer import import_model
from ftuner.graph.ir import Graph
from ftuner.graph.lowering import lower
from ftuner.graph.passes.pipeline import optimised

LOAD_SECONDS = 1.0
"""Of this process's CPUs: for reading, passes and lowering."""
LOAD_BYTES = 200 << 20
EXTENTS = (1, 2, 3, 4, 5, 7, 8, 0)
RUNS = 3
MAX_ELEMENTS = 1 << 16
"""Of a tensor of a mutant that is run: it may be loaded, and ask for any amount of work."""
MAX_NODES = 60
JUDGED = frozenset({"foreign exception", "wrong", "not the same again", "wrote outside"})
"""Findings of random graphs that are findings of mutants. What one side refuses is none: ftuner
and its peers differ in what they make of what the specification leaves open."""


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant."""

    refused: str = ""
    """The name of the error."""
    runs: int = 0
    peer: str = ""
    findings: tuple[tuple[str, str], ...] = ()
    load_seconds: float = 0.0


def check(payload: tuple[bytes | int, bool]) -> Outcome:
    """Load a mutant, given by its bytes or its seed, and run it if that is asked for."""
    given, runs = payload
    data = mutant(given) if isinstance(given, int) else given
    path = _folder() / "model.onnx"
    path.write_bytes(data)
    began = time.process_time()
    try:
        graph = import_model(path).graph
        lower(optimised(graph))
    except FTunerError as error:
        return _timed(Outcome(type(error).__name__), began)
    outcome = _timed(Outcome(), began)
    # What runs is given by its bytes alone.
    cases = _case(data, graph) if runs and BESIDE.encode() not in data else None
    if cases is None or outcome.findings:
        return outcome
    report = check_case((cases, CPU))
    found = tuple(f for f in report.findings if f[0] in JUDGED)
    return Outcome(runs=report.runs, peer=report.peer, findings=found)


@cache
def _folder() -> Path:
    """Of this process, for a model and the file beside it. The bench removes it."""
    folder = Path(tempfile.mkdtemp(prefix="mutants-"))
    (folder / BESIDE).write_bytes(np.arange(32, dtype=np.float32).tobytes())
    return folder


def _timed(outcome: Outcome, began: float) -> Outcome:
    seconds = time.process_time() - began
    findings = (("slow", f"{seconds:.1f} s to load"),) if seconds > LOAD_SECONDS else ()
    return Outcome(outcome.refused, findings=findings, load_seconds=seconds)


def _case(data: bytes, graph: Graph) -> Case | None:
    """The model with inputs of some extents; None if it is a lot of work, or has types that a CPU
    does not take."""
    if len(graph.nodes) > MAX_NODES:
        return None
    try:
        import_model(data)
    except FTunerError:
        return None
    random = Random(len(data))
    names = sorted(symbols_of([d for value in graph.inputs for d in value.shape]))
    found: list[Feeds] = []
    for seed in range(RUNS):
        values = {name: random.choice(EXTENTS) for name in names}
        if not _is_small(graph, values):
            return None
        generator = np.random.default_rng(seed)
        found.append({
            v.name: _elements(tuple(evaluate(d, values) for d in v.shape), v.dtype.name, generator)
            for v in graph.inputs
        })  # fmt: skip
    return Case(data, tuple(found), len(data))


def _is_small(graph: Graph, values: Mapping[str, int]) -> bool:
    """Whether all tensors are. Extents that data decides are not known."""
    tensors = [*graph.inputs, *(v for node in graph.nodes for v in node.outputs)]
    tensors += [v for node in graph.nodes for v in node.inputs]
    for value in tensors:
        shape = []
        for dim in value.shape:
            if isinstance(dim, Symbolic) and not all(n in values for n in symbols_of((dim,))):
                return False
            try:
                shape.append(evaluate(dim, values))
            except ZeroDivisionError:
                return True  # Binding refuses it.
        # NumPy has no array of no elements that is too large without its empty axes.
        if math.prod(max(n, 1) for n in shape) > MAX_ELEMENTS:
            return False
    return True


def _elements(shape: tuple[int, ...], dtype: str, random: np.random.Generator) -> np.ndarray:
    if dtype == "bool":
        return np.asarray(random.random(shape) < 0.5)
    if dtype.startswith("float"):
        return np.asarray(random.standard_normal(shape)).astype(dtype)
    return np.asarray(random.integers(-2, 4, shape)).astype(dtype)
