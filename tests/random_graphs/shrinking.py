"""From a case that fails to a small one that fails alike.

First the script is shortened: steps are left out and choices lowered, and the generator makes a
valid case of what is left. Then the model itself is cut: outputs, nodes, inputs, extents and runs
are taken away. A value that no node computes any more becomes an input or a constant.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from tests.isolation import Crash, Done, Limits, Result, Timeout, TooMuchMemory, Workers
from tests.random_graphs.cases import Case, Feeds
from tests.random_graphs.drawing import Script
from tests.random_graphs.generating import generate

from ftuner.frontends.onnx.importer import import_model
from ftuner.runtime.reference import run_reference

CHECK = "tests.random_graphs.checking:check"
Fails = Callable[[Case], bool]


def signature(result: Result) -> str:
    """What kind of failure a result is, empty if it is none. Shrinking keeps it."""
    if isinstance(result, Done):
        report = result.value[0] if isinstance(result.value, tuple) else result.value
        if not report.findings:
            return ""
        kind, what = report.findings[0]
        if kind in ("foreign exception", "refused"):
            # The exception's type.
            words = [w.strip(":") for w in what.split() if w.endswith(("Error:", "Exception:"))]
            return f"{kind} {words[0] if words else ''}".strip()
        return str(kind)
    if isinstance(result, Crash):
        return f"crash {result.how}"
    if isinstance(result, Timeout):
        return "hang"
    return "memory" if isinstance(result, TooMuchMemory) else f"raised {result.kind}"


class Shrinker:
    """Looks for smaller cases with the same signature, in a child process.

    Args:
        wanted: the signature.
        place: where cases run.
        seconds: after which the smallest case so far is taken.
    """

    def __init__(
        self, wanted: str, place: str, environment: dict[str, str], limits: Limits,
        seconds: float = 180.0,
    ) -> None:  # fmt: skip
        self._wanted, self._place = wanted, place
        self._workers = Workers(CHECK, 1, limits, environment=environment)
        self._end = time.monotonic() + seconds
        self.tried = 0

    def __enter__(self) -> Shrinker:
        return self

    def __exit__(self, *error: Any) -> None:
        self._workers.__exit__(None, None, None)

    def fails(self, case: Case) -> bool:
        """Whether a case fails as the first one did; False once time is up."""
        if time.monotonic() > self._end:
            return False
        self.tried += 1
        ((_, result),) = self._workers.run([(case, self._place)])
        return signature(result) == self._wanted

    def shrunk(self, script: Script, case: Case) -> Case:
        """The smallest case found."""
        script, case = shorter(script, case, self.fails)
        before = -1
        while before != len(case.model):
            before = len(case.model)
            for change in (_fewer_runs, _fewer_outputs, _fewer_nodes, _unread, _smaller_extents):
                case = _first_to_last(change, case, self.fails)
        return case


def shorter(script: Script, case: Case, fails: Fails) -> tuple[Script, Case]:
    """A script of fewer steps and lower choices that makes a case that fails, and the case."""

    def attempt(candidate: Script) -> bool:
        nonlocal script, case
        if candidate.size >= script.size:
            return False
        made = generate(candidate, None)
        if made is None or made.script.size >= script.size or not fails(made.case):
            return False
        script, case = made.script, made.case
        return True

    length = len(script.steps)
    while length:
        start = 0
        while start < len(script.steps):
            steps = script.steps
            if not attempt(replace(script, steps=steps[:start] + steps[start + length :])):
                start += length
        length //= 2
    attempt(replace(script, tail=()))
    for number in range(len(script.steps)):
        _lower(lambda s, n=number: s.steps[n] if n < len(s.steps) else (),
               lambda s, new, n=number: replace(
                   s, steps=(*s.steps[:n], new, *s.steps[n + 1 :])),
               lambda: script, attempt)  # fmt: skip
    _lower(lambda s: s.head, lambda s, new: replace(s, head=new), lambda: script, attempt)
    return script, case


def _lower(
    read: Callable[[Script], tuple[int, ...]],
    changed: Callable[[Script, tuple[int, ...]], Script],
    current: Callable[[], Script],
    attempt: Callable[[Script], bool],
) -> None:
    """Lower the choices of one list, from the last to the first."""
    number = len(read(current())) - 1
    while number >= 0:
        choices = read(current())
        if number < len(choices) and choices[number]:
            value = choices[number]
            for lower in dict.fromkeys((0, value // 2, value - 1)):
                if attempt(changed(current(), (*choices[:number], lower, *choices[number + 1 :]))):
                    break
        number -= 1


Change = Callable[[Case], Iterator[Case]]


def _first_to_last(change: Change, case: Case, fails: Fails) -> Case:
    """The case after all changes of one kind that keep it failing."""
    while True:
        for candidate in change(case):
            if fails(candidate):
                case = candidate
                break
        else:
            return case


def _fewer_runs(case: Case) -> Iterator[Case]:
    runs = case.runs
    sound = len(runs) - case.wild
    if len(runs) > 2:
        for i, kept in enumerate(runs):
            yield replace(case, runs=(kept,), wild=int(i >= sound))
    for i in range(len(runs) if len(runs) > 1 else 0):
        wild = case.wild - int(i >= sound)
        yield replace(case, runs=runs[:i] + runs[i + 1 :], wild=wild)


def _with(case: Case, proto: onnx.ModelProto, runs: Sequence[Feeds] | None = None) -> Case:
    """The case with another model, without what nothing reads."""
    graph = proto.graph
    wanted = {o.name for o in graph.output}
    kept = []
    for node in reversed(graph.node):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update(node.input)
            for attribute in node.attribute:
                wanted.update(name for inner in attribute.g.node for name in inner.input)
    del graph.node[:]
    graph.node.extend(reversed(kept))
    for field in (graph.initializer, graph.input):
        values = [v for v in field if v.name in wanted]
        del field[:]
        field.extend(values)
    names = {i.name for i in graph.input}
    feeds = [{n: x for n, x in f.items() if n in names} for f in (runs or case.runs)]
    return replace(case, model=proto.SerializeToString(), runs=tuple(feeds))


def _unread(case: Case) -> Iterator[Case]:
    """Without inputs and constants that nothing reads."""
    proto = case.proto
    before = len(proto.graph.input) + len(proto.graph.initializer)
    changed = _with(case, proto)
    if len(proto.graph.input) + len(proto.graph.initializer) < before:
        yield changed


def _fewer_outputs(case: Case) -> Iterator[Case]:
    count = len(case.proto.graph.output)
    if count < 2:
        return
    for kept in range(count):
        proto = case.proto
        (output,) = [proto.graph.output[kept]]
        name = output.name
        for number in reversed(range(count)):
            if proto.graph.output[number].name != name:
                del proto.graph.output[number]
        yield _with(case, proto)
    for left_out in range(count):
        proto = case.proto
        del proto.graph.output[left_out]
        yield _with(case, proto)


def _fewer_nodes(case: Case) -> Iterator[Case]:
    """Without one node: what it gives is what it read, an input, or a constant."""
    nodes = case.proto.graph.node
    for number, node in enumerate(nodes):
        for source in node.input:
            if source and len(node.output) == 1:
                proto = case.proto
                del proto.graph.node[number]
                _rename(proto.graph, node.output[0], source)
                if node.output[0] not in [o.name for o in proto.graph.output]:
                    yield _with(case, proto)
    for number, node in enumerate(nodes):
        values = _values(case, [name for name in node.output if name])
        if values is None:
            continue
        proto = case.proto
        del proto.graph.node[number]
        runs = [dict(feeds) for feeds in case.runs]
        for name, (info, arrays) in values.items():
            proto.graph.input.append(info)
            for feeds, x in zip(runs, arrays, strict=True):
                feeds[name] = x
        outputs = {o.name for o in proto.graph.output}
        if not outputs.issubset(values):
            yield _with(case, proto, runs)
        if len(case.runs) == 1 and all(x[0].size <= 64 for _, x in values.values()):
            proto = case.proto
            del proto.graph.node[number]
            for name, (_, arrays) in values.items():
                proto.graph.initializer.append(numpy_helper.from_array(arrays[0], name))
            yield _with(case, proto)


def _rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        for i, name in enumerate(node.input):
            if name == old:
                node.input[i] = new
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename(attribute.g, old, new)


def _values(
    case: Case, names: Sequence[str]
) -> dict[str, tuple[onnx.ValueInfoProto, list[Any]]] | None:
    """What inputs in place of some values would be: their types, and their elements for each run;
    None if references cannot tell."""
    proto = case.proto
    del proto.graph.output[:]
    proto.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    try:
        graph = import_model(proto).graph
        feeds = [case.operands(graph, number) for number in range(len(case.runs))]
        results = [run_reference(graph, [f[v.name] for v in graph.inputs]) for f in feeds]
    except Exception:  # Inputs that are refused have no such values.
        return None
    found = {}
    for i, (name, value) in enumerate(graph.outputs):
        arrays = [np.ascontiguousarray(result[i]).reshape(result[i].shape) for result in results]
        symbols = {str(d) for v in graph.inputs for d in v.shape}
        dims = [d if isinstance(d, int) else str(d) if str(d) in symbols else None
                for d in value.shape]  # fmt: skip
        element = helper.np_dtype_to_tensor_dtype(arrays[0].dtype)
        found[name] = helper.make_tensor_value_info(name, element, dims), arrays
    return found


def _smaller_extents(case: Case) -> Iterator[Case]:
    """With fewer elements along the axes of one symbol, or along one axis without a name."""
    places: dict[str, list[tuple[str, int]]] = {}
    for info in case.proto.graph.input:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value"):
                key = dim.dim_param or f"{info.name}.{axis}"
                places.setdefault(key, []).append((info.name, axis))
    for number, feeds in enumerate(case.runs):
        for axes in places.values():
            name, axis = axes[0]
            n = feeds[name].shape[axis]
            for wanted in dict.fromkeys((1, 2, 3, 4, n // 2, n - 1)):
                if not 0 < wanted < n:
                    continue
                changed = dict(feeds)
                for name, axis in axes:
                    x = changed[name]
                    kept = range(min(wanted, x.shape[axis]))
                    changed[name] = np.ascontiguousarray(np.take(x, kept, axis))
                runs = (*case.runs[:number], changed, *case.runs[number + 1 :])
                yield replace(case, runs=runs)
