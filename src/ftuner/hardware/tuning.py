"""Tuning: every constant that was fitted or measured on some machine, or assumed, as data.

`CpuTuning` is a frozen value with one field for each constant. A field states its unit, its
meaning, the values that it may have, and where the default comes from. A recorded machine may
override single fields; `hardware.recorded` checks them when it reads a machine. Values from a
machine's manual or from a probe are part of the hardware model instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

from ftuner.core.cached_attribute import cached_attribute

_T = TypeVar("_T")

_ZEN3 = "fitted on AMD Zen 3"
_RAPIDS = "fitted on Intel Emerald Rapids"
_ZEN4 = "fitted on AMD Zen 4"
_AS_ALONE = "assumed to be as of one worker"


class Constant(NamedTuple):
    """What is known of one field of a tuning besides its value."""

    unit: str
    """Empty for a count or a ratio."""
    meaning: str
    provenance: str
    """`fitted`, `measured`, `derived` or `assumed`, and on what machine or from what."""
    least: float | None
    """The smallest value that is accepted; None: any positive one."""
    most: float | None
    """The largest value that is accepted, if there is a limit."""
    power_of_two: bool
    """Whether only powers of two are accepted."""

    def expectation(self, value: float) -> str | None:
        """What a positive value was expected to be, or None if it is accepted."""
        if self.least is not None and value < self.least:
            return f"at least {self.least}"
        if self.most is not None and value > self.most:
            return f"at most {self.most}"
        if self.power_of_two and math.frexp(value)[0] != 0.5:
            return "a power of two"
        return None


def constant(
    default: Any, unit: str, meaning: str, provenance: str, *, least: float | None = None,
    most: float | None = None, power_of_two: bool = False,
) -> Any:  # fmt: skip
    """The field of a tuning dataclass; its values are positive. `default`: `MISSING` if there is
    none."""
    known = Constant(unit, meaning, provenance, least, most, power_of_two)
    return field(default=default, metadata={Constant: known})


def constants(tuning: Any) -> dict[str, Constant]:
    """What is known of each field, by name; of a tuning dataclass or a value of one."""
    return {f.name: f.metadata[Constant] for f in fields(tuning) if Constant in f.metadata}


def part_of(tuning: Any, part: type[_T]) -> _T:
    """The fields of a tuning that one of its base classes has, as a value of that class."""
    return part(**{name: getattr(tuning, name) for name in constants(part)})


@dataclass(frozen=True)
class KLoopTuning:
    """What the code of a uKernel's k loop depends on; part of the key of each compiled uKernel."""

    steps_per_round: int = constant(
        4, "k steps", "Least number of k steps that the loop of a large tile is unrolled by",
        "measured on Intel Emerald Rapids beside a busy hyperthread, tiles 6x64, 8x48 and 14x32: "
        "3 to 8% faster than 2 steps; 8 steps gain nothing more", most=64,
    )  # fmt: skip
    steps_per_short_round: int = constant(
        2, "k steps", "The same of smaller tiles",
        "measured: 4 steps for all tiles make tuning half as long again", most=64,
    )  # fmt: skip
    large_tile_share_of_registers: float = constant(
        0.75, "", "Share of the vector registers that the accumulators of a large tile take",
        "assumed", most=1,
    )  # fmt: skip
    steps_per_prefetch: int = constant(
        8, "k steps", "Steps between two rounds of prefetches for later tiles",
        f"{_ZEN4}, two to eight tiles with B from DRAM: 4 or 8 steps take 5 to 16% less time than "
        "16, 32 steps up to 20% more; from L3 all are alike", most=1024,
    )  # fmt: skip
    tail_prefetch_bytes: int = constant(
        2048, "bytes", "Prefetch distance in the panel of a tail",
        f"{_ZEN3}: 1024 to 2048 bytes take 15 to 40% off products of up to 24 rows",
        most=1 << 20,
    )  # fmt: skip
    prefetch_steps: int = constant(
        16, "k steps", "Prefetch distance in a B that is read in place", _ZEN3, most=1024,
    )  # fmt: skip


@dataclass(frozen=True)
class NativeTuning:
    """What the code of the native runtime (packing, thread pool, call cache) depends on; part of
    its key."""

    pack_unrolled_vectors: int = constant(
        4, "vectors", "Widest panels that are packed without a loop over the vectors of a row",
        "assumed: the widest common tiles, 6x64 of AVX-512, have four", most=16,
    )  # fmt: skip

    polls_per_us_x86: int = constant(
        25, "polls per us", "Polls of a spinning worker in a microsecond on x86-64",
        "derived from the pause instruction: 64 cycles on AMD Zen 3, 140 on Intel Skylake",
        most=100_000,
    )  # fmt: skip
    polls_per_us_other: int = constant(
        500, "polls per us", "The same on other architectures",
        "derived: the hint of AArch64 does nothing on most cores, so that a poll is one load",
        most=100_000,
    )  # fmt: skip
    spin_for_job_us: int = constant(
        300, "us", "Time that a worker polls for a job before it sleeps",
        "assumed: longer than the gap between two products of a model, shorter than a scheduler's "
        "slice", most=1_000_000,
    )  # fmt: skip
    spin_for_others_us: int = constant(
        150, "us", "Time that workers poll for each other before they sleep",
        "assumed: longer than waking a worker takes, on a virtual machine too", most=1_000_000,
    )  # fmt: skip
    nap_us: int = constant(
        100, "us", "Length of a worker's sleep where the system has no futex", "assumed",
        most=999_999,
    )  # fmt: skip
    calls_alone: int = constant(
        16, "calls", "Short calls that run on one thread after a worker was preempted",
        "derived: trying the workers again then costs as much as the calls in between",
        most=1_000_000,
    )  # fmt: skip


@dataclass(frozen=True)
class Intake:
    """How row tiles take in a panel of B that comes from a cache after L2, or from DRAM: how they
    read it, and how long it takes beside their multiply-adds."""

    k_streams: int = constant(
        MISSING, "", "Interleaved streams along k of the tile that reads the panel first: more "
        "cache misses in flight", "", most=64, power_of_two=True,
    )  # fmt: skip
    prefetch_bytes: int = constant(
        MISSING, "bytes", "Prefetch distance of that tile, over all its streams", "",
        most=1 << 20,
    )  # fmt: skip
    share: float = constant(
        MISSING, "", "Share of the level's bandwidth that the panel arrives with", "", most=2,
    )  # fmt: skip
    overlap: float = constant(
        MISSING, "", "Computing and fetching take the p-norm of their times: 1 if neither hides "
        "any of the other, more if they overlap", "", least=1, most=32,
    )  # fmt: skip

    def __str__(self) -> str:
        return (
            f"{self.k_streams} streams, {self.prefetch_bytes} bytes ahead, {self.share:.2f} of "
            f"the bandwidth, overlap {self.overlap:.1f}"
        )


@dataclass(frozen=True)
class IntakeTuning:
    """How tiles take in a B from behind L2, by the tiles that share a panel, by the level, and by
    whether other workers read panels of theirs from it (`shared`)."""

    low_tile_rows: int = constant(
        3, "rows", "Greatest height of a low tile, whose multiply-adds hide little of its loads",
        _ZEN3,
    )  # fmt: skip
    low_l3: Intake = constant(
        Intake(4, 2048, 0.9, 3.0), "",
        "How B is taken in: a low tile alone, B from L3",
        _ZEN4,
    )  # fmt: skip
    low_dram: Intake = constant(
        Intake(1, 8192, 0.9, 4.0), "",
        "How B is taken in: a low tile alone, B from DRAM",
        _ZEN4,
    )  # fmt: skip
    tall_l3: Intake = constant(
        Intake(1, 4096, 0.9, 3.0), "",
        "How B is taken in: a taller tile alone, B from L3",
        _ZEN4,
    )  # fmt: skip
    tall_dram: Intake = constant(
        Intake(1, 8192, 0.9, 4.0), "",
        "How B is taken in: a taller tile alone, B from DRAM",
        _ZEN4,
    )  # fmt: skip
    parts_l3: Intake = constant(
        Intake(1, 4096, 0.7, 3.0), "",
        "How B is taken in: a tile in parts, B from L3",
        _ZEN4,
    )  # fmt: skip
    parts_dram: Intake = constant(
        Intake(4, 16384, 0.6, 1.5), "",
        "How B is taken in: a tile in parts, B from DRAM",
        _ZEN4,
    )  # fmt: skip
    several_l3: Intake = constant(
        Intake(1, 4096, 0.9, 3.0), "",
        "How B is taken in: several tiles, B from L3",
        _ZEN4,
    )  # fmt: skip
    several_dram: Intake = constant(
        Intake(1, 8192, 0.9, 1.8), "",
        "How B is taken in: several tiles, B from DRAM",
        _ZEN4,
    )  # fmt: skip
    low_l3_shared: Intake = constant(
        Intake(4, 2048, 0.9, 3.0), "",
        "How B is taken in: a low tile alone, B from L3, all workers at once",
        _AS_ALONE,
    )  # fmt: skip
    low_dram_shared: Intake = constant(
        Intake(1, 8192, 0.9, 4.0), "",
        "How B is taken in: a low tile alone, B from DRAM, all workers at once",
        _AS_ALONE,
    )  # fmt: skip
    tall_l3_shared: Intake = constant(
        Intake(1, 4096, 0.9, 3.0), "",
        "How B is taken in: a taller tile alone, B from L3, all workers at once",
        _AS_ALONE,
    )  # fmt: skip
    tall_dram_shared: Intake = constant(
        Intake(1, 8192, 0.9, 4.0), "",
        "How B is taken in: a taller tile alone, B from DRAM, all workers at once",
        _AS_ALONE,
    )  # fmt: skip
    parts_l3_shared: Intake = constant(
        Intake(1, 4096, 0.7, 3.0), "",
        "How B is taken in: a tile in parts, B from L3, all workers at once",
        _AS_ALONE,
    )  # fmt: skip
    parts_dram_shared: Intake = constant(
        Intake(4, 16384, 0.6, 1.5), "",
        "How B is taken in: a tile in parts, B from DRAM, all workers at once",
        _AS_ALONE,
    )  # fmt: skip
    several_l3_shared: Intake = constant(
        Intake(1, 4096, 0.9, 3.0), "",
        "How B is taken in: several tiles, B from L3, all workers at once",
        _AS_ALONE,
    )  # fmt: skip
    several_dram_shared: Intake = constant(
        Intake(1, 8192, 0.9, 1.8), "",
        "How B is taken in: several tiles, B from DRAM, all workers at once",
        _AS_ALONE,
    )  # fmt: skip
    l2_share: float = constant(
        0.8, "", "Share of L2's bandwidth that a panel arrives with from there", _ZEN4, most=2,
    )  # fmt: skip
    l2_overlap: float = constant(
        6.0, "", "The overlap of multiply-adds and a B that comes from L2, as in `Intake`", _ZEN4,
        least=1, most=32,
    )  # fmt: skip


@dataclass(frozen=True)
class ProductTuning(IntakeTuning):
    """What products cost and how the planner cuts them."""

    tile_cycles: float = constant(
        32.0, "cycles", "Entering and leaving a register tile",
        "fitted: between 24 on AMD Zen 3 (AVX2, k of 8 to 96) and 40 on Intel Emerald Rapids "
        "(AVX-512, tails of 16 to 48 columns, k of 64)",
    )  # fmt: skip
    tile_cycles_per_vector: float = constant(
        2.0, "cycles", "Clearing, adding and storing one vector of accumulators", _ZEN3,
    )  # fmt: skip
    crowded_row_cycles: float = constant(
        0.9, "cycles", "Reading an element of A from L2 in each k step, where rows of a tile are "
        "apart by multiples of a way of L1 and are more than its ways",
        f"{_ZEN4}: 14 rows of 1024 steps take 82 cycles a step, of 1008 steps 57",
    )  # fmt: skip
    tail_cycles_per_row: float = constant(
        6.0, "cycles", "Copying one row of a tail tile from scratch memory to C", _ZEN3,
    )  # fmt: skip
    pack_copy_cycles_per_vector: float = constant(
        1.8, "cycles", "Copying one vector into a panel", _ZEN3,
    )  # fmt: skip
    pack_transpose_cycles_per_vector: float = constant(
        4.5, "cycles", "Transposing one vector into a panel", _ZEN3,
    )  # fmt: skip
    widen_cycles_per_vector: float = constant(
        4.0, "cycles", "Widening one vector of 8-bit integers into a panel",
        f"{_RAPIDS} (AVX-512, panels of 480 KiB: widening pays from 20 rows on)",
    )  # fmt: skip
    window_element_cycles: float = constant(
        16.0, "cycles", "Computing the addresses of a tile's rows for one element of a window",
        "the instructions that codegen/llvm/kernels/window.py writes, four each cycle",
    )  # fmt: skip
    far_row_bytes_per_cycle: float = constant(
        5.0, "bytes per cycle", "Rate of reading B where every k step is on another page, which no "
        "prefetcher crosses", _ZEN3,
    )  # fmt: skip
    dot_sum_cycles_per_round: float = constant(
        1.0, "cycles", "Halving the lanes of one accumulator of a dot tile", _RAPIDS,
    )  # fmt: skip
    cache_share: float = constant(
        0.8, "", "Share of a cache that a block may fill; the rest is for data that streams by",
        "assumed after Low et al. (2016), who leave one way of each set to the streams", most=1,
    )  # fmt: skip
    panel_share_of_l2: float = constant(
        0.5, "", "Share of L2 that a block of a panel of B may fill",
        "measured on AMD Zen 3: panels up to 0.4 of L2 lose nothing against blocks that fit L1",
        most=1,
    )  # fmt: skip
    panel_bytes: int = constant(
        256 << 10, "bytes", "Largest block of a panel of B",
        "measured on Intel Emerald Rapids (2 MiB of L2), k of 3072: 8 to 24 rows run 1.17 to 1.41 "
        "times as fast as with 1 MiB",
    )  # fmt: skip
    in_place_share_of_l1: float = constant(
        0.85, "", "Share of the usable L1 that rows of B read in place may fill, gaps included",
        f"{_ZEN3}, batches of T x T x 64 with T from 24 to 512", most=1,
    )  # fmt: skip
    block_rows: int = constant(
        128, "rows", "Rows of a block of A that decide the length of blocks of k",
        "derived: an element of B from L3 is then used for 256 operations",
    )  # fmt: skip
    a_share_of_last_cache: float = constant(
        0.5, "", "Share of the usable last cache beyond which A is blocked", "assumed", most=1,
    )  # fmt: skip
    block_share_of_l2: float = constant(
        0.4, "", "Share of L2 that a block of A may fill", "assumed", most=1,
    )  # fmt: skip
    long_block_steps: int = constant(
        768, "k steps", "A is blocked once it outgrows its share of L2, where L2 holds a block "
        "this long",
        f"{_RAPIDS} (2 MiB of L2): 5 to 12% off products of 500 to 1000 rows; blocks of 400 steps, "
        "as on AMD Zen 3, cost more than they save",
    )  # fmt: skip
    block_share_of_large_l2: float = constant(
        0.25, "", "Share of such an L2 that a block of A fills",
        f"{_RAPIDS}: 0.1 to 0.25 are within 2% of each other, 0.4 is 3% slower", most=1,
    )  # fmt: skip
    chunk_s: float = constant(
        10e-6, "s", "Least duration of a chunk of work",
        "derived: taking a chunk costs some 0.2 us, 2% of it",
    )  # fmt: skip
    max_chunked_pack_bytes: int = constant(
        64 << 20, "bytes", "Work that packs B is cut into chunks while the packed copies of all "
        "workers take at most this", "assumed",
    )  # fmt: skip
    chunks_per_worker: int = constant(
        8, "chunks", "Most chunks that work is cut into for each worker",
        "derived: the last chunk then costs at most an eighth of a share", most=255,
    )  # fmt: skip
    panels_per_chunk: int = constant(
        2, "panels", "Least panels of a chunk where A is blocked: each chunk reads all of A",
        "measured on Intel Emerald Rapids, 1024 and 2048 rows, two threads: 3 to 7% less time than "
        "with one",
    )  # fmt: skip
    synchronise_s: float = constant(
        2e-6, "s", "Starting a job on all workers, which spin, and waiting for them",
        "measured with an empty job on two cores of AMD Zen 3: 1.1 to 2.4 us",
    )  # fmt: skip
    alone_waits: float = constant(
        30.0, "", "One worker alone is a candidate up to this multiple of synchronise_s",
        "derived: two workers then save fifteen times what they wait",
    )  # fmt: skip
    rows_worth_a_worker: int = constant(
        2, "rows", "Least rows of each worker where m is cut", "assumed",
    )  # fmt: skip
    split_k_steps: int = constant(
        64, "k steps", "Least k steps of each worker where k is cut", "assumed",
    )  # fmt: skip
    max_dot_rows: int = constant(
        4, "rows", "Largest dot tile of fewer columns", "assumed", most=8,
    )  # fmt: skip
    max_dot_columns: int = constant(
        5, "columns", "Widest dot tile, which has as many rows",
        "assumed: the scores of a batch of five by five take one tile, where 4x4 tiles take four",
        most=8,
    )  # fmt: skip
    max_widths: int = constant(
        2, "widths", "Panel widths that a library keeps", "assumed: more only cost tuning time",
    )  # fmt: skip
    same_loads_ratio: float = constant(
        1.1, "", "Two panel widths are alike if their loads per multiply-add differ by less",
        "measured on Intel Emerald Rapids, widths 64 and 80: equal within 0.4%, and tuning takes a "
        "quarter longer with both", least=1,
    )  # fmt: skip
    common_columns: int = constant(
        64, "columns", "Of two widths alike the one that divides this is kept",
        "assumed: the extent of an attention head",
    )  # fmt: skip
    max_tail_rows: int = constant(
        10, "rows", "Tallest tile of a width that only tails use",
        "derived: taller ones gain 7% in the last columns by the estimate, and took a tenth of the "
        "tuning time",
    )  # fmt: skip
    short_k_steps: int = constant(
        64, "k steps", "Length of k at which the heights of tails are judged",
        "assumed: the depth of an attention head",
    )  # fmt: skip
    short_window_steps: int = constant(
        27, "k steps", "Length of k at which the heights of tails of windows are judged",
        "assumed: 3 x 3 pixels of three colours, the first layer of most networks",
    )  # fmt: skip
    short_window_elements: int = constant(
        3, "elements", "Elements of a window at which the heights of its tails are judged",
        "assumed: three rows of pixels, each of which is one piece of memory",
    )  # fmt: skip
    columns_worth_packing: int = constant(
        64, "columns", "Least columns of a product for which an A with k steps on different pages "
        "is packed", f"{_ZEN3}, k steps of 8000 bytes",
    )  # fmt: skip
    fetched_element_bytes: int = constant(
        128 << 10, "bytes", "A and B of the next batch element are prefetched if neither is larger",
        "derived: two elements then fit an L2 of 512 KiB",
    )  # fmt: skip


@dataclass(frozen=True)
class ProbeTuning:
    """What the probe concludes from its measurements; part of the key of a probed machine."""

    issue_rate_tolerance: float = constant(
        0.12, "", "A measured issue rate stands for a known one if it is this far above it, or "
        "below it without a change of clock, relatively",
        "derived: loops cost 1% on AMD Zen 3, short disturbances more; less than half the way from "
        "3 to 4 in a cycle", most=0.14,
    )  # fmt: skip
    load_rate_tolerance: float = constant(
        0.03, "", "The same for loads, above a known rate only",
        "measured on Intel Emerald Rapids and Ice Lake: of two loads in a cycle one core reached "
        "1.0 to 1.65, so that little more than one stands for two", most=0.14,
    )  # fmt: skip
    unknown_clock_hz: float = constant(
        2.5e9, "Hz", "Clock of a core whose measured clock is implausible",
        "assumed: a server's base clock",
    )  # fmt: skip


@dataclass(frozen=True)
class CpuTuning(KLoopTuning, NativeTuning, ProductTuning, ProbeTuning):
    """All fitted, measured and assumed constants of a CPU."""

    gather_cycles_per_lane: float = constant(
        2.0, "cycles", "Loading or storing one lane by itself",
        "assumed: an address, the access, an insertion",
    )  # fmt: skip
    loop_cycles: float = constant(
        20.0, "cycles", "Entering and leaving an innermost loop",
        "derived from the 15 to 20 cycles of a mispredicted branch on x86 (Agner Fog)",
    )  # fmt: skip
    call_cycles: float = constant(
        6.0, "cycles", "Calling the body of an elementary function", "assumed",
    )  # fmt: skip
    float32_divide_cycles_per_16_bytes: float = constant(
        2.5, "cycles", "Division or square root of 16 bytes of float32",
        "Intel Skylake by Agner Fog's instruction tables",
    )  # fmt: skip
    float64_divide_cycles_per_16_bytes: float = constant(
        4.0, "cycles", "The same of float64", "Intel Skylake by Agner Fog's instruction tables",
    )  # fmt: skip
    integer_divide_cycles: float = constant(
        10.0, "cycles", "Division of one integer",
        "6 to 14 cycles on Intel Ice Lake and AMD Zen 3 by Agner Fog's instruction tables",
    )  # fmt: skip
    library_call_cycles: float = constant(
        40.0, "cycles", "One element of a function of the C library", "assumed: some 10 ns",
    )  # fmt: skip
    nest_block_elements: int = constant(
        512, "elements", "Elements of the vector axis in a task, where it is the only kept axis",
        "assumed: enough to pay for a task, few enough to share",
    )  # fmt: skip
    top_k_element_cycles: float = constant(
        4.0, "cycles", "Comparing one element with the least of the best",
        "assumed: a load, two comparisons that wait for it, a predicted branch",
    )  # fmt: skip
    top_k_move_cycles: float = constant(
        5.0, "cycles", "Moving one of the best back by one position",
        "assumed: a load from memory just written",
    )  # fmt: skip
    winograd_transform_ratio: float = constant(
        1.0, "", "Time of Winograd's transforms over that of their instructions at full rate",
        "assumed", most=16,
    )  # fmt: skip
    winograd_share_of_l2: float = constant(
        0.6, "", "Share of L2 for transformed inputs and sums of Winograd's products",
        "assumed: the image and the result stream through the rest", most=1,
    )  # fmt: skip
    winograd_weight_share_of_l2: float = constant(
        0.25, "", "Share of L2 for the transformed weight of Winograd's products",
        "assumed: each row tile reads it", most=1,
    )  # fmt: skip
    stripes_share_of_l2: float = constant(
        0.6, "", "Share of L2 for what passes between the steps of a chain walked by stripes",
        "fitted on AMD Zen 4: from 0.3 to 0.7 the chains of MobileNetV2 differ by 5%", most=1,
    )  # fmt: skip
    least_gain_of_stripes: float = constant(
        0.06, "", "Share of the time of a chain that stripes save at least",
        "fitted on AMD Zen 4: chains of MobileNetV2 with a smaller estimated gain lose as often",
        most=1,
    )  # fmt: skip
    waited_share_of_task: float = constant(
        0.25, "", "Share of a task of stripes that other workers wait for the last one",
        "assumed: half of it if tasks end at any time, less as they begin together",
    )  # fmt: skip
    scores_share_of_l2: float = constant(
        0.25, "", "Share of L2 that a block of attention scores may fill", "assumed", most=1,
    )  # fmt: skip
    max_block_row_tiles: int = constant(
        8, "row tiles", "Most row tiles of a block of attention", "assumed",
    )  # fmt: skip
    causal_blocks: int = constant(
        8, "blocks", "Least blocks of a causal attention, unless a row tile is more",
        "derived: what is computed above the diagonal is then an eighth of the triangle",
    )  # fmt: skip
    attention_tasks_per_worker: int = constant(
        3, "tasks", "Least tasks of each worker where batch elements do not divide evenly",
        "derived: the last task then costs a third of a share",
    )  # fmt: skip
    short_call_s: float = constant(
        80e-6, "s", "Calls estimated shorter than this avoid workers after one was preempted",
        "assumed",
    )  # fmt: skip
    preempted_ratio: float = constant(
        3.0, "", "A worker is taken for preempted if a call takes this many times its estimate and "
        "preempted_s more",
        "derived: a busy neighbour doubles the time of a call", least=1,
    )  # fmt: skip
    preempted_s: float = constant(
        400e-6, "s", "See preempted_ratio",
        "derived: waking the workers of a virtual machine takes 250 to 350 us",
    )  # fmt: skip
    bundles_per_process: int = constant(
        3, "bundles", "Least bundles that are worth another compiler process",
        "measured: starting a process takes about as long as compiling one bundle",
    )  # fmt: skip
    plans_ahead: int = constant(
        256, "plans", "Plans made when a model is loaded, for its smallest inputs",
        "measured: some seven milliseconds",
    )  # fmt: skip
    provenance: Mapping[str, str] = field(default_factory=dict, compare=False, hash=False)
    """Where the values that differ from the defaults came from, by field; as in the hardware
    model."""
    confidence: Mapping[str, float] = field(default_factory=dict, compare=False, hash=False)
    """How sure fitted values are, by field: 1 where another measurement would find the same; less
    as measurements differ from each other or from what the estimate can explain."""

    @property
    def is_calibrated(self) -> bool:
        """Whether constants were measured on the machine itself."""
        return any(source == "fitted" for source in self.provenance.values())

    @cached_attribute
    def _hash(self) -> int:
        return hash(tuple(getattr(self, name) for name in constants(self)))

    def __hash__(self) -> int:
        """Computed once, because libraries are looked up by their machine."""
        return self._hash
