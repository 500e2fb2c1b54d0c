"""Inputs and outputs of a model as onnxruntime describes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ftuner.frontends.onnx.records import Dims, InputRecord, ModelRecord
from ftuner.ort.element_types import ort_type_of
from ftuner.runtime.model import ANY_RANK, TensorSpec


@dataclass(frozen=True)
class NodeArg:
    """An input or output of a model."""

    name: str
    type: str
    """For example `tensor(float)`."""
    shape: list[int | str | None]
    """Names are as in the file; None is an extent without a name."""
    ranked: bool = field(default=True, repr=False)
    """Whether the file has a shape; otherwise `shape` is empty, as onnxruntime's is."""


@dataclass(frozen=True)
class Description:
    """What a session says of its model."""

    inputs: list[NodeArg]
    outputs: list[NodeArg]
    overridable: list[NodeArg]


def described(record: ModelRecord, computed: Sequence[TensorSpec]) -> Description:
    """The inputs and outputs of a file. `computed`: the outputs as ftuner knows them, which settles
    what the file leaves open."""
    inputs = [_given(v) for v in record.inputs]
    names = {dim for v in inputs for dim in v.shape if isinstance(dim, str)}
    declared = {v.name: v.dims for v in record.declared_outputs}
    outputs = []
    for spec in computed:
        type_ = ort_type_of(spec.dtype)
        shape = _merged(declared[spec.name], spec.shape, names)
        outputs.append(NodeArg(spec.name, type_, [] if type_.startswith("seq(") else shape))
    return Description(
        inputs, outputs,
        [_given(v) for v in record.overridable],
    )  # fmt: skip


def _given(record: InputRecord) -> NodeArg:
    ranked = record.dims is not None
    return NodeArg(record.name, ort_type_of(record.dtype.name), list(record.dims or ()), ranked)


def _merged(
    declared: Dims, computed: Sequence[int | str], names: set[str]
) -> list[int | str | None]:
    """The shape of an output: numbers that were computed, else names in the file, else names of
    inputs."""
    if computed == ANY_RANK:
        return list(declared or ())
    if declared is None or len(declared) != len(computed):
        declared = (None,) * len(computed)
    found: list[int | str | None] = []
    for said, known in zip(declared, computed, strict=True):
        if isinstance(known, int) or (said is None and known in names):
            found.append(known)
        else:
            found.append(said)
    return found
