"""The graphs of `torch.compile`, compiled when they are first called: parameters are known then."""

from __future__ import annotations

import dataclasses
import logging
import operator
import weakref
from collections.abc import Collection, Sequence
from contextvars import ContextVar
from dataclasses import field, replace
from functools import partial
from typing import Any

import torch
from torch import fx

from ftuner.core.fork_safety import fork_safe_lock
from ftuner.core.frozen import dataclass
from ftuner.errors import GraphError, UnsupportedKernelError, UnsupportedOperatorError
from ftuner.frontends.torch.importer import NodeError
from ftuner.frontends.torch.registry import name_of
from ftuner.frontends.torch.weights import WEIGHTS, Fingerprint
from ftuner.models import Model
from ftuner.torch import cut
from ftuner.torch.checking import checked
from ftuner.torch.regions import Options, Run, model_of, runner

_LOG = logging.getLogger(__name__)
MOST_STATES = 64
"""Sets of parameters that one graph is kept compiled for: modules of one class share it."""
FEW_RUNS = 16
"""A tensor that changed twice within as many runs is passed to each run from then on: packing it
takes as long as some runs that read it unpacked."""
MOST_VALUES = 3
"""Most values of a Python number that become constants, each of a graph of its own; a number with
more values is passed to each run. An epsilon of a norm is better a constant."""
_COMPILATION = fork_safe_lock()
_TOLD: set[tuple[str, ...]] = set()
"""What was logged: operators that are left to PyTorch, and why padding is computed."""
RECORDER: ContextVar[list[Division] | None] = ContextVar("RECORDER", default=None)
"""The divisions of the graphs that this context runs, while they are recorded; else None."""
_version = operator.attrgetter("_version")
_address = torch.Tensor.data_ptr


@dataclass(frozen=True)
class CompiledRegion:
    """A region, its model, and what the graph calls in its place."""

    region: cut.Region
    model: Model
    run: Run


@dataclass(frozen=True)
class Division:
    """What of a graph is ours, for one set of parameters."""

    regions: Sequence[CompiledRegion]
    left: cut.Left
    """The operators that are left to PyTorch, and why."""
    operators: int
    """All operators of the graph."""


@dataclasses.dataclass
class _State:
    """A graph compiled for one set of parameters, as they were."""

    versions: list[int]
    addresses: list[int]
    fingerprint: Fingerprint
    division: Division
    run: Any
    """Takes what the graph takes."""
    runs: int = 0
    watched: list[weakref.ref[torch.Tensor]] = field(default_factory=list)


class CompiledGraph:
    """An ATen graph without effects on its inputs. Safe to use from several threads."""

    _boxed_call = True
    """For AOTAutograd: the call takes one list, which it empties."""

    def __init__(
        self, module: fx.GraphModule, constants: Collection[int], options: Options
    ) -> None:
        """`constants`: the numbers of the inputs that are parameters and buffers."""
        self._module, self._options = module, options
        self._inputs = module.graph.find_nodes(op="placeholder")
        self._device = _device_of(self._inputs)
        self._states: dict[tuple[float, ...], _State] = {}
        """By `_key`."""
        self._changes: dict[int, int] = {}
        """How often an input changed within a few runs."""
        self._numbers = tuple(
            i for i, n in enumerate(self._inputs) if i not in constants and _is_number(n)
        )
        """The inputs that are numbers of Python."""
        self._values: dict[int, set[float]] = {i: set() for i in self._numbers}
        """Their values so far."""
        self._pick(constants)

    def _pick(self, constants: Collection[int]) -> None:
        self._constants = sorted(constants)
        self._states = {}
        one = len(self._constants) == 1
        picked: Any = operator.itemgetter(*self._constants) if constants else lambda given: ()
        self._parameters: Any = (lambda given: (picked(given),)) if one else picked

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        given = tuple(args)
        args.clear()
        parameters = self._parameters(given)
        state = self._states.get(self._key(parameters, given))
        if (
            state is None
            or list(map(_version, parameters)) != state.versions
            or list(map(_address, parameters)) != state.addresses
            or not state.fingerprint.holds()
        ):
            with _COMPILATION:
                state = self._compiled(given)
        state.runs += 1
        asked = RECORDER.get()
        if asked is not None:
            asked.append(state.division)
        found: Sequence[Any] = state.run(*given)
        return found

    def _key(self, parameters: Sequence[torch.Tensor], given: Sequence[Any]) -> tuple[float, ...]:
        """The identities of the parameters, and the values of numbers."""
        return (*map(id, parameters), *(given[i].item() for i in self._numbers))

    def _compiled(self, given: tuple[Any, ...]) -> _State:
        """The state for what a run is given.

        Raises:
            UnsupportedOperatorError: an operator would be left to PyTorch, which is not wanted.
        """
        moving = {i for i in self._constants if given[i].is_inference()} | self._moving(given)
        if moving:
            self._pick(set(self._constants) - moving)
        parameters = self._parameters(given)
        for i in self._numbers:
            self._values[i].add(given[i].item())
        self._numbers = tuple(i for i in self._numbers if len(self._values[i]) <= MOST_VALUES)
        constants = {self._inputs[i]: x for i, x in zip(self._constants, parameters, strict=True)}
        constants |= {self._inputs[i]: given[i].clone() for i in self._numbers}
        key = self._key(parameters, given)
        division, run = self._divided(constants)
        states = self._states
        if len(states) == MOST_STATES:
            states.pop(next(iter(states)))
        versions, addresses = (list(map(of, parameters)) for of in (_version, _address))
        watched = [weakref.ref(x, lambda _: states.pop(key, None)) for x in parameters]
        state = _State(versions, addresses, Fingerprint(parameters), division, run, watched=watched)
        states[key] = state
        return state

    def _moving(self, given: tuple[Any, ...]) -> set[int]:
        """The inputs that keep changing, by those that changed since the state was made. If one was
        written without a new version, all are packed again: others may have been, too."""
        parameters = self._parameters(given)
        state = self._states.get(self._key(parameters, given))
        if state is None:
            return set()
        written = list(map(operator.ne, map(_address, parameters), state.addresses))
        if not any(written):
            written = state.fingerprint.changed()
        counted = list(map(operator.ne, map(_version, parameters), state.versions))
        if any(map(operator.gt, written, counted)):
            WEIGHTS.renew()
        if state.runs > FEW_RUNS:
            return set()
        numbers = zip(self._constants, written, counted, strict=True)
        changed = {i for i, *how in numbers if any(how)}
        for i in changed:
            self._changes[i] = self._changes.get(i, 0) + 1
        return {i for i in changed if self._changes[i] > 1}

    def _divided(self, constants: dict[fx.Node, torch.Tensor]) -> tuple[Division, Any]:
        """The graph's regions, and a function that runs it."""
        module, device, options, left = self._module, self._device, self._options, cut.Left()
        operators = [n for n in module.graph.nodes if _is_operator(n)]
        if device.type not in ("cpu", "cuda"):
            left = dict.fromkeys(operators, f"on {device}")
        while True:
            ours = cut.kept(module.graph, device, left)
            found, failed = list[CompiledRegion](), cut.Left()
            regions = cut.regions(module.graph, ours, left)
            # What PyTorch computes may read padded positions.
            whole = len(regions) == 1 and all(map(cut.is_view, left))
            given = options if whole else replace(options, unpad=None)
            for region in regions:
                try:
                    found.append(self._region(region, constants, given))
                except NodeError as error:
                    failed[next(n for n in region.nodes if n.name == error.node)] = str(error)
                except (GraphError, UnsupportedKernelError) as error:
                    failed |= {n: str(error) for n in region.nodes if _is_operator(n)}
            if not failed:
                break
            left |= failed
        left = {n: why for n, why in left.items() if not cut.is_view(n)}
        _tell(left, options)
        if options.unpad and found:
            tell_padding(found[0].model.padding_kept if whole else "PyTorch computes a part of it")
        assembled = cut.assembled(module, [(x.region, x.run) for x in found], ours, constants)
        return Division(found, left, len(operators)), assembled.forward

    def _region(
        self, region: cut.Region, constants: dict[fx.Node, torch.Tensor], options: Options
    ) -> CompiledRegion:
        module = cut.module_of(region, self._module)
        known = {n.name: x for n, x in constants.items() if n in region.inputs}
        on_host = {name: x.cpu() for name, x in known.items()}
        compiled = partial(model_of, constants=on_host, device=self._device, options=options)
        model = compiled(module)
        run = runner(model, self._device)
        if options.check:
            run = checked(module, known, run, compiled, self._device)
        return CompiledRegion(region, model, run)


def _is_number(node: fx.Node) -> bool:
    """Whether an input is a float that the graph reads, which torch passes as a tensor."""
    given = node.meta["val"]
    return (
        bool(node.users)
        and isinstance(given, torch.Tensor)
        and (given.dtype, given.dim(), given.device.type) == (torch.float64, 0, "cpu")
    )  # fmt: skip


def _device_of(inputs: Sequence[fx.Node]) -> torch.device:
    """The device of most inputs."""
    devices = [n.meta["val"].device for n in inputs if isinstance(n.meta["val"], torch.Tensor)]
    return max(devices, key=devices.count, default=torch.device("cpu"))


def _is_operator(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and not cut.gives_no_tensor(node)


def _tell(left: cut.Left, options: Options) -> None:
    """Log what is left to PyTorch, once.

    Raises:
        UnsupportedOperatorError: nothing may be.
    """
    texts = tuple(sorted({f"{title_of(n)} ({why})" for n, why in left.items()}))
    if not texts:
        return
    message = f"left to PyTorch: {', '.join(texts)}"
    if options.fullgraph_or_error:
        raise UnsupportedOperatorError(f"{message}; leave out the option fullgraph_or_error")
    if texts not in _TOLD:
        _TOLD.add(texts)
        _LOG.warning("%s", message)


def tell_padding(why: str) -> None:
    """Log once why padding is computed; not if it is left out."""
    if why and (why,) not in _TOLD:
        _TOLD.add((why,))
        _LOG.warning("the padding of a graph's batches is computed: %s", why)


def title_of(node: fx.Node) -> str:
    """The operator of a node."""
    if isinstance(node.target, torch._ops.OpOverload):
        return name_of(node.target)
    return str(node.target)
