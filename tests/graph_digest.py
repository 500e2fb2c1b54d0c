"""`python -m tests.graph_digest FILE`: a digest of the graphs that models become.

Writes a line for each case: what became of the import, and a hash of the graph after the import and
after all passes. Equal lines before and after a change of the importers or passes mean that it
changes no graph. Hashes are of structure alone: names of values, the order of independent nodes and
the order of operands that may be exchanged do not matter. Cases are the tests that ONNX comes with,
as they are and with symbols for extents, changed nodes of every importer, and random graphs.
"""

import argparse
import re
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from hashlib import blake2b
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from tests.frontends.node_cases import cases, symbolic
from tests.hostile.bases import bases
from tests.hostile.changes import of_models
from tests.random_graphs.cases import SAVED, read_case
from tests.random_graphs.generating import seeded

from ftuner.errors import FTunerError
from ftuner.frontends.onnx.importer import import_record, read_model
from ftuner.graph.builder import COMMUTATIVE
from ftuner.graph.ir import Graph, RandomKey, Value
from ftuner.graph.passes.pipeline import optimised
from ftuner.graph.specialization import Answer, RunTimeNumberError, answered, sized
from ftuner.runtime.reference import run_reference

MOST_QUESTIONS = 12
"""Numbers known only at run time for which a case is imported again."""
KEY = np.array([3, 1], np.uint64)
"""Of random numbers."""


def _hashed(*parts: object) -> str:
    return blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def _plain(text: str) -> str:
    """A text without the numbers of values."""
    return re.sub(r"\bv\d+", "v", text)


def graph_hash(graph: Graph) -> str:
    """A hash of what a graph computes and requires."""
    known: dict[Value, str] = {
        v: _hashed("input", "" if isinstance(v, RandomKey) else number, str(v.type))
        for number, v in enumerate(graph.inputs)
    }

    def of(value: Value) -> str:
        if value not in known:
            array = value.constant
            assert array is not None, value
            data = repr(array.tolist()) if array.dtype.hasobject else array.tobytes()
            known[value] = _hashed("constant", str(value.type), data)
        return known[value]

    for node in graph.nodes:
        attributes = [(k, _attribute(v)) for k, v in sorted(node.attributes.items())]
        operands = [of(v) for v in node.inputs]
        if node.op in COMMUTATIVE:
            operands.sort()
        for number, v in enumerate(node.outputs):
            known[v] = _hashed(node.op, operands, attributes, number, _plain(str(v.type)))
    required = sorted(_plain(repr((c.x, c.y, c.or_one, c.what))) for c in graph.constraints)
    return _hashed([(name, of(v)) for name, v in graph.outputs], required)


def _attribute(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return _hashed(str(value.dtype), value.shape, value.tolist())
    return graph_hash(value) if isinstance(value, Graph) else _plain(repr(value))


def digest(model: bytes | onnx.ModelProto, feeds: Sequence[Any] | None) -> str:
    """What a model becomes. `feeds`: the operands of its inputs, by which numbers that are known
    only at run time are found; None to leave them open."""
    answers, given, asked = list[Answer](), list(feeds or ()), list[str]()
    try:
        record = read_model(model)
        while True:
            try:
                graph = import_record(record, answers).graph
                break
            except RunTimeNumberError as need:
                asked.append(_hashed(_plain(str(need)), graph_hash(need.computed())))
                if feeds is None or len(asked) > MOST_QUESTIONS:
                    return f"asks {_hashed(asked)}"
                keys = [KEY] * any(isinstance(v, RandomKey) for v in need.computed().inputs)
                (found,) = run_reference(need.computed(), [*given, *keys])
                answer, sizes = answered(need.value.name, need.exact, np.asarray(found))
                answers.append(answer)
                given += map(sized, sizes)
        imported = f"{_hashed(asked)} {graph_hash(graph)}"
        return f"{imported} {graph_hash(optimised(graph, halves=False))}"
    except FTunerError as error:
        return f"{type(error).__name__} {_hashed(_plain(str(error)))} {_plain(str(error))!r:.150}"
    except Exception as error:  # Found by the judge, too.
        return f"{type(error).__name__} {error!s:.100}"


def _of_onnx(part: int, parts: int) -> Iterator[tuple[str, str]]:
    for case in cases()[part::parts]:
        tensors = all(isinstance(x, np.ndarray) for x in case.inputs)
        feeds = case.inputs if tensors else None
        yield case.name, digest(case.model, feeds)
        yield f"{case.name} symbolic", digest(symbolic(case).model, feeds)


def _of_changes(part: int, parts: int) -> Iterator[tuple[str, str]]:
    for nodes in list(bases(2).values())[part::parts]:
        for node in nodes:
            yield f"{node.op} {node.name}", digest(node.model(), None)
            for number, change in enumerate(of_models(node)):
                try:
                    model = change.node.model()
                except Exception:  # Nothing that onnx can write.
                    continue
                yield f"{node.op} {node.name} {number} {change.what}", digest(model, None)


def _of_random(count: int, part: int, parts: int) -> Iterator[tuple[str, str]]:
    saved = ((path.stem, read_case(path)) for path in sorted(SAVED.glob("*.onnx"))[part::parts])
    drawn = ((f"random {seed}", seeded(seed).case) for seed in range(part, count, parts))
    for name, case in chain(saved, drawn):
        yield name, digest(case.model, [*case.runs[0].values()])


def _lines(count: int, part: int, parts: int) -> list[str]:
    warnings.simplefilter("ignore")
    found = chain(_of_onnx(part, parts), _of_changes(part, parts), _of_random(count, part, parts))
    return [f"{' '.join(name.split())}: {text}" for name, text in found]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.graph_digest", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--random", type=int, default=2000, help="random graphs")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    given = parser.parse_args()
    parts = 8 * given.jobs
    with ProcessPoolExecutor(given.jobs, get_context("spawn")) as pool:
        found = pool.map(partial(_lines, given.random, parts=parts), range(parts))
        lines = sorted(chain.from_iterable(found))
    given.file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(f"{len(lines)} cases")


if __name__ == "__main__":
    main()
