"""What a step reads, writes and depends on follows from its fields."""

from dataclasses import dataclass
from typing import ClassVar

from ftuner.core.dim import Dim, symbol
from ftuner.core.dtype import FLOAT32
from ftuner.graph.buffers import Buffer, View, row_major
from ftuner.graph.ir import TensorType
from ftuner.graph.steps import ViewStep

N, M, K = (symbol(name) for name in "NMK")


def view(*shape: Dim) -> View:
    type_ = TensorType(FLOAT32, shape)
    return View(Buffer("arena", FLOAT32, 1), row_major(type_))


@dataclass(frozen=True)
class _Step(ViewStep):
    results: ClassVar[tuple[str, ...]] = ("y", "scratch")
    title: str
    x: View
    y: View
    others: tuple[View, ...]
    scratch: Buffer | None
    count: Dim
    begin: tuple[Dim, ...]


def test_fields_say_what_a_step_accesses() -> None:
    x, y, first, second = view(2, N), view(3, 4), view(M, 1), view(7)
    scratch = Buffer("arena", FLOAT32, 5)
    step = _Step("a title", x, y, (first, second), scratch, K, (0, N + 1))
    assert step.reads == (x.buffer, first.buffer, second.buffer)
    assert step.writes == (y.buffer, scratch)
    assert step.views == (x, y, first, second)
    assert set(step.dims) == {N, M, K, N + 1}
    assert _Step("a title", x, y, (), None, 3, ()).writes == (y.buffer,)
