"""Inputs and outputs of a model as onnxruntime describes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ftuner.frontends.onnx.records import ModelRecord
from ftuner.ort.element_types import ort_type_of
from ftuner.runtime.model import TensorSpec


@dataclass(frozen=True)
class NodeArg:
    """An input or output of a model."""

    name: str
    type: str
    """For example `tensor(float)`."""
    shape: list[int | str | None]
    """Names are symbols; None is an extent without a name."""


@dataclass(frozen=True)
class Description:
    """What a session says of its model."""

    inputs: list[NodeArg]
    outputs: list[NodeArg]
    overridable: list[NodeArg]


def described(record: ModelRecord, computed: Sequence[TensorSpec]) -> Description:
    """The inputs and outputs of a file. `computed`: the outputs as ftuner knows them, which settles
    what the file leaves open."""
    inputs = [NodeArg(v.name, ort_type_of(v.dtype.name), list(v.dims)) for v in record.inputs]
    names = {dim for v in record.inputs for dim in v.dims if isinstance(dim, str)}
    declared = {v.name: v.dims for v in record.declared_outputs}
    outputs = []
    for spec in computed:
        type_ = ort_type_of(spec.dtype)
        shape = _merged(declared[spec.name], spec.shape, names)
        outputs.append(NodeArg(spec.name, type_, [] if type_.startswith("seq(") else shape))
    return Description(
        inputs, outputs,
        [NodeArg(v.name, ort_type_of(v.dtype.name), list(v.dims)) for v in record.overridable],
    )  # fmt: skip


def _merged(
    declared: Sequence[int | str | None], computed: Sequence[int | str], names: set[str]
) -> list[int | str | None]:
    """The shape of an output: numbers that were computed, else names in the file, else names of
    inputs."""
    if len(declared) != len(computed):
        declared = [None] * len(computed)
    found: list[int | str | None] = []
    for said, known in zip(declared, computed, strict=True):
        if isinstance(known, int) or (said is None and known in names):
            found.append(known)
        else:
            found.append(said)
    return found
