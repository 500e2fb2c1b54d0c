"""Constants of a GPU: its tuning.

A frozen value with one field for each constant, as `hardware.tuning` describes. Cost, filters,
planner and code generators read it from `GpuHardware.tuning`; a recorded machine may override
single fields.
"""

from __future__ import annotations

from typing import Any

from ftuner.core.frozen import dataclass
from ftuner.core.gpu.attention import SumsInFlight
from ftuner.core.gpu.schedule import BlockSizes
from ftuner.core.gpu.tile import Slicing
from ftuner.hardware.constants import UNMEASURED, Tuning, constant

_ATTENTION = (
    "fitted on what ptxas reports for some 400 attention kernels compiled by Triton 3.9 for sm_80 "
    "and sm_90: bfloat16, tf32 and float32, 32 to 256 elements, 16 to 128 rows"
)


def _registers(default: float, meaning: str) -> Any:
    """A field: registers of a thread."""
    return constant(default, "registers", meaning, _ATTENTION)


@dataclass(frozen=True)
class AttentionTuning:
    """Registers and shared memory of attention kernels, and how attention is planned.

    Four kinds of kernels have registers of their own: `wgmma`, whose instruction reads operands
    from shared memory; `copied`, whose fragments pass through registers after the copy engine
    loaded them; `pointer`, the same by addresses; and `vector`, without matrix units.
    """

    score_instructions: int = constant(
        4, "instructions", "Instructions for each score besides its exponential and the maximum: "
        "multiply-add, sum, conversion, a copy", "derived: counted in the machine code",
    )  # fmt: skip
    largest_instructions: int = constant(
        2, "issue slots", "For each score before the first exponential: a maximum, which runs at "
        "half rate", "derived: counted in the machine code",
    )  # fmt: skip
    turn_cycles: int = constant(
        300, "cycles", "For each block of keys of a tile: shuffles, barriers and waits for products"
        " that its own warps do not hide", "derived: read off the machine code for sm_80, sm_90 "
        "and sm_100; agrees with launches on an H200 (128 x 128 tiles) within 5%",
    )  # fmt: skip
    exchange_cycles: int = constant(
        100, "cycles", "More where warps are along keys, which exchange the sums of rows through "
        "shared memory", "derived: read off the machine code",
    )  # fmt: skip
    mask_instructions: int = constant(
        2, "instructions", "More for each score where there is a mask",
        "derived: counted in the kernel's text",
    )  # fmt: skip
    row_instructions: int = constant(
        48, "instructions", "For each row of a block of keys: four shuffles among the four lanes "
        "that hold it, and some eight other instructions in all of them",
        "derived: counted in the kernel's text",
    )  # fmt: skip
    slack_bytes: int = constant(
        1024, "bytes", "Shared memory for barriers and for sums of rows between warps", _ATTENTION
    )
    spill_registers: int = constant(
        256, "registers", "Kernels modelled with more registers of a thread spill",
        f"{_ATTENTION}: from about 260 on most spilled; below, 24 bytes at most",
    )  # fmt: skip
    vector_spill_registers: int = constant(
        216, "registers", "The same without matrix units, where the model is less exact", _ATTENTION
    )
    vector_unrolled_elements: int = constant(
        2560, "elements", "Largest block of keys without matrix units: products over longer blocks "
        "are unrolled whole and spill at any height", _ATTENTION,
    )  # fmt: skip
    wgmma_base_registers: float = _registers(
        28.0, "Registers that do not depend on the tile, wgmma"
    )
    wgmma_registers_per_accumulator: float = _registers(
        0.85, "For each accumulator of a thread, wgmma"
    )
    wgmma_registers_per_score: float = _registers(2.1, "For each score of a thread, wgmma")
    wgmma_registers_per_query_register: float = _registers(
        0.4, "For each register that a thread's part of the query fills, wgmma"
    )
    copied_base_registers: float = _registers(
        45.0, "Registers that do not depend on the tile, copied"
    )
    copied_registers_per_accumulator: float = _registers(
        1.0, "For each accumulator of a thread, copied"
    )
    copied_registers_per_score: float = _registers(3.3, "For each score of a thread, copied")
    copied_registers_per_query_register: float = _registers(
        0.5, "For each register that a thread's part of the query fills, copied"
    )
    pointer_base_registers: float = _registers(
        45.0, "Registers that do not depend on the tile, pointer"
    )
    pointer_registers_per_accumulator: float = _registers(
        1.5, "For each accumulator of a thread, pointer"
    )
    pointer_registers_per_score: float = _registers(1.7, "For each score of a thread, pointer")
    pointer_registers_per_query_register: float = _registers(
        0.75, "For each register that a thread's part of the query fills, pointer"
    )
    vector_base_registers: float = _registers(
        27.0, "Registers that do not depend on the tile, vector"
    )
    vector_registers_per_accumulator: float = _registers(
        2.13, "For each accumulator of a thread, vector"
    )
    vector_registers_per_score: float = _registers(6.2, "For each score of a thread, vector")
    vector_registers_per_query_register: float = _registers(
        2.13, "For each register that a thread's part of the query fills, vector"
    )
    address_registers: float = _registers(
        1.6, "For each register of a 64-bit address of what a thread loads at once"
    )
    transposed_registers: float = _registers(
        1.5, "For each 4-byte value of a block that a warpgroup transposes: "
        "wgmma takes only 2-byte values in either order",
    )  # fmt: skip
    wide_fragment_registers: float = _registers(
        1.1,
        "For each 4-byte value of a block that threads load by pointers and multiply as fragments",
    )
    second_block_registers: float = _registers(
        2.0,
        "For each key of a block where warps are along keys and there is a second block of columns",
    )
    second_block_keys: int = constant(
        64, "keys", "Keys that second_block_registers counts at most", _ATTENTION
    )
    mask_base_registers: float = _registers(20.0, "For an aligned mask with a value for each score")
    mask_registers_per_score: float = _registers(1.2, "For each score under an aligned mask")
    mask_registers_per_address: float = _registers(
        12.0, "For each score under a mask whose values are loaded one by one"
    )
    split_sum_loads: int = constant(
        4, "parts", "Parts of split keys that are loaded together by the reduction", "assumed"
    )
    split_sum_values: int = constant(
        8192, "values", "Most values of a tile in those loads",
        "derived: 64 registers of each thread of four warps",
    )  # fmt: skip
    tallest_packed_rows: int = constant(
        64, "rows", "Tallest packed tile, whose rows are heads that share keys; one head fills "
        "taller tiles", "assumed",
    )  # fmt: skip
    lowest_unpacked_rows: int = constant(
        32, "rows", "Lowest tile of one head where heads share keys", "assumed"
    )
    tallest_split_rows: int = constant(
        64, "rows", "Tallest tile whose keys are split; where taller tiles are few, so are rows",
        "assumed",
    )  # fmt: skip
    max_split_accumulators: int = constant(
        64, "accumulators", "Most accumulators of a thread in a kernel that splits keys",
        "measured with Triton 3.9: with 128, the reduction spilled",
    )  # fmt: skip
    split_key_blocks: int = constant(
        2, "blocks", "Least blocks of keys of each part",
        "derived: one block is loaded while the other is in use",
    )  # fmt: skip
    max_split_keys: int = constant(64, "parts", "Most parts that keys are split into", "assumed")
    split_tolerance: float = constant(
        1.05, "", "Keys are split also where that takes up to this multiple of the time, if "
        "multiprocessors are idle otherwise: few of them wait for DRAM longer than estimated",
        UNMEASURED,
    )  # fmt: skip
    specialised_warpgroups: int = constant(
        1, "warpgroups", "That multiply beside a warp that loads, in products and attention on "
        "sm_90: 2, or 1 where warps are not specialised", f"{UNMEASURED}: switched off until it is",
        most=2,
    )  # fmt: skip
    ample_attention_waves: int = constant(
        8, "waves", "Lower tiles that are no faster are left out where a taller one has this many "
        "tiles for each multiprocessor",
        "derived: the last wave then costs at most an eighth",
    )  # fmt: skip


_PTXAS = "compared with what ptxas reports for Triton kernels for sm_80, sm_90 and sm_100"


@dataclass(frozen=True)
class RateTuning:
    """The share of peak rates that a chip sustains, and its latencies."""

    sustained_matrix_share: float = constant(
        0.85, "", "Share of the matrix units' rate that dense products of random data reach",
        "assumed, from 0.88 measured for wgmma alone in arXiv 2501.12084", most=1,
    )  # fmt: skip
    sustained_vector_share: float = constant(
        0.8, "", "The same without matrix units: loads from shared memory take issue slots",
        UNMEASURED, most=1,
    )  # fmt: skip
    split_matrix_share: float = constant(
        0.7, "", "The same of products of float32 by tf32 parts", "fitted on an H200, which "
        "reaches 72 to 84 TFLOP/s by tiles of 64 and 128 rows and 43 by one of 32 x 64", most=1,
    )  # fmt: skip
    split_instructions: float = constant(
        4.0, "instructions", "Cutting an element of float32 into two parts in tf32",
        "fitted on the same tiles",
    )  # fmt: skip
    sustained_dram_share: float = constant(
        0.9, "", "Share of DRAM's bandwidth that streams reach",
        "assumed, from 0.91 measured on NVIDIA Hopper in arXiv 2501.12084", most=1,
    )  # fmt: skip
    l2_share: float = constant(
        0.5, "", "Share of L2 that operands stay in",
        "assumed: from the A100 on, L2 has two halves, and each holds copies of lines of the other",
        most=1,
    )  # fmt: skip
    l2_headroom: float = constant(
        2.0, "", "Where tiles are compared, L2's bandwidth is divided by this: reads come in "
        "bursts, and C is written besides", UNMEASURED,
    )  # fmt: skip
    loaded_latency_ratio: float = constant(
        1.5, "", "Latency of DRAM under load over that of a single load", UNMEASURED
    )
    ample_latencies: float = constant(
        2.0, "", "Bytes in flight beyond what L2 delivers in this many loaded latencies hide "
        "nothing more", UNMEASURED,
    )  # fmt: skip
    overlap_exponent: float = constant(
        8.0, "", "Resources in use at the same time take the p-norm of their seconds; with 8, two "
        "that are equally busy take 9% longer than one", UNMEASURED,
        least=1, most=32,
    )  # fmt: skip
    l2_rate_ratio: float = constant(
        1.0, "", "Rate at which L2 delivers tiles over that of the probe: multiprocessors that "
        "read the same tile share its transfers", UNMEASURED,
    )  # fmt: skip
    step_cycles: int = constant(
        40, "cycles", "Barriers and addresses between two k steps of a block, while none of its "
        "warps multiplies", UNMEASURED,
    )  # fmt: skip
    synchronous_step_cycles: int = constant(
        40, "cycles", "The same where warps wait for their matrix instructions, and for their "
        "operands from shared memory before", UNMEASURED,
    )  # fmt: skip
    fragment_wait_cycles: int = constant(
        125, "cycles", "Waits for fragments from shared memory, for each 128 bytes of k, of a warp "
        "that has its scheduler to itself", "derived: read off the machine code for sm_80 and "
        "sm_100; 1 where the constant before was fitted to launches, which have them",
    )  # fmt: skip
    copy_instructions: float = constant(
        5.0, "instructions", "For each asynchronous copy of less than 16 bytes: its address, its "
        "mask and itself", "derived: counted in the machine code",
    )  # fmt: skip
    element_instructions: float = constant(
        7.0, "instructions", "For each element that is loaded by itself: its address, its mask, "
        "the load and the store to shared memory", "derived: counted in the machine code",
    )  # fmt: skip
    element_latency_cycles: int = constant(
        200, "cycles", "Of a load from L2, which nothing overlaps where elements are loaded one by "
        "one", "measured on NVIDIA Hopper in arXiv 2402.13499",
    )  # fmt: skip
    elements_in_flight: int = constant(
        12, "elements", "Such elements of a thread between two waits for them",
        "derived: read off the machine code, where registers hold their addresses besides",
    )  # fmt: skip
    ramp_latencies: float = constant(
        1.0, "", "Latencies of DRAM of a product beyond its first loads and last stores: "
        "arguments, descriptors, and the end of its last block", UNMEASURED,
    )  # fmt: skip
    reduce_latencies: float = constant(
        2.0, "", "Latencies of DRAM between the last step of split-k and its sum: partial sums and "
        "a counter are written, then read back", UNMEASURED,
    )  # fmt: skip
    part_rate_share: float = constant(
        1.0, "", "Share of the rate of a multiprocessor's port to L2 at which parts of split-k are "
        "written and read back", UNMEASURED, most=1,
    )  # fmt: skip
    absent_line_cycles: float = constant(
        3.0, "cycles", "Filling a line of a row that A does not have, by the copy engine, where A "
        "has fewer rows than a tile",
        "fitted on 302 launches of 16 layers on an H200: with 1 to 17 rows, tiles of 128 rows took "
        "up to 2.2 times the estimate without it",
    )  # fmt: skip
    last_unit_share: float = constant(
        0.5, "", "Where units differ in length, the busiest multiprocessor does this share of "
        "a unit beyond an even share", UNMEASURED,
    )  # fmt: skip
    exponentials_per_cycle: float = constant(
        16.0, "per cycle", "Exponentials of one multiprocessor",
        "CUDA C++ Programming Guide, compute capability 7.0 to 9.0; assumed for other chips",
    )  # fmt: skip


@dataclass(frozen=True)
class ProductTuning:
    """Registers of product kernels, and which tiles a library keeps."""

    base_registers: int = constant(
        48, "registers", "Registers of a thread that do not depend on the tile: loop counters "
        "and the epilogue", f"{_PTXAS}; somewhat more than reported, because a tile that spills is "
        "worse than a tile left out",
    )  # fmt: skip
    spare_registers: int = constant(
        32, "registers", "Registers that the model leaves free where threads hold an address for "
        "each load of less than 16 bytes", "fitted on ptxas's reports for sm_80, sm_90 and sm_100",
    )  # fmt: skip
    fragment_registers: int = constant(
        24, "registers", "Without matrix units, the fewest that the compiler takes for fragments",
        _PTXAS,
    )  # fmt: skip
    preload_divisor: int = constant(
        4, "", "Without matrix units, the compiler loads the fragments of bk over this many steps "
        "before it multiplies", _PTXAS,
    )  # fmt: skip
    epilogue_values_per_thread: int = constant(
        32, "values", "Values that a thread holds at once in an epilogue, besides its accumulators",
        "fitted on kernels compiled by Triton 3.6 and 3.9 for sm_80 and sm_90 with gelu, the "
        "longest epilogue: threads of 128 accumulators spill up to 1.7 KiB without slices, some "
        "hundred bytes with 64 values, next to nothing with 32",
    )  # fmt: skip
    epilogue_addresses_per_thread: int = constant(
        16, "addresses", "The same where each value is stored by its own address",
        "fitted on the same kernels",
    )  # fmt: skip
    staging_bytes: int = constant(
        32 * 1024, "bytes", "Most shared memory for the slice of C that the copy engine stores",
        "derived: a tile of 128 x 256 x 64 then has four stages of 16-bit elements in the 227 KiB "
        "of sm_90",
    )  # fmt: skip
    reference_k_bytes: int = constant(
        8192, "bytes", "Bytes of k at which tiles are compared",
        "assumed: a layer of 4096 features of two bytes",
    )  # fmt: skip
    same_rate_ratio: float = constant(
        0.99, "", "Schedules of a tile count as equally fast if their rates differ by less",
        "assumed", most=1,
    )  # fmt: skip
    paired_rate_ratio: float = constant(
        0.75, "", "Tiles whose rate is at least this share of the best are paired with lower ones",
        "assumed: slower tiles are for products that are too small for two bands", most=1,
    )  # fmt: skip
    last_wave_divisor: int = constant(
        2, "", "Height of a pair's taller tile over that of the lower one that evens out the last "
        "wave", "assumed",
    )  # fmt: skip
    last_rows_divisor: int = constant(
        8, "", "The same for the lower tile that computes a few remaining rows", "assumed"
    )
    split_k_steps: int = constant(
        4, "k steps", "Least k steps of each part of split-k",
        "derived: with fewer, the pipeline of at least three stages is never full",
    )  # fmt: skip
    max_split_k: int = constant(32, "parts", "Most parts of split-k of a product", "assumed")
    starved_waves: float = constant(
        2.0, "waves", "Split-k and split keys are tried only if tiles are fewer than this many "
        "for each multiprocessor", "assumed",
    )  # fmt: skip


@dataclass(frozen=True)
class NestTuning:
    """Sizes of the blocks of nests."""

    block_elements: int = constant(
        1024, "elements", "Elements of a block", "assumed: 8 for each of 128 threads, two vectors "
        "of float32 or one of a 2-byte type", power_of_two=True,
    )  # fmt: skip
    warp_elements: int = constant(
        256, "elements", "Elements of a block for each warp", "assumed: 8 for each of 32 threads",
        power_of_two=True,
    )  # fmt: skip
    max_warps: int = constant(
        16, "warps", "Most warps of a block", "assumed", most=32, power_of_two=True
    )
    max_whole_row_elements: int = constant(
        8192, "elements", "Longest row that registers hold at once",
        "assumed: 16 elements for each of 512 threads", power_of_two=True,
    )  # fmt: skip
    whole_rows_short: int = constant(
        16, "rows", "Rows of the block for short rows, if their length is known at run time only",
        "assumed", power_of_two=True,
    )  # fmt: skip
    whole_columns_short: int = constant(
        64, "elements", "Columns of that block",
        "assumed: each next block has four times as many, so that a row wastes no more of it",
        power_of_two=True,
    )  # fmt: skip
    whole_rows_middle: int = constant(
        4, "rows", "The same for rows of middle length", "assumed", power_of_two=True
    )
    whole_columns_middle: int = constant(
        256, "elements", "Columns of that block", "assumed", power_of_two=True
    )
    whole_rows_long: int = constant(
        1, "rows", "The same for long rows", "assumed", power_of_two=True
    )
    whole_columns_long: int = constant(
        2048, "elements", "Columns of that block", "assumed", power_of_two=True
    )
    loop_elements: int = constant(
        4096, "elements", "Block of rows that are longer still",
        "assumed: 8 for each of 512 threads, because one program walks the row", power_of_two=True,
    )  # fmt: skip
    strip_elements: int = constant(
        32, "elements", "Elements along an axis where another axis shares the block", "assumed",
        power_of_two=True,
    )  # fmt: skip
    min_vector_elements: int = constant(
        16, "elements", "A shorter contiguous axis is flattened together with others", "assumed",
        power_of_two=True,
    )  # fmt: skip
    scattered_elements: int = constant(
        256, "elements", "Elements of a block of scattered writes, which may share addresses",
        "assumed: two for each of 128 threads, so that many programs share the work",
        power_of_two=True,
    )  # fmt: skip
    scattered_warps: int = constant(
        4, "warps", "Warps of such a block", "assumed", most=32, power_of_two=True
    )
    spare_lanes_ratio: float = constant(
        1.125, "", "A schedule is chosen if it has at most this many times the fewest lanes",
        "assumed",
    )  # fmt: skip


@dataclass(frozen=True, repr=False)
class GpuTuning(Tuning, RateTuning, ProductTuning, AttentionTuning, NestTuning):
    """All fitted, measured and assumed constants of a GPU."""

    host_launch_s: float = constant(
        5e-6, "s", "Time of the host to launch one kernel from Python", UNMEASURED
    )
    replay_s: float = constant(
        10e-6, "s", "Time of the host to launch a recorded CUDA graph", UNMEASURED
    )
    recorded_run: int = constant(
        3, "runs", "The run of a shape that is recorded as a CUDA graph",
        "assumed: the shape has repeated by then, and all its kernels have run",
    )  # fmt: skip
    recorded_share_of_dram: float = constant(
        1 / 64, "", "Share of the device's memory for inputs and outputs of recorded programs",
        "assumed", most=1,
    )  # fmt: skip
    sources_per_process: int = constant(
        2, "kernels", "Least kernels that are worth another compiler process",
        "measured: importing Triton takes about as long as compiling two kernels",
    )  # fmt: skip
    __hash__ = Tuning.__hash__

    @property
    def slicing(self) -> Slicing:
        """The limits on slices of epilogues."""
        return Slicing(
            self.epilogue_values_per_thread, self.epilogue_addresses_per_thread, self.staging_bytes
        )

    @property
    def sums_in_flight(self) -> SumsInFlight:
        """The limits on loads in the reduction of split keys."""
        return SumsInFlight(self.split_sum_loads, self.split_sum_values)

    @property
    def block_sizes(self) -> BlockSizes:
        """The sizes of blocks of nests."""
        rows = (
            (self.whole_rows_short, self.whole_columns_short),
            (self.whole_rows_middle, self.whole_columns_middle),
            (self.whole_rows_long, self.whole_columns_long),
        )
        others = {name: getattr(self, name) for name in BlockSizes._fields if name != "whole_rows"}
        return BlockSizes(whole_rows=rows, **others)
