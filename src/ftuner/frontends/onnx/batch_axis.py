"""Names for the dims of a model that does not say which of them are equal.

Without names, an operator on two inputs may broadcast either, so that nothing is known of its rows.
The names given here are as binding as those of a file: inputs whose extents differ all the same are
run by a variant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ftuner.core.given import BatchAxis, checked_integer
from ftuner.core.units import count
from ftuner.errors import InputError
from ftuner.frontends.onnx.records import InputRecord, ModelRecord

NAME = "batch"
"""The name of the requests' axis in a file without names."""


def with_batch_axis(record: ModelRecord, given: BatchAxis) -> ModelRecord:
    """The model whose inputs count requests along an axis, of all inputs or of each by name. Its
    dims get one name, if the file has none or another for each input. So do the other dims without
    a common name, by their number, of inputs that have as many axes and the same axis of requests.

    Raises:
        InputError: an unknown input; one that does not have the axis, or whose number of axes the
            file does not say; an axis of one extent; axes that the file names apart.
    """
    repeated = record.repeated
    chosen = _axes(record, given)
    said = sorted({name for v, axis in chosen if (name := v.symbol(axis)) in repeated if name})
    if len(said) > 1:
        raise InputError(
            f"batch_axis is {given}, which the file calls {' and '.join(said)}; give the axis of "
            "each input by name"
        )
    groups: dict[tuple[int, int, int], list[InputRecord]] = {}
    for v, axis in chosen:
        assert v.dims is not None
        for number in range(len(v.dims)):
            groups.setdefault((len(v.dims), axis, number), []).append(v)
    taken = {v.symbol(a) for v in record.inputs for a in range(len(v.dims or ()))}

    def new(name: str) -> str:
        while name in taken:
            name += "_"
        taken.add(name)
        return name

    common = said[0] if said else new(NAME)
    names: dict[tuple[str, int], str] = {}
    for (_, axis, number), members in groups.items():
        first = new(f"{members[0].name}_{number}")
        for v in members:
            if v.symbol(number) not in repeated:
                names[v.name, number] = common if number == axis else first
    return replace(record, inputs=tuple(_named(v, names) for v in record.inputs))


def _axes(record: ModelRecord, given: BatchAxis) -> list[tuple[InputRecord, int]]:
    """The inputs that count requests, each with the axis."""
    by_name = given if isinstance(given, Mapping) else {v.name: given for v in record.inputs}
    unknown = sorted(by_name.keys() - {v.name for v in record.inputs})
    if unknown or not by_name:
        known = ", ".join(v.name for v in record.inputs)
        named = ", ".join(map(repr, unknown)) or "no input"
        raise InputError(f"batch_axis names {named}; inputs are {known}")
    chosen = []
    for v in record.inputs:
        if v.name not in by_name:
            continue
        axis = checked_integer(by_name[v.name], "batch_axis", 0, error=InputError)
        if v.dims is None:
            raise InputError(f"the file does not say how many axes input {v.name} has")
        if axis >= len(v.dims):
            has = count(len(v.dims), "axis", "axes")
            raise InputError(
                f"batch_axis is {axis} for input {v.name}, which has {has}; give the axes of the "
                "others by name"
            )
        if isinstance(v.dims[axis], int):
            raise InputError(
                f"batch_axis is {axis} for input {v.name}, whose extent is always {v.dims[axis]} "
                "there; leave the input out, or export the model with a dynamic axis"
            )
        chosen.append((v, axis))
    return chosen


def _named(v: InputRecord, names: Mapping[tuple[str, int], str]) -> InputRecord:
    """The input, whose dims have names unless they have one extent."""

    def dim(axis: int, known: int | str | None) -> int | str | None:
        return known if isinstance(known, int) else names.get((v.name, axis), known)

    return replace(v, dims=v.dims and tuple(dim(a, d) for a, d in enumerate(v.dims)))
