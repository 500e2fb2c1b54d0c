"""The reductions of a nest as Triton text: stages, scans, and parts of a tile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ftuner.codegen.triton import functions
from ftuner.codegen.triton.functions import gathered
from ftuner.codegen.triton.product_results import arrival_lines, departure_line, part_load
from ftuner.core.dtype import FLOAT32
from ftuner.core.functions import neutral
from ftuner.core.index_expr import POSITIONAL, Stage
from ftuner.core.scaled_product import UNIT_EXPONENT, UNIT_MANTISSA, is_scaled
from ftuner.schedules.nest.gpu_kernel_positions import Positions
from ftuner.schedules.nest.gpu_kernel_values import Dimensions, Frame, Term, Values


class Reductions:
    """Writes the reductions of one kernel."""

    def __init__(self, frame: Frame, positions: Positions) -> None:
        self._frame = frame
        self._positions = positions
        self._kernel = frame.kernel
        self._schedule = frame.schedule

    @contextmanager
    def loop(self, outer: Values, steps: Iterable[int]) -> Iterator[Values]:
        """A loop over blocks of the reduced axes, in which these steps are computed."""
        outer.prepare(steps)
        with self._positions.loop() as (index, masks):
            yield Values(self._frame, {**outer.index, **index}, {**outer.masks, **masks}, outer)

    def stage(self, number: int, stage: Stage, outer: Values, block: Values | None) -> Term:
        """Writes a reduction, and returns its result. `block`: the values of the reduced axes if
        they are one block; otherwise a loop within `outer` computes them."""
        if stage.kind in POSITIONAL:
            return self._position(number, stage, outer, block)
        if is_scaled(stage.kind, gathered(self._kernel.steps[stage.value].dtype)):
            return self._scaled_product(number, stage, outer, block)
        return self._combined(number, stage, outer, block)

    def _combined(self, number: int, stage: Stage, outer: Values, block: Values | None) -> Term:
        """Writes a reduction: each lane combines its elements of all blocks, then lanes are
        reduced."""
        frame, body = self._frame, self._frame.body
        dtype = self._kernel.steps[stage.value].dtype
        wide = gathered(dtype)
        nothing = functions.literal(neutral(stage.kind, dtype), wide)
        name = f"s{number}"
        if block is not None:
            body.line(f"{name} = {self._elements(block, stage.value, nothing)}")
        else:
            shape = frame.shape(frame.present)
            body.line(f"{name} = tl.full({shape}, {nothing}, {functions.type_text(wide)})")
            with self.loop(outer, [stage.value]) as values:
                elements = self._elements(values, stage.value, nothing)
                body.line(f"element = {elements}")
                text = frame.functions.combine(stage.kind, name, "element", wide)
                body.line(f"{name} = {text}")
        if self._in_lanes:
            text = frame.functions.across(stage.kind, name, self._axis, wide)
            body.line(f"{name} = {text}")
        if wide != functions.register(dtype):
            body.line(f"{name} = {name}.to({functions.type_text(dtype)})")
        return Term(name, self._left)

    @contextmanager
    def split(self, outer: Values) -> Iterator[None]:
        """Writes the reduction of a part, and of all parts by the last-arriving program. The
        context is that program's branch, which stores the results."""
        frame, body = self._frame, self._frame.body
        (stage,) = self._kernel.stages
        whole = self.stage(0, stage, outer, None)
        (name, left), kept = (whole.name, sorted(whole.along)), self._schedule.block
        elements = kept[left[0]] if left else 1
        lane = f" + numbers{left[0]}" if left else ""
        body.line(f"slots = workspace + tile * parts * {elements}")
        body.line(f"tl.store(slots + part * {elements}{lane}, {name}.to(tl.float32))")
        for line in arrival_lines("counters + tile"):
            body.line(line)
        with body.block("if arrived == parts - 1"):
            nothing = functions.literal(neutral(stage.kind, FLOAT32), FLOAT32)
            shape = frame.shape(left) if left else "()"
            body.line(f"total = tl.full({shape}, {nothing}, tl.float32)")
            with body.block("for other in range(parts)"):
                body.line(f"partial = {part_load(f'slots + other * {elements}{lane}')}")
                step = frame.functions.combine(stage.kind, "total", "partial", FLOAT32)
                body.line(f"total = {step}")
            body.line(departure_line("counters + tile"))
            outer.stages.append(Term("total", whole.along))
            yield

    @contextmanager
    def scan(self, outer: Values) -> Iterator[Values]:
        """Writes a running reduction along the one reduced axis, in a loop over its blocks. An
        exclusive one reads the block of the preceding elements."""
        frame, body, kernel = self._frame, self._frame.body, self._kernel
        (stage,) = kernel.stages
        dtype = kernel.steps[stage.value].dtype
        wide = gathered(dtype)
        shape = frame.shape(self._left) if self._left else "()"
        nothing = functions.literal(neutral(stage.combine, dtype), wide)
        body.line(f"total = tl.full({shape}, {nothing}, {functions.type_text(wide)})")
        with self.loop(outer, [stage.value, *kernel.values]) as values:
            shifted = not stage.last and self._in_lanes
            place = self._before(values) if shifted else values
            body.line(f"element = {self._elements(place, stage.value, nothing)}")
            after = frame.functions.combine(stage.combine, "total", "element", wide)
            if self._in_lanes:
                axis = self._axis.split(",")[0]
                word = {"sum": "cumsum", "product": "cumprod"}[stage.combine]
                body.line(f"sums = tl.{word}(element, {axis})")
                sums = frame.functions.combine(stage.combine, "sums", "total", wide)
                body.line(f"sums = {sums}")
                block = frame.functions.across(stage.combine, "element", self._axis, wide)
                body.line(f"block = {block}")
                total = frame.functions.combine(stage.combine, "total", "block", wide)
                body.line(f"total = {total}")
            else:
                body.line(f"sums = {after if stage.last else 'total'}")
                body.line(f"total = {after}")
            if wide != functions.register(dtype):
                body.line(f"sums = sums.to({functions.type_text(dtype)})")
            values.stages = [Term("sums", frozenset(frame.present))]
            yield values

    def _scaled_product(
        self, number: int, stage: Stage, outer: Values, block: Values | None
    ) -> Term:
        """Writes a product by mantissas and exponents; see `core.scaled_product`."""
        frame, body = self._frame, self._frame.body
        wide = gathered(self._kernel.steps[stage.value].dtype)
        functions_ = frame.functions.scaled(wide)
        name, exponent = f"s{number}", f"exponent{number}"
        both = f"{name}, {exponent}"
        nothing = functions.literal(1.0, wide)

        def gather(values: Values, before: str) -> None:
            body.line(f"element = {self._elements(values, stage.value, nothing)}")
            body.line(f"factor, shift = {functions_.factor}(element)")
            body.line(f"{both} = {functions_.product}({before}, factor, shift)")

        if block is not None:
            gather(block, f"{UNIT_MANTISSA}, {UNIT_EXPONENT}")
        else:
            shape = frame.shape(frame.present)
            body.line(f"{name} = tl.full({shape}, {UNIT_MANTISSA}, {functions.type_text(wide)})")
            body.line(f"{exponent} = tl.full({shape}, {UNIT_EXPONENT}, tl.int{wide.bits})")
            with self.loop(outer, [stage.value]) as values:
                gather(values, both)
        if self._in_lanes:
            body.line(
                f"{both} = tl.reduce(({both}), combine_fn={functions_.product}, {self._axis})"
            )
        body.line(f"{name} = {functions_.result}({both})")
        return Term(name, self._left)

    def _position(self, number: int, stage: Stage, outer: Values, block: Values | None) -> Term:
        """Writes the index of the largest or smallest element: first for each lane, then over all
        lanes."""
        frame, body = self._frame, self._frame.body
        dtype = self._kernel.steps[stage.value].dtype
        wide = gathered(dtype)
        kind = "maximum" if stage.kind == "argmax" else "minimum"
        nothing = functions.literal(neutral(kind, dtype), wide)
        axis = len(self._kernel.kept)
        best, at = f"best{number}", f"s{number}"
        if block is not None:
            body.line(f"{best} = {self._elements(block, stage.value, nothing)}")
            index = block.index[axis]
            mask = block.masks.get(self._across)
            body.line(f"{at} = {self._spread(index.name, index.along, mask, '0')}")
        else:
            shape = frame.shape(frame.present)
            body.line(f"{best} = tl.full({shape}, {nothing}, {functions.type_text(wide)})")
            body.line(f"{at} = tl.full({shape}, 0, tl.int64)")
            with self.loop(outer, [stage.value]) as values:
                body.line(f"element = {self._elements(values, stage.value, nothing)}")
                sign = (">" if kind == "maximum" else "<") + ("=" if stage.last else "")
                better = f"(element {sign} {best})"
                if dtype.kind == "float":
                    # NaN counts as largest and as smallest; of several, the first or the last.
                    first = "" if stage.last else f" & ({best} == {best})"
                    better = f"({better} | ((element != element){first}))"
                mask = values.masks.get(self._across)
                body.line(f"better = {better}" + (f" & {mask}" if mask else ""))
                body.line(f"{best} = tl.where(better, element, {best})")
                body.line(f"{at} = tl.where(better, {values.index[axis].name}, {at})")
        if self._in_lanes:
            body.line(f"top = {frame.functions.across(kind, best, self._axis, wide)}")
            found = f"{best} == top"
            if dtype.kind == "float":
                found = f"tl.where(top == top, {found}, {best} != {best})"
            word, other = ("max", "-1") if stage.last else ("min", str(2**63 - 1))
            body.line(f"{at} = tl.{word}(tl.where({found}, {at}, {other}), {self._axis})")
        return Term(at, self._left)

    def _before(self, values: Values) -> Values:
        """Returns the place of the preceding elements."""
        axis = len(self._kernel.kept)
        extent = self._frame.dim(self._kernel.axes[axis])
        index = values.index[axis]
        self._frame.body.line(f"before = {index.name} - 1")
        self._frame.body.line(f"known = (before >= 0) & (before < {extent})")
        return values.elsewhere({axis: Term("before", index.along)}, {self._across: "known"})

    @property
    def _across(self) -> int:
        assert self._schedule.reduction is not None
        return self._schedule.reduction

    @property
    def _axis(self) -> str:
        """The arguments of Triton's reductions. One dimension is reduced to a scalar."""
        return f"axis={self._across}, keep_dims=True" if len(self._frame.present) == 2 else "axis=0"

    @property
    def _in_lanes(self) -> bool:
        """Whether the dimension of the reduced axes has lanes; otherwise it is a loop."""
        return self._across in self._frame.present

    @property
    def _left(self) -> Dimensions:
        """The dimensions along which a reduction's result has elements."""
        return frozenset(self._frame.present) - {self._across}

    def _elements(self, values: Values, step: int, nothing: str) -> str:
        """Returns a step on all lanes of a block, in the dtype of reductions; `nothing` beyond the
        edge."""
        dtype = self._kernel.steps[step].dtype
        term = values.value(step)
        text, along = term.name, term.along
        if gathered(dtype) != functions.register(dtype):
            text = f"{text}.to({functions.type_text(gathered(dtype))})"
        return self._spread(text, along, values.masks.get(self._across), nothing)

    def _spread(self, text: str, along: Dimensions, mask: str | None, nothing: str) -> str:
        if mask is not None:
            text, along = f"tl.where({mask}, {text}, {nothing})", along | {self._across}
        if along == frozenset(self._frame.present):
            return text
        return f"tl.broadcast_to({text}, {self._frame.shape(self._frame.present)})"
