"""The attention kernel of a GPU: a tile of queries that walks over the keys it sees.

The tile equation. A program keeps `bq` rows of queries. Blocks of `bk` keys and their values pass
through shared memory, `stages` of them in flight or in use, so that only `bq x bk` scores exist at
a time. A row is one query of one head; where heads share keys and values, the rows of all of them
may be one tile (`AttentionKernel.packed`). Kernels are independent of the extents, except for the
elements of a query and of a value, which a kernel covers by blocks of powers of two.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal, NamedTuple

from ftuner.core.dtype import BOOL, DType
from ftuner.core.frozen import dataclass
from ftuner.core.gpu.tile import Loads, Multiply
from ftuner.errors import ShapeError

Causal = Literal["none", "first", "last"]
"""The keys that a row sees. "none": all. "first": position i sees keys `j <= i + past`. "last":
counted from the end, position i sees keys `j <= i + keys - rows + past`; this differs from "first"
where requests are of unequal length."""
MaskSpread = Literal["keys", "scores"]
"""Whether a mask has one number for each key, the same for all rows and all heads that share keys,
or one for each score."""
MaskLayout = Literal["aligned", "contiguous", "strided"]
"""A mask along keys: contiguous, with base and other strides that are multiples of 16 bytes;
contiguous; or of any stride (0 is one number for all keys)."""
MIN_BLOCK = 16
"""Elements of the smallest block: the k step of the matrix instructions."""
MAX_EXTENT = 256
"""Most elements of a query, and of a value, in one kernel: with more, a tile of 16 rows on four
warps does not fit the registers."""


def covering_blocks(extent: int) -> tuple[int, ...]:
    """Returns one or two powers of two, the larger first, with the smallest sum that holds
    `extent`: 80 elements are 64 and 16, 112 are one block of 128, and 0 are one masked block.

    Raises:
        ShapeError: `extent` is negative or larger than `MAX_EXTENT`.
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
    """Rows of queries, keys of a block, and the warps and stages of the program."""

    bq: int
    bk: int
    warps: int
    stages: int
    specialised: bool = False
    """Whether one more warp loads while two warpgroups, with half of the rows each, multiply
    (`attention.gpu_kernel_specialised`)."""

    @property
    def all_warps(self) -> int:
        """Warps of a block. The one that loads takes a warpgroup, which registers are moved by."""
        return self.warps + 4 * self.specialised

    def __str__(self) -> str:
        return f"{self.bq}x{self.bk}/{self.warps}w{self.stages}s{'+' * self.specialised}"


@dataclass(frozen=True)
class AttentionMask:
    """A mask of scores: booleans, read as bytes, select scores; numbers are added to them."""

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

    The scale and the values for hidden scores and hidden rows are arguments (`AttentionCall`).
    """

    dtype: DType
    """Of q, k, v and the result."""
    multiply: Multiply
    depth_blocks: tuple[int, ...]
    """Blocks of the elements of a query and of a key."""
    column_blocks: tuple[int, ...]
    """Blocks of the elements of a value."""
    exact: bool = True
    """Whether depth and columns fill their blocks; otherwise the blocks are masked."""
    causal: Causal = "none"
    mask: AttentionMask | None = None
    ragged: DType | None = None
    """The type of the offsets of requests, int32 or int64, if their lengths differ."""
    aligned: bool = True
    """Whether bases and strides of q, k, v and the result, and depth and columns, are multiples of
    16 bytes."""
    loads: Loads = "pointers"
    """How keys and values are loaded. Descriptors need them aligned."""
    negative: bool = False
    """Whether the scale is negative: then the least product has the largest score."""
    capped: bool = False
    """Whether scores pass a hyperbolic tangent, which `AttentionCall.cap` multiplies."""
    sinks: DType | None = None
    """The type of the scores without keys, if rows have such (`AttentionSoftmax.sinks`)."""

    @staticmethod
    def over(
        dtype: DType, multiply: Multiply, depth: int, columns: int, **others: Any
    ) -> AttentionForm:
        """Returns the form whose blocks cover `depth` and `columns`; ShapeError if none do."""
        depths, widths = covering_blocks(depth), covering_blocks(columns)
        exact = (sum(depths), sum(widths)) == (depth, columns)
        return AttentionForm(dtype, multiply, depths, widths, exact, **others)

    @property
    def scales_powers(self) -> bool:
        """Whether the scale is a factor of the exponents: nothing comes between."""
        return self.mask is None and not self.capped

    @property
    def depth(self) -> int:
        """The depth of the blocks together."""
        return sum(self.depth_blocks)

    @property
    def columns(self) -> int:
        """The columns of the blocks together."""
        return sum(self.column_blocks)

    def __str__(self) -> str:
        depth = "_".join(map(str, self.depth_blocks))
        columns = "_".join(map(str, self.column_blocks))
        mask = "" if self.mask is None else f"_{self.mask}"
        ragged = "" if self.ragged is None else f"_ragged_{self.ragged}"
        sinks = "" if self.sinks is None else f"_sinks_{self.sinks}"
        flags = "".join(
            letter
            for letter, on in (("e", self.exact), ("a", self.aligned),
                               ("d", self.loads == "descriptors"), ("n", self.negative),
                               ("t", self.capped))
            if on
        )  # fmt: skip
        return (
            f"{self.dtype}_{self.multiply}_d{depth}_c{columns}_{self.causal}{mask}{ragged}{sinks}"
            f"_{flags or 'u'}"
        )


class SumsInFlight(NamedTuple):
    """Limits on the partial sums that are loaded together after split keys; part of the tuning."""

    loads: int
    values: int
    """Values in all those loads of a tile."""


@dataclass(frozen=True)
class AttentionKernel:
    """A kernel as it is compiled."""

    form: AttentionForm
    tile: AttentionTile
    packed: bool = False
    """Whether heads that share keys and values are rows of the same tile: row `i * sharing + h` is
    position i of head h. Keys are then read once for all of them, which pays where a head has few
    rows; the row numbers take registers."""
    split: bool = False
    """Whether the keys of a tile may be split among programs; the last-arriving program adds their
    partial sums up."""
    sums_in_flight: SumsInFlight = field(kw_only=True)

    @property
    def partial_floats(self) -> int:
        """Float32 values in the workspace for one part of a tile: the values, and the largest score
        and the sum of each row."""
        return self.tile.bq * (self.form.columns + 2)

    @property
    def pointers(self) -> tuple[str, ...]:
        """The arrays that a call passes, in order, before the numbers of `AttentionCall`.

        `k_rest` and `v_rest` are descriptors of the second block of `k` and `v`. `workspace` has
        `partial_floats` undefined values for each program; `arrivals` has an int32 for each tile,
        zero before and after each launch. Launches that may overlap share neither.
        """
        form = self.form
        described = form.loads == "descriptors"
        k_rest = ("k_rest",) if described and len(form.depth_blocks) > 1 else ()
        v_rest = ("v_rest",) if described and len(form.column_blocks) > 1 else ()
        mask = () if form.mask is None else ("mask",)
        sinks = () if form.sinks is None else ("sinks",)
        offsets = () if form.ragged is None else ("q_offsets", "k_offsets")
        split = ("workspace", "arrivals") if self.split else ()
        return ("q", "k", *k_rest, "v", *v_rest, *mask, *sinks, "out", *offsets, *split)

    @property
    def symbol(self) -> str:
        """The name of the compiled function, unique among the kernels of one chip."""
        tile = self.tile
        shape = f"{tile.bq}x{tile.bk}_{tile.warps}w{tile.stages}s"
        flags = "p" * self.packed + "s" * self.split + "w" * tile.specialised
        return f"attention_{shape}{flags and '_' + flags}_{self.form}"


class AttentionCall(NamedTuple):
    """The numbers of one call, in the order of a kernel's arguments.

    Strides are in elements. A head is one of keys and values; a member is one of the `sharing`
    heads of queries that share it. Descriptors of keys and values have rank 4 (request, head, key,
    element); their strides along requests and heads are 1, or 0 if all share one.

    Requests of unequal length are concatenated in q, k, v and the result; `rows`, `keys` and the
    strides along requests are then not read. A mask with one number for each key is concatenated
    along keys; another is indexed by rows and keys of each request.
    """

    batch: int
    """Requests."""
    heads: int
    sharing: int
    rows: int
    """Rows of each request, if all have equally many."""
    keys: int
    depth: int
    columns: int
    past: int
    """As in `Causal`."""
    tiles: int
    """Tiles of one head: of all requests if they are ragged, else of one request."""
    l2_heads: int
    """As in `AttentionPlan`."""
    split_keys: int
    scale: float
    cap: float
    """`AttentionSoftmax.softcap`; the scale has been divided by it."""
    hidden: float
    """The score that replaces those that a boolean mask hides."""
    blind: float
    """The result of a row whose scores are all minus infinity; 0 for a row that sees no key."""
    undefined: float
    """The result of any other row whose softmax is NaN."""
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
    sinks_batch: int = 0
    sinks_head: int = 0
    sinks_member: int = 0
    sinks_row: int = 0
