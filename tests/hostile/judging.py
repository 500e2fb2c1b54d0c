"""What changed nodes are held to: the right answer, or an error of ftuner's own."""

import math
import os
import re
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator
from tests.hostile.bases import KEY, Array, Node, draws, operands
from tests.hostile.changes import Change, at_run_time, of_models
from tests.hostile.definitions import DEFINITIONS, definition
from tests.random_graphs.truth import UnstableError, difference, expected

from ftuner.core.evaluation import evaluate
from ftuner.errors import FTunerError
from ftuner.frontends.onnx.importer import import_model
from ftuner.graph.ir import Graph
from ftuner.graph.passes.pipeline import optimised
from ftuner.hardware.system import isas_of, read_system
from ftuner.runtime.chain import MAX_TRIPS_VARIABLE
from ftuner.runtime.cpu import compilation as compiling
from ftuner.runtime.cpu.backend import CpuBackend, default_backend
from ftuner.runtime.model import Model
from ftuner.runtime.reference import run_reference
from ftuner.runtime.shapes.binding import bind

ROUGHLY = (1e-3, 1e-5)
"""Relative and absolute: peers approximate in their own ways."""
MOST_ELEMENTS, NEVER = 1 << 20, 1 << 44
"""Of results that references are asked for; and so many that no machine has memory for them, which
compiled models are to say. Those between are not run."""
MODELS = 20
"""Changed models of a node that are looked at where not all are, by a hash of what was changed."""

EXPLAINED = {
    "floats that no integer holds: ONNX leaves open what they become, peers differ": (
        r"(Cast|CastLike) ", r"Pow test_pow_types_int",
        r"QuantizeLinear \S+ (input [01]|all inputs): ",
        r"(DynamicQuantizeLinear|DynamicQuantizeMatMul) \S+ .*: .*(nan|inf|mixed|1e-45)",
        # The mean of no elements.
        r"(QLinearGlobalAveragePool|QLinearReduceMean) \S+ (input 0|all inputs): 0 along axis",
    ),
    "the mean of no elements is zero, as that of onnxruntime where it computes one": (
        r"(GlobalAveragePool|LayerNormalization) \S+ (input 0|all inputs): 0 along axis",
    ),
    "peers take tables of two axes alone": (
        r"(TreeEnsemble|TreeEnsembleClassifier|TreeEnsembleRegressor) \S+ "
        r"(input 0|all inputs): (its first|flat)",
        r"(SVMClassifier|SVMRegressor) \S+ (input 0|all inputs): (its first|flat)",
    ),
    "indices are cast to integers, as the specification says, and NaN is none": (
        r"OneHot \S+ (input 0|all inputs): (halves|all 1e-45|mixed)",
    ),
    "a function of an infinity is the limit there; peers multiply it by zero, or divide two": (
        r"(Gelu|BiasGelu|FastGelu|QuickGelu|Swish|Mish|HardSwish) \S+ .*: (minus infinity|mixed)",
        r"Softsign \S+ .*: (infinity|minus infinity|mixed)",
    ),
    "samples at positions that are no numbers: peers convert them to integers": (
        r"RoiAlign \S+ (input 1|all inputs: mixed|spatial_scale)",
        r"MaxRoiPool \S+ (input 1|spatial_scale)", r"GridSample \S+ (input 1|all inputs)",
    ),
    "weights of zero times infinities, and the largest of no numbers": (
        r"(RoiAlign|MaxRoiPool) \S+ input 0: (infinity|minus infinity|mixed)",
    ),
    "zeros around an image are multiplied by weights, which peers leave out": (
        r"ConvTranspose \S+ (input 1|all inputs): .*(nan|inf|mixed|huge)",
    ),
    "samples of huge elements of both signs cancel but for their rounding": (
        r"(RoiAlign|GridSample) \S+ (input 0|all inputs): huge",
    ),
    "peers have it for four axes only": (r"LRN \S+ input 0: (an axis|two of it|its first)",),
    "onnxruntime never returns from a convolution of no channels, or by no weights": (
        r"(Conv|FusedConv) \S+ all inputs: 0 along axis -3",
        r"FusedConv \S+ (input 1|all inputs): 0 along axis",
    ),
    "peers have one scale and one zero point for all rows": (r"QLinearMatMul \S+ input [12]: ",),
    "onnxruntime leaves open what a convolution by no weights gives": (
        r"QLinearConv \S+ (input 3|all inputs): 0 along axis",
    ),
    "scores overflow, and which of several infinite ones counts is open": (
        r"(MultiHeadAttention|Attention) \S+ (input [01]|all inputs): huge",
    ),
    "sums of products with sines: infinities times zeros are no numbers, and huge terms cancel": (
        r"DFT \S+ .*: (infinity|minus infinity|mixed)", r"STFT \S+ input 0: huge",
        r"STFT \S+ input 1: an axis in front",
    ),
    "a state between two levels may be rounded to either, and numbers that are not finite have no "
    "level": (r"DynamicQuantizeLSTM ",),
    "filters beyond the spectrum have no weights": (r"MelWeightMatrix \S+ input 2: ",),
    "onnxruntime's scores of NaN weigh nothing": (
        r"GroupQueryAttention \S+ .*: (nan|infinity|minus infinity|mixed|huge)",
    ),
    "what is beyond the end of a sequence is left open": (
        r"GroupQueryAttention \S+ input 5: ",
    ),
    "onnxruntime has no cache that begins empty and is longer than the first call": (
        r"GroupQueryAttention \S+ all inputs: [01] along axis -2",
    ),
    "onnxruntime aborts the process on no steps": (
        r"(LSTM|GRU|RNN) \S+ (input 0|all inputs): 0 along axis -?[03]",
    ),
    "onnxruntime aborts the process on a deviation that is not above zero, and where no number is "
    "from the lower end to the upper one": (
        r"(RandomNormal|RandomNormalLike) \S+ scale = ",
        r"(RandomUniform|RandomUniformLike) \S+ (low|high) = ",
    ),
    "onnxruntime has no Scan of nothing": (r"Scan \S+ .*: 0 along axis",),
    "an operator of a later set than peers have, for which nothing is checked": (
        r"(CumProd|BitCast) \S+ (one more input|an attribute of no such name)",
    ),
    "keys that a mask hides are not read, whatever they hold": (
        r"Attention \S*causal",
    ),
}  # fmt: skip
"""Where an answer that no peer gives is right, and why: name of the case, and the change."""
WITHOUT_VNNI = {
    "onnxruntime's kernels add two products of 8-bit integers in 16 bits, where they saturate": (
        r"(QAttention|DynamicQuantizeMatMul|MatMulIntegerToFloat|QLinearConv|QGemm) ",
    )
}
"""What is explained on CPUs without instructions for sums of 8-bit products."""
MOST_TRIPS = 1000
"""Iterations of a loop that does not end."""


def _patterns() -> Iterator[str]:
    yield from chain.from_iterable(EXPLAINED.values())
    if read_system().features.isdisjoint({"avx512_vnni", "avx_vnni"}):
        yield from chain.from_iterable(WITHOUT_VNNI.values())


_EXPLAINED = re.compile("|".join(f"(?:{p})" for p in _patterns()))


@dataclass
class Verdict:
    """What became of the changes of one node."""

    findings: list[str] = field(default_factory=list)
    operators: set[str] = field(default_factory=set)
    """Of graphs."""
    answers: int = 0
    refusals: int = 0


Run = Callable[[dict[str, Array]], list[Array]]


def judge(payload: tuple[Node, bool]) -> Verdict:
    """Hold the changes of a node, all or some of them, to what is right."""
    node, every = payload
    # Compiled here: a process of its own takes longer to start.
    compiling.worthwhile_processes = lambda *_: 1
    os.environ[MAX_TRIPS_VARIABLE] = str(MOST_TRIPS)
    verdict = Verdict()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        _judge_runs(node, verdict)
        count = sum(1 for _ in of_models(node))
        for change in of_models(node):
            chosen = zlib.crc32(f"{node.name} {change.what}".encode()) % 1000
            if every or chosen < 1000 * MODELS / count:
                _judge_model(change, verdict)
    return verdict


def _judge_runs(node: Node, verdict: Verdict) -> None:
    """One compiled model with a symbol for every extent, run on all inputs."""
    proto = node.model()
    try:
        graph = import_model(proto).graph
        changed = optimised(graph)
        model = Model(changed, default_backend())
    except Exception as error:
        verdict.findings.append(f"{node.op} {node.name}: {_text(error)}")
        return
    verdict.operators.update(n.op for n in (*graph.nodes, *changed.nodes))
    peers = list(_peers(proto))
    for change in at_run_time(node):
        _judge(change, partial(_run, model), graph, peers, verdict, draws(graph))


def _run(model: Model, feeds: dict[str, Array]) -> list[Array]:
    """What a model gives for the key of random numbers that references are given, too."""
    return model._run(feeds, KEY)


def _judge_model(change: Change, verdict: Verdict) -> None:
    """A model of its own, evaluated by the references of its graph; compiled where these have no
    answer, or may take long to have one."""

    def compiled(feeds: dict[str, Array]) -> list[Array]:
        return _run(Model(optimised(graph), default_backend()), feeds)

    node = change.node
    try:
        proto = node.model()
        graph = import_model(proto).graph
        elements = _largest(graph, node)
    except FTunerError:
        verdict.refusals += 1
        return
    except Exception as error:
        verdict.findings.append(f"{node.op} {node.name} {change.what}: {_text(error)}")
        return
    run: Run = compiled
    # A loop of references that does not end takes minutes.
    if elements <= MOST_ELEMENTS and all(n.op != "loop" for n in graph.nodes):
        try:
            results = run_reference(graph, operands(graph, node))
            run = lambda feeds: results  # noqa: E731
        except Exception:
            # NumPy has errors of its own for indices out of range.
            run = compiled
    elif elements < NEVER:
        return
    _judge(change, run, None, list(_peers(proto)), verdict, draws(graph))


def _largest(graph: Graph, node: Node) -> int:
    """Elements of the largest result whose extents inputs tell."""
    symbols = bind(graph, [x.shape for x in operands(graph, node)])
    values = [*(v for n in graph.nodes for v in n.outputs), *(v for _, v in graph.outputs)]
    sizes = [0]
    for value in values:
        try:
            sizes.append(math.prod(evaluate(n, symbols) for n in value.shape))
        except KeyError:
            # Extents that data tells.
            continue
    return max(sizes)


def _judge(
    change: Change, run: Run, graph: Graph | None, peers: Sequence[Run], verdict: Verdict,
    drawn: bool,
) -> None:  # fmt: skip
    """What a run gives, held to the references of its graph, if that is given, and to peers.
    `drawn`: of peers' results only dtypes and shapes count, because they draw other numbers."""
    node = change.node
    what = f"{node.op} {node.name} {change.what}"
    try:
        results = run(node.feeds)
        reference = results
        if graph is not None:
            reference = run_reference(graph, operands(graph, node))
    except FTunerError:
        verdict.refusals += 1
        return
    except Exception as error:
        verdict.findings.append(f"{what}: {_text(error)}")
        return
    verdict.answers += 1
    in_order = (
        change.huge and graph is not None and _hangs_on_order(graph, node, results, reference)
    )
    if not in_order and (text := _difference(results, reference, change.huge)):
        verdict.findings.append(f"{what}: compiled and by references: {text}")
    open_ = in_order or _EXPLAINED.match(what) or change.other_dtype
    if not any(x.size for x in results) or open_:
        # Nothing to be right or wrong about; or nothing that peers agree on, or that they have.
        return
    texts = []
    for peer in peers:
        try:
            text = _difference(results, peer(node.feeds), change.huge, drawn)
        except Exception as error:
            text = f"refused: {error!s:.150}"
        if not text:
            return
        texts.append(text)
    verdict.findings.append(f"{what}: no peer gives this: {'; '.join(texts)}")


def _hangs_on_order(
    graph: Graph, node: Node, results: Sequence[Array], reference: Sequence[Array]
) -> bool:
    """Whether results of huge elements are sound, though references give others: they are as exact
    as rounding lets them be; or they are with the order of sums of another ISA, in which other sums
    overflow."""
    if not _difference(results, reference, huge=True):
        return False
    if _is_exact(graph, node, results):
        return True
    narrowest, *wider = isas_of(read_system())
    if not wider:
        return False
    try:
        others = _run(Model(optimised(graph), CpuBackend(isa=narrowest)), node.feeds)
    except FTunerError:
        return False
    return not _difference(others, reference, huge=True) or _is_exact(graph, node, others)


def _is_exact(graph: Graph, node: Node, results: Sequence[Array]) -> bool:
    """Whether results are those of the graph in float64, as far as rounding decides nothing."""
    names = (v.name for v in graph.inputs)
    try:
        truth = expected(graph, dict(zip(names, operands(graph, node), strict=True)), seed=0)
    except UnstableError:
        return False
    pairs = zip(results, truth.outputs, strict=True)
    return not any(difference(x, wanted, finite=True) for x, wanted in pairs)


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error!s:.200}"


def _peers(proto: onnx.ModelProto) -> Iterator[Run]:
    """onnxruntime, and ONNX's evaluator: what they have no way to run, they refuse. And onnxruntime
    on the definition of an operator that it has kernels of its own for."""
    if proto.graph.node[0].op_type in DEFINITIONS:
        yield _onnxruntime_of(lambda: definition(proto))
    yield _onnxruntime_of(lambda: onnx.shape_inference.infer_shapes(proto))
    yield lambda feeds: [np.asarray(x) for x in ReferenceEvaluator(proto).run(None, feeds)]


def _onnxruntime_of(made: Callable[[], onnx.ModelProto]) -> Run:
    """A model that is made when it is run first."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = cache(lambda: onnxruntime.InferenceSession(made().SerializeToString(), options))
    return lambda feeds: [np.asarray(x) for x in session().run(None, feeds)]


def _difference(
    found: Sequence[Array], wanted: Sequence[Array], huge: bool, drawn: bool = False
) -> str:
    """What differs, empty if nothing does. `huge`: infinities and NaN are not compared. `drawn`: no
    elements are."""
    if len(found) != len(wanted):
        return f"{len(found)} outputs, not {len(wanted)}"
    for i, (x, y) in enumerate(zip(found, wanted, strict=True)):
        if x.dtype != y.dtype or x.shape != y.shape:
            return f"output {i} is {x.dtype}{x.shape}, not {y.dtype}{y.shape}"
        if drawn:
            continue
        if x.dtype.kind == "f":
            right = np.isclose(x, y, *ROUGHLY, equal_nan=True)
            if huge:
                right |= ~(np.isfinite(x) & np.isfinite(y))
        else:
            right = x == y
        if not np.all(right):
            place = tuple(np.argwhere(~right)[0])
            return f"output {i} at {[int(n) for n in place]}: {x[place]!r}, not {y[place]!r}"
    return ""
