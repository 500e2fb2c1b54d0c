"""What a case is held to: run by ftuner, by references and by peers, in this process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from tests.guarded import guarded, guarding
from tests.random_graphs.agreement import (
    Agreement,
    agreement_of,
    all_finite,
    compare_peers,
    expect_refused,
    graphs_of,
)
from tests.random_graphs.cases import Case, Feeds
from tests.random_graphs.freeing import freed
from tests.random_graphs.reports import Report, nodes_of, text_of
from tests.random_graphs.tensors import Array
from tests.walking import walking

from ftuner.core.dtype import DType
from ftuner.core.product import WORD_PRODUCTS
from ftuner.errors import FTunerError, ShapeError, UnsupportedKernelError, UnsupportedOperatorError
from ftuner.graph.appending import Appended, memory_shape
from ftuner.graph.ir import Graph, RandomKey
from ftuner.graph.passes.pipeline import optimised
from ftuner.inference import load
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu import compilation as compiling
from ftuner.runtime.cpu.appending import Growth, extended, keep
from ftuner.runtime.cpu.backend import default_backend
from ftuner.runtime.model import Model
from ftuner.runtime.reference import run_reference
from ftuner.runtime.saved.models import read as read_saved
from ftuner.runtime.saved.models import save
from ftuner.schedules.attention.step import AttentionStep

MORE_THREADS = (2, 3, 5, 8)
"""Numbers of threads, one of which a case runs with, beside one thread."""
FREED_EACH = 4
"""One of this many cases also runs with constants as inputs, which takes several compilations."""
SAVED_EACH = 4
"""One of this many cases is saved, and runs as it is loaded from that file."""
CPU, GUARDED, GPU, PASSES = "cpu", "guarded", "gpu", "passes"
"""Where a case runs: on the CPU, there with pages that fault around all memory, by the kernels for
a GPU in Triton's interpreter, or by the NumPy references after all passes, which compiles nothing:
a hundredth of the time, and importers, passes and peers are compared as elsewhere."""


def check(payload: tuple[Case, str]) -> Report:
    """Run a case in one of the places above, and compare with references and peers."""
    return checked(*payload)


def checked(case: Case, place: str, peers: bool = True) -> Report:
    """Run a case in one of the places above, and compare with references, and with peers if that
    is asked for."""
    # Compiled here as a process of its own would, without the time that one takes to start.
    compiling.worthwhile_processes = lambda *_: 1
    report = Report()
    try:
        case, graphs = graphs_of(case)
    except FTunerError as error:
        report.refused = f"{type(error).__name__}: {error}"
        if peers:
            expect_refused(case, report)
        return report
    except Exception as error:
        report.found("foreign exception", f"import: {text_of(error)}")
        return report
    agreement = agreement_of(case, graphs, report)
    if place == GPU and not agreement.late:
        _check_on_gpu(agreement, report)
        return report
    if peers:
        compare_peers(agreement, report)
    if place == PASSES:
        _check_passes(agreement, report)
        return report
    if agreement.late:
        _check_late(agreement, report)
        return report
    at = Random(case.seed).choice(("begin", "end"))
    try:
        # At such extents the estimate walks no chain by stripes.
        walks = walking() if case.seed % 2 else nullcontext()
        with walks, guarding(at) if place == GUARDED else nullcontext():
            _check_on_cpu(agreement, report, _guards(at) if place == GUARDED else np.array)
    except AssertionError as error:
        report.found("wrote outside", str(error))
    if place == CPU and case.seed % FREED_EACH == 0 and not report.findings:
        _check_freed(agreement, report)
    return report


def _guards(at: Any) -> Callable[[Array], Array]:
    return lambda x: guarded(np.array(x), at, read_only=True)


def _check_on_cpu(agreement: Agreement, report: Report, given: Callable[[Array], Array]) -> None:
    """Compile a graph, and run all inputs, each twice with each number of threads, in some
    order. `given`: makes the arrays that the model is given. In every other case outputs append to
    inputs in place, whose memory has room for more rows."""
    random = Random(agreement.case.seed)
    backend = default_backend()
    numbers = 1, MORE_THREADS[agreement.case.seed // 16 % len(MORE_THREADS)]
    backend.threads = random.choice(numbers)
    append = agreement.case.seed // 2 % 2 == 0
    model = _compiled(
        agreement.graph,
        report,
        lambda graph: Model(graph, backend, Options(append_in_place=append)),
        False,
        backend.narrow_dtypes,
    )
    if model is None:
        return
    if agreement.case.seed // 4 % SAVED_EACH == 0:
        model = _saved(model)
    runs = [(threads, n) for threads in numbers for n in range(len(agreement.case.runs))]
    again = list(runs)
    random.shuffle(runs)
    random.shuffle(again)
    # Keys that a mask hides are not read, even if they are no numbers.
    hides = any(isinstance(step, AttentionStep) for step in model.steps)
    pairs = [pair for part in model.parts for pair in part.lowered.appended]
    appended = {model.inputs[pair.input].name: pair for pair in pairs}

    def run(threads: int, feeds: Feeds, key: Array) -> list[Array]:
        backend.threads = threads
        arrays = {name: given(x) for name, x in feeds.items()}
        for name, pair in appended.items():
            arrays[name] = _with_room(arrays[name], pair)
        results: list[Array] = model._run(arrays, key)
        for name, x in feeds.items():
            if name in appended and appended[name].writes:
                continue
            if arrays[name].tobytes() != np.asarray(x).tobytes():
                raise AssertionError(f"the input {name} was written to")
        return results

    _run_all(agreement, report, [*runs, *again], run, hides)
    if not (report.findings or appended or report.refused):
        _check_batch(agreement, report, model, given, hides)


def _check_batch(
    agreement: Agreement, report: Report, model: Model, given: Callable[[Array], Array],
    hides: bool,
) -> None:  # fmt: skip
    """Run all inputs together, each of them twice: they have the bits that they have alone, or are
    right up to rounding if that is enough."""
    numbers = [n for n in range(len(agreement.case.runs)) if agreement.refusal(n) is None]
    feeds = [
        {name: given(x) for name, x in agreement.case.runs[n].items()} for n in (*numbers, *numbers)
    ]
    if any(isinstance(value, RandomKey) for value in agreement.graph.inputs):
        return
    report.batches = any(not why for _, why in model.ragged)
    try:
        alone = [model.run(x) for x in feeds]
        together = model._together(feeds) or model.run_batch(feeds)
        roughly = model._together(feeds, exact=False) or together
    except Exception as error:
        report.found("foreign exception", f"as a batch: {text_of(error)}")
        return
    for i, (found, wanted) in enumerate(zip(together, alone, strict=True)):
        if any(x.tobytes() != y.tobytes() for x, y in zip(found, wanted, strict=True)):
            report.found("not the same again", f"request {i} of a batch")
            return
    for number, found in zip((*numbers, *numbers), roughly, strict=True):
        wild = hides and not all_finite(agreement.case.runs[number])
        wrong = agreement.wrong(number, found, False, wild)
        if wrong:
            report.found("wrong", f"run {number} in a batch that may round otherwise: {wrong}")
            return


def _saved(model: Model) -> Model:
    """The model, saved and loaded."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.ftuner"
        save([model], path)
        found = read_saved(path)
    return Model(found.graph, found.backend, Options(append_in_place=found.append_in_place))


def _with_room(x: Array, pair: Appended) -> Array:
    """The array as an output that runs append to."""
    fixed = pair.room == pair.whole.shape
    room = x.shape if fixed else memory_shape(x.shape, pair.axis, pair.slides)
    rows = x.shape[pair.axis]
    growth = Growth(pair.axis, rows, x.shape, x.shape, room, pair.slides, pair.writes)
    made = extended(x, growth)
    keep([made])
    return made[0]


def _check_passes(agreement: Agreement, report: Report) -> None:
    """Run all inputs by the references of the operators that the passes leave."""
    changed: dict[Graph, Graph] = {}
    for graph in dict.fromkeys(agreement.graphs):
        changed[graph] = _compiled(graph, report, lambda after: after, False, WORD_PRODUCTS)
        if changed[graph] is None:
            return
    graphs = [changed[graph] for graph in agreement.graphs]

    def run(number: int, feeds: Feeds, key: Array) -> list[Array]:
        keys = {v.name: key for v in graphs[number].inputs if isinstance(v, RandomKey)}
        try:
            operands = {**feeds, **keys}
            return run_reference(graphs[number], [operands[v.name] for v in graphs[number].inputs])
        except (IndexError, ValueError) as error:
            # References refuse by errors of NumPy.
            raise ShapeError(text_of(error)) from error

    hides = any(node.op == "attention" for graph in graphs for node in graph.nodes)
    _run_all(agreement, report, [(n, n) for n in range(len(graphs))], run, hides)


def _check_late(agreement: Agreement, report: Report) -> None:
    """Run all inputs, each twice, by a model whose graph depends on them."""
    try:
        model = load(agreement.case.model)
    except UnsupportedOperatorError as error:
        report.refused = f"{type(error).__name__}: {error}"
        return

    def run(number: int, feeds: Feeds, key: Array) -> list[Array]:
        found: list[Array] = model._run(feeds, key)
        return found

    numbers = list(range(len(agreement.case.runs)))
    again = Random(agreement.case.seed).sample(numbers, len(numbers))
    _run_all(agreement, report, [(1, n) for n in (*numbers, *again)], run, True)
    report.late_runs += report.runs


def _check_freed(agreement: Agreement, report: Report) -> None:
    """Run inputs with some constants of the model as further ones. What is known only at run time
    may be unsupported, but not wrong."""
    case = freed(agreement.case, Random(agreement.case.seed))
    if case is None:
        return
    try:
        model = load(case.model)
        for number, feeds in enumerate(case.runs):
            if agreement.refusal(number) is not None or agreement.is_wild(number):
                continue
            wrong = agreement.wrong(
                number, model._run(feeds, case.key(number)), finite=not all_finite(feeds)
            )
            if wrong:
                report.found("wrong", f"run {number}, with constants as inputs: {wrong}")
                return
            report.late_runs += 1
    except UnsupportedOperatorError:
        return
    except FTunerError as error:
        report.found("refused", f"with constants as inputs: {type(error).__name__}: {error}")
    except Exception as error:
        report.found("foreign exception", f"with constants as inputs: {text_of(error)}")


def _check_on_gpu(agreement: Agreement, report: Report) -> None:
    """Run all inputs, the first ones twice, in the interpreter, which is slow."""
    # Imported by name: it needs torch and triton.
    backends = import_module("tests.runtime.gpu.backends")
    chip = Random(agreement.case.seed).choice(("h200", "rtx3090"))
    backend = backends.interpreted(chip)
    model = _compiled(agreement.graph, report, lambda graph: Model(graph, backend), True)
    if model is None:
        return
    runs = [(1, n) for n in range(len(agreement.case.runs))]
    _run_all(
        agreement,
        report,
        [*runs, *runs[:2]],
        lambda _, feeds, key: model._run(feeds, key),
        True,
        # It rounds to half precision what it holds in memory.
        roughly=agreement.halves,
    )


def _compiled(
    graph: Graph, report: Report, compile_: Callable[[Graph], Any], halves: bool,
    words: Collection[DType] = (),
) -> Any:  # fmt: skip
    """The model of a graph after all passes; None if there is none. `halves`, `words`: as of
    `optimised`."""
    try:
        changed = optimised(graph, halves, words)
        report.operators.update(node.op for node in (*nodes_of(graph), *nodes_of(changed)))
        return compile_(changed)
    except (UnsupportedKernelError, UnsupportedOperatorError) as error:
        report.refused = f"{type(error).__name__}: {error}"
    except FTunerError as error:
        report.found("refused", f"{type(error).__name__}: {error}")
    except Exception as error:
        report.found("foreign exception", f"compile: {text_of(error)}")
    return None


def _run_all(
    agreement: Agreement, report: Report, order: Sequence[tuple[int, int]],
    run: Callable[[int, Feeds, Array], list[Array]], hides: bool, roughly: bool = False,
) -> None:  # fmt: skip
    """Run inputs by number with numbers of threads, in an order; the first failure ends it.
    `run`: is given the key of the random numbers, too, which is the same for the same inputs."""
    known: dict[tuple[int, int], list[Array]] = {}
    report.runs = len({number for _, number in order})
    for threads, number in order:
        feeds, refusal = agreement.case.runs[number], agreement.refusal(number)
        where = f"run {number}, {threads} threads"
        try:
            results = run(threads, feeds, agreement.case.key(number))
        except FTunerError as error:
            if refusal is None:
                report.found("refused", f"{where}: {type(error).__name__}: {error}")
                return
            report.refused_runs += 1
            continue
        except Exception as error:
            report.found("foreign exception", f"{where}: {text_of(error)}")
            return
        if refusal is not None and agreement.truths[number] is None:
            report.found("accepted", f"{where}: the reference says {refusal}")
            return
        before = known.setdefault((threads, number), results)
        if before is not results:
            for i, (x, y) in enumerate(zip(results, before, strict=True)):
                if x.tobytes() != y.tobytes():
                    report.found("not the same again", f"{where}, output {i}")
                    return
            continue
        wrong = agreement.wrong(number, results, roughly, hides and not all_finite(feeds))
        if wrong:
            report.found("wrong", f"{where}: {wrong}")
            return
