"""Tuning: every constant that was fitted or measured on some machine, or assumed, as data.

`CpuTuning` is a frozen value with one field for each constant (`hardware.constants`). A recorded
machine may override single fields; `hardware.recorded` checks them when it reads a machine. Values
from a machine's manual or from a probe are part of the hardware model instead.
"""

from __future__ import annotations

from ftuner.core.frozen import dataclass
from ftuner.hardware.constants import Tuning, constant
from ftuner.hardware.intake_tuning import IntakeTuning

_ZEN3 = "fitted on AMD Zen 3"
_TOP_K = "estimated: about 3 ns for each level of the heap, and as much for each key that is sorted"
_RAPIDS = "fitted on Intel Emerald Rapids"
_ZEN4 = "fitted on AMD Zen 4"


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
        16, "k steps", "Prefetch distance in a B that is read in place", _ZEN3, most=1024
    )


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
class ProductTuning(IntakeTuning):
    """What products cost and how the planner cuts them."""

    tile_cycles: float = constant(
        32.0, "cycles", "Entering and leaving a register tile",
        "fitted: between 24 on AMD Zen 3 (AVX2, k of 8 to 96) and 40 on Intel Emerald Rapids "
        "(AVX-512, tails of 16 to 48 columns, k of 64)",
    )  # fmt: skip
    tile_cycles_per_vector: float = constant(
        2.0, "cycles", "Clearing, adding and storing one vector of accumulators", _ZEN3
    )
    crowded_row_cycles: float = constant(
        0.9, "cycles", "Reading an element of A from L2 in each k step, where rows of a tile are "
        "apart by multiples of a way of L1 and are more than its ways",
        f"{_ZEN4}: 14 rows of 1024 steps take 82 cycles a step, of 1008 steps 57",
    )  # fmt: skip
    tail_cycles_per_row: float = constant(
        6.0, "cycles", "Copying one row of a tail tile from scratch memory to C", _ZEN3
    )
    pack_copy_cycles_per_vector: float = constant(
        1.8, "cycles", "Copying one vector into a panel", _ZEN3
    )
    pack_transpose_cycles_per_vector: float = constant(
        4.5, "cycles", "Transposing one vector into a panel", _ZEN3
    )
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
        1.0, "cycles", "Halving the lanes of one accumulator of a dot tile", _RAPIDS
    )
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
        0.5, "", "Share of the usable last cache beyond which A is blocked", "assumed", most=1
    )
    block_share_of_l2: float = constant(
        0.4, "", "Share of L2 that a block of A may fill", "assumed", most=1
    )
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
    team_phase_s: float = constant(
        2e-7, "s", "A phase that a team of workers shares within a kernel, without its work",
        "measured on two cores of AMD Zen 4, an LSTM of 128 hidden elements, whose steps have two "
        "phases: half of the work takes 0.4 us a step more than half of the time",
    )  # fmt: skip
    alone_waits: float = constant(
        30.0, "", "One worker alone is a candidate up to this multiple of synchronise_s",
        "derived: two workers then save fifteen times what they wait",
    )  # fmt: skip
    rows_worth_a_worker: int = constant(
        2, "rows", "Least rows of each worker where m is cut", "assumed"
    )
    shared_panels_share: float = constant(
        0.02, "", "Share of a weight that counts as fetched from DRAM where all workers read the "
        "same panels: with other weights in the caches that takes up to 1.7 times as long",
        "assumed: decides where estimates are otherwise alike",
    )  # fmt: skip
    split_k_steps: int = constant(
        64, "k steps", "Least k steps of each worker where k is cut", "assumed"
    )
    max_dot_rows: int = constant(4, "rows", "Largest dot tile of fewer columns", "assumed", most=8)
    max_dot_columns: int = constant(
        5, "columns", "Widest dot tile, which has as many rows",
        "assumed: the scores of a batch of five by five take one tile, where 4x4 tiles take four",
        most=8,
    )  # fmt: skip
    max_widths: int = constant(
        2, "widths", "Panel widths that a library keeps", "assumed: more only cost tuning time"
    )
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
    rows_together: int = constant(
        512, "rows", "Rows of requests that run together at most; a longer request runs alone",
        "measured with MiniLM's six layers on one core of an Intel Emerald Rapids with 2 MB of L2: "
        "more rows take 5 to 10% longer for each, because intermediate results leave the caches, "
        "and fewer 4%",
    )  # fmt: skip
    rows_joined: int = constant(
        64, "rows", "Rows from which a request runs alone",
        f"{_RAPIDS} (MiniLM's three layers): requests of 32 rows take 1/1.0 to 1/1.1 of the time "
        "together, those of 64 and more 2 to 10% more, because ordering their steps takes longer "
        "than reading weights once saves",
    )  # fmt: skip
    results_together: float = constant(
        4.0, "L2", "The largest results of requests that share weights alone, such as pictures, "
        "all together at most",
        f"{_RAPIDS} with 2 MB of L2 (ResNet-18 and MobileNet-V2): twice as many gain no more",
    )  # fmt: skip
    result_share_of_l2: float = constant(
        0.6, "", "Share of L2 of the largest result of one of them; a larger request runs alone",
        f"{_RAPIDS}: with 0.5 a batch of ResNet-18 takes 1/1.3 of the time, with 0.8, where "
        "results leave the caches before the next step reads them, 5% more", most=1,
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


@dataclass(frozen=True, repr=False)
class CpuTuning(Tuning, KLoopTuning, NativeTuning, ProductTuning, ProbeTuning):
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
        6.0, "cycles", "Calling the body of an elementary function", "assumed"
    )
    float32_divide_cycles_per_16_bytes: float = constant(
        2.5, "cycles", "Division or square root of 16 bytes of float32",
        "Intel Skylake by Agner Fog's instruction tables",
    )  # fmt: skip
    float64_divide_cycles_per_16_bytes: float = constant(
        4.0, "cycles", "The same of float64", "Intel Skylake by Agner Fog's instruction tables"
    )
    integer_divide_cycles: float = constant(
        10.0, "cycles", "Division of one integer",
        "6 to 14 cycles on Intel Ice Lake and AMD Zen 3 by Agner Fog's instruction tables",
    )  # fmt: skip
    library_call_cycles: float = constant(
        40.0, "cycles", "One element of a function of the C library", "assumed: some 10 ns"
    )
    nest_block_elements: int = constant(
        512, "elements", "Elements of the vector axis in a task, where it is the only kept axis",
        "assumed: enough to pay for a task, few enough to share",
    )  # fmt: skip
    top_k_element_cycles: float = constant(
        4.0, "cycles", "Comparing one element with the least of the best",
        "assumed: a load, two comparisons that wait for it, a predicted branch",
    )  # fmt: skip
    top_k_move_cycles: float = constant(
        20.0, "cycles", "Moving one of the best down by one level of their heap",
        "measured on AMD Zen 3, which mispredicts every second branch",
    )  # fmt: skip
    top_k_heap_most: int = constant(
        64, "elements", "Most elements that a heap finds in any row, and not a radix sort", _TOP_K,
        most=1 << 20,
    )  # fmt: skip
    top_k_heap_share: int = constant(
        100, "elements", "Elements of a row for each that is wanted, above which a heap finds more",
        _TOP_K, most=1 << 20,
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
        0.25, "", "Share of L2 that a block of attention scores may fill", "assumed", most=1
    )
    max_block_row_tiles: int = constant(
        8, "row tiles", "Most row tiles of a block of attention", "assumed"
    )
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
        2240, "shares", "Workers' shares of the plans that are made when a model is loaded",
        "measured on AMD Zen 5, a busy machine: 20 to 40 milliseconds",
    )  # fmt: skip
    large_output_bytes: int = constant(
        256 << 10, "bytes", "Least output of a model that takes the memory of an earlier one",
        "measured on AMD Zen 3 with glibc: several outputs of this size are mapped anew in each "
        "run, which takes longer than the run", most=1 << 40,
    )  # fmt: skip
    __hash__ = Tuning.__hash__
