"""`python -m benchmarks.recurrent`: recurrent layers, each as a model, against the peers.

Batch and length are dynamic. Every engine computes float32 with equal threads, interleaved; weights
and inputs rotate. Each thread count has a process of its own.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx
import typer
from onnx import TensorProto, helper, numpy_helper

from benchmarks import machine
from benchmarks.agreeing import run_agreeing
from benchmarks.cases import rotation_copies, workload
from benchmarks.measure import header
from benchmarks.onnx_writing import IR_VERSION, OPSET
from benchmarks.suite import Suite
from ftuner_tools.onnx_engines import ONNX_ENGINES, Bind
from ftuner_tools.timing import SUBJECT, Settings

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[np.float32]
KIND, SET = "recurrent", "layers"
REFERENCE, TORCH = "onnxruntime", "torch"
PEERS = (REFERENCE, "openvino", TORCH)
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
TORCH_GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
"""The gates of ONNX in PyTorch's order."""


@dataclass(frozen=True)
class Layer:
    """A layer whose batch and length are dynamic."""

    kind: str
    width: int
    hidden: int
    directions: int

    @property
    def label(self) -> str:
        both = " bidirectional" if self.directions == 2 else ""
        return f"{self.kind} {self.width}>{self.hidden}{both}"

    def parameters(self, rng: np.random.Generator) -> dict[str, Array]:
        """Weights and biases as ONNX has them."""
        columns, scale = GATES[self.kind] * self.hidden, self.hidden**-0.5
        shapes = {"W": (columns, self.width), "R": (columns, self.hidden), "B": (2 * columns,)}
        return {
            name: rng.uniform(-scale, scale, (self.directions, *shape)).astype(np.float32)
            for name, shape in shapes.items()
        }

    def model(self, parameters: Mapping[str, Array]) -> onnx.ModelProto:
        """The layer from `X` to `Y`, its hidden states."""
        attributes = {"linear_before_reset": 1} if self.kind == "GRU" else {}
        node = helper.make_node(
            self.kind, ["X", "W", "R", "B"], ["Y"], hidden_size=self.hidden,
            direction="bidirectional" if self.directions == 2 else "forward", **attributes,
        )  # fmt: skip
        given = ["length", "batch", self.width]
        found = ["length", self.directions, "batch", self.hidden]
        graph = helper.make_graph(
            [node], "layer",
            [helper.make_tensor_value_info("X", TensorProto.FLOAT, given)],
            [helper.make_tensor_value_info("Y", TensorProto.FLOAT, found)],
            [numpy_helper.from_array(array, name) for name, array in parameters.items()],
        )  # fmt: skip
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
        )


@dataclass(frozen=True)
class Sequences:
    """A layer on a batch of sequences of one length."""

    layer: Layer
    batch: int
    length: int

    @property
    def label(self) -> str:
        return f"{self.layer.label} {self.batch}x{self.length}"

    @property
    def flops(self) -> int:
        """Multiply-adds of both products, counted as two."""
        layer = self.layer
        each = GATES[layer.kind] * layer.hidden * (layer.width + layer.hidden)
        return 2 * self.batch * self.length * layer.directions * each

    @property
    def rotated_bytes(self) -> int:
        layer = self.layer
        weights = GATES[layer.kind] * layer.hidden * (layer.width + layer.hidden)
        return 4 * (layer.directions * weights + self.batch * self.length * layer.width)

    def inputs(self, rng: np.random.Generator) -> Array:
        return rng.standard_normal((self.length, self.batch, self.layer.width), np.float32)


def cases() -> tuple[Sequences, ...]:
    """Every case of the workload file; those of a layer stand together."""
    found = []
    for entry in workload()["recurrent"]:
        layer = Layer(*(entry[name] for name in ("kind", "input", "hidden", "directions")))
        found += [Sequences(layer, b, n) for b in entry["batch"] for n in entry["length"]]
    return tuple(found)


def torch_module(layer: Layer, parameters: Mapping[str, Array]) -> torch.nn.RNNBase:
    """The layer in PyTorch."""
    torch = importlib.import_module("torch")
    module: torch.nn.RNNBase = getattr(torch.nn, layer.kind)(
        layer.width, layer.hidden, bidirectional=layer.directions == 2
    )
    for number, suffix in enumerate(("", "_reverse")[: layer.directions]):
        first, second = np.split(parameters["B"][number], 2)
        values = {"weight_ih": parameters["W"][number], "weight_hh": parameters["R"][number],
                  "bias_ih": first, "bias_hh": second}  # fmt: skip
        for name, value in values.items():
            gates = np.split(value, GATES[layer.kind])
            ordered = np.concatenate([gates[gate] for gate in TORCH_GATES[layer.kind]])
            getattr(module, f"{name}_l0{suffix}").data = torch.from_numpy(ordered)
    module.flatten_parameters()
    return module


def in_onnx_order(layer: Layer, y: torch.Tensor) -> torch.Tensor:
    """The hidden states that PyTorch gives as those that ONNX does: a view."""
    return y.unflatten(2, (layer.directions, layer.hidden)).transpose(1, 2)


def torch_layer(
    layer: Layer, parameters: Mapping[str, Array]
) -> Callable[[Array], Callable[[], Array]]:
    """Binds an input to the layer in PyTorch; outputs are in ONNX's order of axes."""
    torch = importlib.import_module("torch")
    module = torch_module(layer, parameters)

    def bind(given: Array) -> Callable[[], Array]:
        x = torch.from_numpy(given)

        def call() -> Array:
            y, _ = module(x)
            found: Array = in_onnx_order(layer, y).contiguous().numpy()
            return found

        return call

    return bind


def _bound(
    layer: Layer, engines: Sequence[str], threads: int, seed: int, folder: Path
) -> Mapping[str, Callable[[Array], Callable[[], Array]]]:
    """One layer with weights of its own, prepared by each engine."""
    parameters = layer.parameters(np.random.default_rng(seed))
    path = folder / "layer.onnx"
    onnx.save(layer.model(parameters), path)
    found: dict[str, Callable[[Array], Callable[[], Array]]] = {}
    for name in engines:
        if name == TORCH:
            found[name] = torch_layer(layer, parameters)
        else:
            bind: Bind = ONNX_ENGINES[name].one(path, threads, None)
            found[name] = lambda x, bind=bind: bind({"X": x})  # type: ignore[misc]
    return found


def _measured(
    threads: int, peers: Sequence[str], only: Sequence[str], settings: Settings
) -> dict[str, Any]:
    """Measure in this process; the document."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(threads)
    # Imported by name: it needs the internals of the present ftuner.
    limits = importlib.import_module("benchmarks.limits").Limits(threads)
    here, results = machine.describe(), []
    kept = (case for case in cases() if not only or case.label in only)
    with torch.inference_mode(), tempfile.TemporaryDirectory() as place:
        for layer, members in groupby(kept, key=lambda case: case.layer):
            bound: list[Mapping[str, Callable[[Array], Callable[[], Array]]]] = []
            for case in members:
                copies = rotation_copies(case.rotated_bytes, here.l2_bytes)
                while len(bound) < copies:
                    engines = (SUBJECT, *peers)
                    bound.append(_bound(layer, engines, threads, len(bound), Path(place)))
                rng = np.random.default_rng([case.batch, case.length])
                inputs = [case.inputs(rng) for _ in range(copies)]
                calls = {
                    name: [b[name](x) for b, x in zip(bound, inputs, strict=False)]
                    for name in bound[0]
                }
                found = run_agreeing(calls, REFERENCE, case.flops, settings, case.label, limits)
                results.append(
                    {"case": asdict(case), "label": case.label, "copies": copies} | found
                )
    return header(KIND, SET, threads, here) | {
        "engines": list(dict.fromkeys(name for r in results for name in r["engines"])),
        "unavailable": [],
        "settings": asdict(settings),
        "cases": results,
    }


SUITE = Suite(
    module="benchmarks.recurrent", kind=KIND, set=SET, peers=PEERS, cases=cases, measured=_measured,
)  # fmt: skip

if __name__ == "__main__":
    typer.run(SUITE.main)
