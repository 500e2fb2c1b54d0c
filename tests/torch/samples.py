"""`python -m tests.torch.samples DTYPE`: torch's own samples of its operators, and of what they are
in place, by the back end of `torch.compile`. Prints those that differ from eager mode in a result,
its strides or an input, or that raise.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any
from unittest import mock

import torch
from tests.frontends import aten_samples
from tests.frontends.aten_samples import Sample
from torch.testing._internal.common_methods_invocations import op_db

from ftuner.torch import backend, cut, graphs

OPERATORS = {f"{op.name}.{op.variant_test_name}".rstrip("."): op for op in op_db}

SEED = 42
"""The one that torch's samples of random operators set themselves."""


class _InPlace:
    """An operator's variant that updates its first operand, as `aten_samples.samples` takes it."""

    def __init__(self, op: Any) -> None:
        self.name, self.variant_test_name = op.name, op.variant_test_name
        self.op, self.sample_inputs = op.inplace_variant, op.sample_inputs


def samples(op: str, dtype: torch.dtype, most: int) -> Iterator[tuple[str, Sample]]:
    """Samples of an operator and of its variant in place, with what tests call them."""
    known = OPERATORS[op]
    for kind in (known, _InPlace(known)):
        if kind.op is not None:
            name = f"{op}{'' if kind is known else '_'}"
            for number, sample in enumerate(islice(aten_samples.samples(kind, dtype, most), most)):
                yield f"{name} {number}", sample


def outcome(sample: Sample) -> str:
    """`right`, `left` to PyTorch, `untraced`, or what is wrong."""
    mine, theirs = ([_copied(x) for x in sample.operands] for _ in range(2))
    with torch.no_grad(), mock.patch.object(cut, "FEWEST_OPERATORS", 1):
        torch.manual_seed(SEED)
        try:
            wanted = sample.function(*theirs)
        except Exception:
            return "untraced"
        module = aten_samples.traced(sample._replace(operands=tuple(mine)), True)
        if module is None:
            return "untraced"
        divisions: list[graphs.Division] = []
        token = graphs.RECORDER.set(divisions)
        torch.manual_seed(SEED)
        try:
            found = backend(module, mine)(*mine)
        finally:
            graphs.RECORDER.reset(token)
    for x, y in zip([*found, *mine], [*wanted, *theirs], strict=True):
        wrong = aten_samples.difference(sample, x, y)
        if not wrong and isinstance(y, torch.Tensor) and _strides(x) != _strides(y):
            wrong = f"strides {x.stride()} for {y.stride()}"
        if wrong:
            return wrong
    return "right" if any(d.operators > len(d.left) for d in divisions) else "left"


def _copied(x: torch.Tensor) -> torch.Tensor:
    return x.clone(memory_format=torch.preserve_format)


def _strides(x: torch.Tensor) -> list[int]:
    """The strides that matter."""
    pairs = zip(x.stride(), x.shape, strict=True)
    return [stride for stride, n in pairs if n > 1] if x.numel() else []


def main(dtype: str) -> None:
    for op, known in OPERATORS.items():
        if getattr(torch, dtype) not in known.dtypes:
            continue
        for which, sample in samples(op, getattr(torch, dtype), 1):
            try:
                what = outcome(sample)
            except Exception as error:
                what = f"{type(error).__name__}: {error}"
            if what not in ("right", "left", "untraced"):
                print(which, what[:300].replace("\n", " "), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
