"""What the runs of a case should give: by NumPy references, and whether peers agree with these."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from tests.random_graphs.cases import Case, Feeds
from tests.random_graphs.freeing import bound
from tests.random_graphs.peers import RefusedError, Run, SilentError, evaluator_of, onnxruntime_of
from tests.random_graphs.reports import Report, nodes_of
from tests.random_graphs.table import SYMBOL
from tests.random_graphs.tensors import Array
from tests.random_graphs.truth import (
    HALF_ROUGHLY,
    ROUGHLY,
    Expected,
    Truth,
    UnstableError,
    difference,
    expected,
    share_compared,
    unused_indices,
    without_conventions,
)

from ftuner.core.dtype import HALF_DTYPES
from ftuner.frontends.onnx import reading
from ftuner.frontends.onnx.importer import import_model
from ftuner.graph.ir import Graph, RandomKey
from ftuner.graph.rewrite import rules
from ftuner.graph.rewrite.rules import choice
from ftuner.graph.specialization import RunTimeNumberError
from ftuner.runtime.reference import run_reference

ACTIVATIONS = (
    rules.gelu, rules.gelu_tanh, rules.silu, rules.hard_swish, rules.mish,
    choice,
)  # fmt: skip
CONFIRMING, CONFIRMING_SCALE = 32, 2.0
"""Evaluations with noise, and how much more of it, of a result that seems wrong after a few."""
REFUSED, ACCEPTED, SILENT = "refused", "accepted", "silent"
"""What a peer says, beside what its results are."""
OWN_ERROR = "attempting to re-use buffer"
"""What onnxruntime says where it takes two extents for equal that it has computed wrongly."""
OWN_REFUSAL = "ParseData type mismatch"
"""What onnxruntime says of a model where it has carried an extent through a Cast as an int64."""
OF_OPERATOR = re.compile(r"Type Error: Type parameter \(\w+\) of Optype \((\w+)\)")
"""What onnxruntime says of a node whose inputs differ in type."""
HIDDEN_ROWS = "NaN in rows of attention that a mask hides"
CONVENTIONS = "limits at infinities, the place of NaN in an order, or erf of float64"
ONE_SYMBOL = "broadcasts extents of one symbol, which are taken to be equal"
APART = frozenset({HIDDEN_ROWS, CONVENTIONS, ONE_SYMBOL})
"""What peers do that says nothing of ftuner, beside what it refuses."""
ATTENTION = frozenset({"Attention", "MultiHeadAttention", "GroupQueryAttention"})
WILD_FACTOR = 1e20
"""Above all elements but those that are drawn to be multiplied."""
NOT_OF_NOTHING = frozenset({"FusedMatMul", "ReduceMean"})
"""With empty operands onnxruntime divides by zero, or gives another shape, and the evaluator gives
the least integer for a mean."""


@dataclass(frozen=True)
class Agreement:
    """What the runs of a case should give."""

    case: Case
    graphs: Sequence[Graph]
    """Of each run: one, unless numbers of a graph are known only at run time."""
    references: Sequence[list[Array] | str]
    """The outputs in their own types, or why there are none."""
    truths: Sequence[Truth | None]
    """None for runs that are refused, or whose results rounding decides. What is refused for
    indices that nothing depends on may be run as well."""

    @property
    def graph(self) -> Graph:
        """That of the first run."""
        return self.graphs[0]

    @property
    def late(self) -> bool:
        """Whether numbers of the graph are known only at run time."""
        return any(graph is not self.graph for graph in self.graphs)

    @property
    def draws(self) -> bool:
        """Whether a run draws random numbers, which are others in peers."""
        return any(isinstance(v, RandomKey) for graph in self.graphs for v in graph.inputs)

    def is_wild(self, number: int) -> bool:
        return number >= len(self.case.runs) - self.case.wild

    @property
    def halves(self) -> bool:
        """Whether values are in half precision."""
        return self.rough > ROUGHLY

    @cached_property
    def rough(self) -> float:
        """How far peers may be off, as a share of the largest element."""
        values = (v for node in nodes_of(self.graph) for v in (*node.inputs, *node.outputs))
        halves = {v.dtype.unit_roundoff for v in values if v.dtype.name in HALF_DTYPES}
        return max((ROUGHLY, *(HALF_ROUGHLY * unit for unit in halves)))

    def refusal(self, number: int) -> str | None:
        """Why a run must be refused; None if it must not."""
        reference = self.references[number]
        return reference if isinstance(reference, str) else None

    def wrong(
        self, number: int, results: Sequence[Any], roughly: bool = False, finite: bool = False
    ) -> str:
        """What is wrong with the outputs of a run, empty if nothing is known to be. What seems
        wrong is looked at again with more noise."""
        truth = self.truths[number]
        if truth is None:
            return ""
        if len(results) != len(truth.outputs):
            return f"{len(results)} outputs, expected {len(truth.outputs)}"
        confirmed: list[Expected] | None = None
        rough = self.rough if roughly else 0.0
        reference = self.references[number]
        for i, (result, e) in enumerate(zip(results, truth.outputs, strict=True)):
            if not difference(result, e, rough, finite):
                continue
            exact = e.tolerance is None and not isinstance(reference, str)
            if exact and result.dtype == e.dtype and np.array_equal(result, reference[i]):
                # As computed in the types that the model has.
                continue
            if confirmed is None:
                try:
                    again = expected(
                        self.graphs[number],
                        self.case.operands(self.graphs[number], number), self.case.seed + 1,
                        CONFIRMING, CONFIRMING_SCALE,
                    )  # fmt: skip
                except UnstableError:
                    return ""
                confirmed = [
                    replace(e, compared=e.compared & first.compared)
                    for e, first in zip(again.outputs, truth.outputs, strict=True)
                ]
            text = difference(result, confirmed[i], rough, finite)
            if text and not roughly:
                text = difference(result, self._with_limits(number, i, confirmed[i], result))
            if text:
                return f"output {i}: {text}"
        return ""

    def without_conventions(self, number: int) -> Agreement:
        """With the elements of a run compared that do not depend on what is ours."""
        truth = self.truths[number]
        if truth is None:
            return self
        truths = list(self.truths)
        graph = self.graphs[number]
        truths[number] = without_conventions(graph, self.case.operands(graph, number), truth)
        return replace(self, truths=truths)

    def _with_limits(self, number: int, output: int, e: Expected, result: Array) -> Expected:
        """An output with the limits that activations have at infinities, and with what masks of
        zeros and ones choose, where it is NaN, or a whole number that comes of NaN, because they
        are written out."""
        graph = self.graphs[number]
        for recognise in ACTIVATIONS:
            graph = recognise(graph)
        try:
            operands = self.case.operands(graph, number)
            limits = expected(graph, operands, self.case.seed + 1, CONFIRMING)
        except UnstableError:
            return e
        x = limits.outputs[output]
        if x.value.shape != e.value.shape:
            return e
        if x.tolerance is None or e.tolerance is None:
            own = result == x.value if result.shape == x.value.shape else False
            return replace(e, value=np.where(own, x.value, e.value))
        nan = np.isnan(e.value)
        return Expected(
            np.where(nan, x.value, e.value), e.dtype, np.where(nan, x.tolerance, e.tolerance),
            e.compared & x.compared,
        )  # fmt: skip


def graphs_of(case: Case) -> tuple[Case, list[Graph]]:
    """The case, and the graph of each run. Where numbers of it are known only at run time, it is
    that of the run, with its small inputs as constants, and there are no wild runs, which might
    have no graph.

    Raises:
        FTunerError: as `import_model` does.
    """
    try:
        return case, [import_model(case.model).graph] * len(case.runs)
    except RunTimeNumberError:
        case = replace(case, runs=case.runs[: len(case.runs) - case.wild], wild=0)
        return case, [import_model(bound(case, n)).graph for n in range(len(case.runs))]


def agreement_of(case: Case, graphs: Sequence[Graph], report: Report) -> Agreement:
    """What NumPy references say of a case."""
    references: list[list[Array] | str] = []
    truths: list[Truth | None] = []
    for number, graph in enumerate(graphs):
        feeds = case.operands(graph, number)
        truth: Truth | None = None
        try:
            reference = run_reference(graph, [feeds[v.name] for v in graph.inputs])
            truth = expected(graph, feeds, case.seed * 100 + number)
        except UnstableError:
            report.unstable_runs += 1
        except Exception as error:
            references.append(f"{type(error).__name__}: {error}")
            truths.append(_where_indices_are_wrong(case, graph, number, error))
            continue
        references.append(reference)
        truths.append(truth)
        if truth is not None:
            compared, size = share_compared(truth.outputs)
            report.elements = report.elements[0] + compared, report.elements[1] + size
    return Agreement(case, graphs, references, truths)


def _where_indices_are_wrong(
    case: Case, graph: Graph, number: int, error: Exception
) -> Truth | None:
    """What a refused run may give instead of an error."""
    if not isinstance(error, IndexError):
        return None
    try:
        return unused_indices(graph, case.operands(graph, number), case.seed * 100 + number)
    except Exception:
        return None


def all_finite(feeds: Feeds) -> bool:
    return all(x.dtype.kind != "f" or bool(np.isfinite(x).all()) for x in feeds.values())


def compare_peers(agreement: Agreement, report: Report) -> None:
    """Whether the peers' results are those of the references. Where peers contradict each other,
    what one of them has in common with the references is right. What ONNX's evaluator refuses or
    accepts says little: it checks little, and has errors of its own, with empty tensors first."""
    case = agreement.case
    second: Run | None = None
    try:
        first = onnxruntime_of(case)
    except RefusedError as error:
        # It decomposes some operators into nodes whose types do not fit.
        first, second = None, evaluator_of(case)
        if OWN_REFUSAL in str(error) or _is_of_no_node(str(error), case):
            report.apart["onnxruntime refuses what it should run"] += 1
            return
        if second is None or not _accepts(second, agreement):
            report.found("accepted what onnxruntime refuses", str(error))
            return
    report.peer = "onnxruntime" if first is not None else "evaluator"
    if agreement.draws:
        report.apart["other random numbers"] += len(case.runs)
        return
    # After no iteration peers do not know the extents of what is stacked.
    stacks = any(node.op_type == "Loop" for node in case.proto.graph.node)
    partial = any(node.op_type in NOT_OF_NOTHING for node in case.proto.graph.node)
    for number in range(len(case.runs)):
        truth = agreement.truths[number]
        empty = truth is not None and truth.empty
        if empty and partial:
            continue
        if _overflows_in_peers(case, number):
            report.apart["partial products beyond the format"] += 1
            continue
        doubt = "" if first is None else _doubt(first, agreement, number)
        if first is not None and not doubt:
            continue
        if doubt in APART:
            report.apart[doubt] += 1
            continue
        second = second or evaluator_of(case)
        other = SILENT if second is None else _doubt(second, agreement, number)
        if other in APART:
            report.apart[other] += 1
            continue
        # The evaluator gives some integers the type that NumPy adds them up in.
        silent = other.startswith((REFUSED, ACCEPTED, SILENT)) or ": dtype " in other
        own = doubt.startswith(REFUSED) and (stacks or not agreement.is_wild(number))
        if own and (empty or (OWN_ERROR in doubt and (not other or silent))):
            report.apart["onnxruntime refuses what it should run"] += 1
            continue
        if first is None or doubt.startswith(SILENT):
            doubtful = bool(other) and not silent and not empty
        elif doubt.startswith(REFUSED) and agreement.is_wild(number):
            doubtful = other.startswith(REFUSED) and _accepts(second, agreement)
        else:
            doubtful = bool(other) and not (silent and empty)
        if doubtful:
            texts = f"onnxruntime: {doubt or 'no kernel'}; evaluator: {other}"
            report.found("peer differs", f"run {number}: {texts}")
            return
        report.outvoted += first is not None


def _is_of_no_node(error: str, case: Case) -> bool:
    """Whether types that do not fit are those of an operator that the graph lacks: of a node that
    onnxruntime has written for another one."""
    found = OF_OPERATOR.search(error)
    ops = {node.op_type for node in reading.nodes_of(case.proto.graph.node)}
    return found is not None and found[1] not in ops


def _overflows_in_peers(case: Case, number: int) -> bool:
    """Whether a run multiplies factors in an order that matters to peers: they keep no exponents
    apart, and give NaN, infinity or zero for what is a number."""
    if not any(node.op_type == "ReduceProd" for node in case.proto.graph.node):
        return False
    floats = [x for x in case.runs[number].values() if x.dtype.kind == "f"]
    return any(bool((np.isfinite(x) & (np.abs(x) > WILD_FACTOR)).any()) for x in floats)


def _accepts(run: Run, agreement: Agreement) -> bool:
    """Whether ONNX's evaluator runs all inputs that a model is made for, but empty ones."""
    ordinary = range(len(agreement.case.runs) - agreement.case.wild)
    truths = agreement.truths
    return _runs(run, agreement.case, [n for n in ordinary if not (truths[n] and truths[n].empty)])


def _runs(run: Run, case: Case, numbers: Iterable[int]) -> bool:
    try:
        for number in numbers:
            run(case.runs[number])
    except (RefusedError, SilentError):
        return False
    return True


def _doubt(run: Run, agreement: Agreement, number: int) -> str:
    """How a peer contradicts the references on a run, empty if it does not."""
    refusal = agreement.refusal(number)
    feeds = agreement.case.runs[number]
    if refusal is not None and agreement.is_wild(number):
        # Peers are not as careful with what does not fit.
        return ""
    try:
        results = run(feeds)
    except SilentError:
        return SILENT
    except RefusedError as error:
        return "" if refusal is not None else f"{REFUSED}: {error!s:.600}"
    if refusal is not None:
        if _is_taken_for_equal(refusal):
            return ONE_SYMBOL
        return f"{ACCEPTED}; the reference says {refusal:.300}"
    finite = not all_finite(feeds)
    wrong = agreement.wrong(number, results, True, finite)
    nan = any(x.dtype.kind == "f" and bool(np.isnan(x).any()) for x in results)
    if wrong and nan and _hides_rows(agreement.case):
        return agreement.wrong(number, results, True, True) or HIDDEN_ROWS
    if wrong and not agreement.without_conventions(number).wrong(number, results, True, finite):
        return CONVENTIONS
    return wrong


def _is_taken_for_equal(refusal: str) -> bool:
    """Whether a run is refused for two extents of one symbol, of which one is one: the definition
    of `broadcast` in `ftuner.core.dim` takes them to be equal, and peers broadcast."""
    found = re.search(r": ([^:]+) is (\d+) and ([^:]+) is (\d+)(;[^:]*)?$", refusal)
    if found is None or "1" not in found.group(2, 4):
        return False
    x, y = (set(SYMBOL.findall(found[side])) for side in (1, 3))
    return refusal.startswith("ShapeError") and not x.isdisjoint(y)


def _hides_rows(case: Case) -> bool:
    """Whether there is attention with a mask, which may hide all keys from a row: the promise is
    zeros where onnxruntime gives NaN."""
    return any(
        node.op_type in ATTENTION and len([name for name in node.input if name]) > 3
        for node in case.proto.graph.node
    )


def expect_refused(case: Case, report: Report) -> None:
    """What is refused at import must be refused by a peer, or be unsupported by name."""
    if "UnsupportedOperatorError" in report.refused:
        return
    try:
        run = onnxruntime_of(case) or evaluator_of(case)
    except RefusedError:
        return
    if run is not None and _runs(run, case, range(len(case.runs) - case.wild)):
        report.found("refused", f"{report.refused}; the peer runs it")
