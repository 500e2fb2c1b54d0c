"""`python -m tests.pytorch_table`: writes docs/pytorch-operators.md, the table of ATen's operators
that are imported."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from tests.operator_table import wrapped

from ftuner.frontends.torch.complex_numbers import COMPLEX
from ftuner.frontends.torch.exported import decompositions
from ftuner.frontends.torch.nodes import CHECKS, NUMBERS
from ftuner.frontends.torch.registry import ATEN, name_of

PATH = Path(__file__).parent.parent / "docs" / "pytorch-operators.md"
LEFT_OUT = {
    "training": ("backward",),
    "random permutations": ("randperm",),
    "statistics that are updated in place: call `module.eval()`": ("_native_batch_norm_legit",),
    "reads memory without regard to the tensor's axes": ("as_strided",),
    "tells how a tensor is stored": ("sym_is_contiguous", "sym_storage_offset", "sym_stride"),
    "writes to a tensor that is given": ("out", "resize_"),
    "distances of all pairs of rows: `cdist` has an importer": ("_pdist_forward",),
}  # fmt: skip
"""Why core operators are not imported: those of a name, of an overload, or whose names end so."""
SHAPES = ("sym_size.int", "sym_numel.default")
"""Operators that become dims."""


def core() -> Iterator[torch._ops.OpOverload]:
    """The operators of torch's core set."""
    for whole in sorted(torch._C._dispatch_get_all_op_names()):
        space, _, name = whole.partition("::")
        if space == "aten":
            op, _, overload = name.partition(".")
            found = getattr(getattr(torch.ops.aten, op), overload or "default")
            if torch.Tag.core in found.tags:
                yield found


def reason(name: str) -> str:
    """Why a core operator is not imported.

    Raises:
        KeyError: no reason is known.
    """
    op, overload = name.rsplit(".", 1)
    for why, which in LEFT_OUT.items():
        if op in which or overload in which or op.endswith(tuple(f"_{w}" for w in which)):
            return why
    raise KeyError(name)


def table() -> str:
    """The whole page."""
    known = {name_of(op): op for op in core()}
    every = {*ATEN, *COMPLEX, *CHECKS, *NUMBERS, *SHAPES}
    own = [n for n in known if n in every]
    table = decompositions()
    parts = [n for n, op in known.items() if n not in own and op in table and not _left(n)]
    left = [n for n in known if n not in own and n not in parts]
    reasons: dict[str, list[str]] = {}
    for name in left:
        reasons.setdefault(reason(name), []).append(name)
    rows = [f"| {_named(names)} | {why} |" for why, names in sorted(reasons.items())]
    others = sorted(n for n in {*ATEN, *COMPLEX} if n not in known and "::" not in n)
    return "\n".join(
        [
            "# PyTorch's operators",
            "",
            "Written by `python -m tests.pytorch_table` from the table of importers and from torch "
            f"{torch.__version__.partition('+')[0]}.",
            "",
            f"## Core ATen operators that run: {len(own) + len(parts)} of {len(known)}",
            "",
            wrapped(map(_plain, sorted(own))),
            "",
            *(["As torch decomposes them:", "", wrapped(map(_plain, parts)), ""] if parts else []),
            f"## Core ATen operators that do not: {len(left)}",
            "",
            "| operators | why |",
            "| --- | --- |",
            *rows,
            "",
            f"## Other operators that run, {len(others)} of them",
            "",
            "Composite operators among them are kept whole. What is in neither list is decomposed "
            "by torch where torch can.",
            "",
            wrapped(map(_plain, others)),
            "",
        ]
    )


def _left(name: str) -> bool:
    try:
        return bool(reason(name))
    except KeyError:
        return False


def _plain(name: str) -> str:
    return name.removesuffix(".default")


def _named(names: Iterable[str]) -> str:
    return " ".join(f"`{_plain(name)}`" for name in sorted(names))


if __name__ == "__main__":
    PATH.write_text(table(), encoding="utf-8")
