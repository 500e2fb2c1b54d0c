"""The attention kernel of a GPU: a tile of queries that walks over the keys it sees.

The tile equation. `bq` rows of queries stay with one program; `bk` keys and their values at a time
pass through shared memory, `stages` of them on their way or in use; scores of `bq x bk` are all
that exists. A row is one query of one head: heads that share keys and values are rows of the same
tile, row `i * sharing + h` being position i of head h. Extents are none of a kernel's business, but
for those along which a query and a key are multiplied and a value is stored: these a kernel covers
by blocks of powers of two.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from ftuner.core.dtype import BOOL, DType
from ftuner.core.gpu.tile import Loads, Multiply
from ftuner.errors import ShapeError

Causal = Literal["none", "first", "last"]
"""How far rows see: all keys; position i keys `j <= i + past`; or counted from the end, the last
position all keys and `past` more, so that position i sees `j <= i + keys - rows + past`. The latter
differs from the former where requests are of unequal length."""
AttentionMultiply = Multiply | Literal["tf32x3"]
"""`tf32x3` multiplies float32 as the three products of their leading and trailing tf32 parts that
matter, which keeps all but the last few bits."""
MaskSpread = Literal["keys", "scores"]
"""Whether a mask has one number for each key, whatever the row and the head of a group, or one for
each score."""
MaskLayout = Literal["aligned", "contiguous", "strided"]
"""Of a mask along keys: contiguous with its base and its other strides multiples of 16 bytes,
contiguous, or of any stride (0 is one number for all keys)."""
MIN_BLOCK = 16
"""Elements of the least block: the matrix instructions' step."""
MAX_EXTENT = 256
"""Of a query, and of a value, that one kernel takes: more do not leave registers for a tile of 16
rows on four warps."""


def covering_blocks(extent: int) -> tuple[int, ...]:
    """One or two powers of two, the larger first, whose sum is the least that holds `extent`: 80
    elements are 64 and 16, 112 are one block of 128.

    Raises ShapeError beyond `MAX_EXTENT`, and for an extent below 0. No elements are a block, all
    of it beyond the edge.
    """
    if not 0 <= extent <= MAX_EXTENT:
        raise ShapeError(
            f"attention over vectors of {extent} elements; expected 0 to {MAX_EXTENT}: cut values "
            "into columns, which are independent; longer queries are two products and a softmax"
        )
    whole = MIN_BLOCK
    while 2 * whole <= extent:
        whole *= 2
    if extent <= whole:
        return (whole,)
    rest = MIN_BLOCK
    while whole + rest < extent:
        rest *= 2
    return (2 * whole,) if rest == whole else (whole, rest)


@dataclass(frozen=True)
class AttentionTile:
    """Queries and keys of one step, and who does it."""

    bq: int
    bk: int
    warps: int
    stages: int

    def __str__(self) -> str:
        return f"{self.bq}x{self.bk}/{self.warps}w{self.stages}s"


@dataclass(frozen=True)
class AttentionMask:
    """What is done to scores: booleans, read as bytes, say which count; numbers are added."""

    dtype: DType
    spread: MaskSpread = "scores"
    layout: MaskLayout = "strided"

    @property
    def boolean(self) -> bool:
        return self.dtype == BOOL

    def __str__(self) -> str:
        return f"{self.dtype}_{self.spread}_{self.layout}"


@dataclass(frozen=True)
class AttentionForm:
    """What decides a kernel besides its tile: `softmax(mask(q k' * scale)) v`, row by row.

    Scale, what stands for hidden scores, and what a row gives whose scores are all minus infinity
    are numbers of a call (`AttentionCall`).
    """

    dtype: DType
    """Of q, k, v and the result."""
    multiply: AttentionMultiply
    depth_blocks: tuple[int, ...]
    """Along which queries and keys are multiplied."""
    column_blocks: tuple[int, ...]
    """Along which values are stored."""
    exact: bool = True
    """Whether depth and columns fill their blocks; else what is beyond them is masked."""
    causal: Causal = "none"
    mask: AttentionMask | None = None
    ragged: DType | None = None
    """Of the offsets (int32 or int64) at which requests begin, if their lengths differ."""
    aligned: bool = True
    """Whether bases and strides of q, k, v and the result, and depth and columns, are multiples of
    16 bytes."""
    loads: Loads = "pointers"
    """Of keys and values. Descriptors need them aligned."""
    negative: bool = False
    """Whether the scale is below zero: the least product then has the largest score."""

    @staticmethod
    def over(
        dtype: DType, multiply: AttentionMultiply, depth: int, columns: int, **others: Any
    ) -> AttentionForm:
        """The form whose blocks cover `depth` and `columns` (ShapeError if none do)."""
        depths, widths = covering_blocks(depth), covering_blocks(columns)
        exact = (sum(depths), sum(widths)) == (depth, columns)
        return AttentionForm(dtype, multiply, depths, widths, exact, **others)

    @property
    def depth(self) -> int:
        """Of the blocks together."""
        return sum(self.depth_blocks)

    @property
    def columns(self) -> int:
        """Of the blocks together."""
        return sum(self.column_blocks)

    def __str__(self) -> str:
        depth = "_".join(map(str, self.depth_blocks))
        columns = "_".join(map(str, self.column_blocks))
        mask = "" if self.mask is None else f"_{self.mask}"
        ragged = "" if self.ragged is None else f"_ragged_{self.ragged}"
        flags = "".join(
            letter
            for letter, on in (("e", self.exact), ("a", self.aligned),
                               ("d", self.loads == "descriptors"), ("n", self.negative))
            if on
        )  # fmt: skip
        return (
            f"{self.dtype}_{self.multiply}_d{depth}_c{columns}_{self.causal}{mask}{ragged}"
            f"_{flags or 'u'}"
        )


class SumsInFlight(NamedTuple):
    """Limits on the parts of split keys that are loaded together to be added up; a chip's tuning
    has them."""

    loads: int
    values: int
    """Values of a tile, in all those loads."""


@dataclass(frozen=True)
class AttentionKernel:
    """What is compiled."""

    form: AttentionForm
    tile: AttentionTile
    packed: bool = False
    """Whether heads that share keys and values are rows of the same tile: row `i * sharing + h` is
    position i of head h. They are then read once, which pays where a head has few rows; numbering
    rows takes registers."""
    split: bool = False
    """Whether the keys of a tile may be split among programs; the last-arriving program adds their
    partial sums up."""
    sums_in_flight: SumsInFlight = field(kw_only=True)

    @property
    def partial_floats(self) -> int:
        """Of the workspace, for one part of one tile: values, and of each row the largest score
        and the sum."""
        return self.tile.bq * (self.form.columns + 2)

    @property
    def pointers(self) -> tuple[str, ...]:
        """The arrays that a call passes, in order; its numbers follow.

        `k_rest` and `v_rest` are the same arrays as `k` and `v` once more, as descriptors of the
        second block. `workspace` has `partial_floats` for each program launched, undefined;
        `arrivals` an int32 for each tile, zero before the first launch and after each. Launches
        that may overlap share neither.
        """
        form = self.form
        described = form.loads == "descriptors"
        k_rest = ("k_rest",) if described and len(form.depth_blocks) > 1 else ()
        v_rest = ("v_rest",) if described and len(form.column_blocks) > 1 else ()
        mask = () if form.mask is None else ("mask",)
        offsets = () if form.ragged is None else ("q_offsets", "k_offsets")
        split = ("workspace", "arrivals") if self.split else ()
        return ("q", "k", *k_rest, "v", *v_rest, *mask, "out", *offsets, *split)

    @property
    def symbol(self) -> str:
        """The name of the compiled function, unique among the kernels of one chip."""
        tile = self.tile
        shape = f"{tile.bq}x{tile.bk}_{tile.warps}w{tile.stages}s"
        flags = "p" * self.packed + "s" * self.split
        return f"attention_{shape}{flags and '_' + flags}_{self.form}"


class AttentionCall(NamedTuple):
    """The numbers of one call, in the order of a kernel's arguments.

    Strides are in elements; a head is one of keys and values, a member one of the `sharing` heads
    of queries that share it. Where keys and values are descriptors, of rank 4 (request, head, key,
    element), their strides along requests and heads are 1, or 0 if all share one.

    Requests of unequal length lie one after the other in q, k, v and the result; their strides
    along requests, `rows` and `keys` are then not read. A mask still has each request's rows and
    keys from their beginning.
    """

    batch: int
    """Requests."""
    heads: int
    sharing: int
    rows: int
    """Positions of a request, where all have as many."""
    keys: int
    depth: int
    columns: int
    past: int
    """As in `Causal`."""
    tiles: int
    """Of one head: of all requests if they are ragged, else of one."""
    l2_heads: int
    """Heads whose tiles are taken side by side."""
    split_keys: int
    scale: float
    hidden: float
    """What stands for scores that a boolean mask hides."""
    blind: float
    """What a row gives whose scores are all minus infinity, unless a limit hides it whole."""
    q_batch: int
    q_head: int
    q_member: int
    q_row: int
    k_batch: int
    k_head: int
    k_row: int
    v_batch: int
    v_head: int
    v_row: int
    out_batch: int
    out_head: int
    out_member: int
    out_row: int
    mask_batch: int = 0
    mask_head: int = 0
    mask_member: int = 0
    mask_row: int = 0
    mask_key: int = 0
