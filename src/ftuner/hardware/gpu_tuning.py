"""`GpuTuning`: every constant of a GPU that was fitted or measured on some machine, or assumed.

A frozen value with one field for each constant, as `hardware.tuning` describes. Cost, filters,
planner and code generators read it from `GpuHardware.tuning`; a recorded machine may override
single fields.
"""

from __future__ import annotations

from dataclasses import dataclass

from ftuner.core.gpu.attention import SumsInFlight
from ftuner.core.gpu.schedule import BlockSizes
from ftuner.core.gpu.tile import Slicing
from ftuner.hardware.constants import UNMEASURED, Tuning, constant
from ftuner.hardware.gpu_attention_tuning import AttentionTuning

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
        1.5, "", "Latency of DRAM under load over that of a single load", UNMEASURED,
    )  # fmt: skip
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
    resident_warps_per_subpartition: int = constant(
        2, "warps", "Least resident warps of each subpartition, so that one issues while another "
        "waits", "assumed",
    )  # fmt: skip
    reference_k_bytes: int = constant(
        8192, "bytes", "Bytes of k at which tiles are compared",
        "assumed: a layer of 4096 features of two bytes",
    )  # fmt: skip
    tallest_aspect: float = constant(
        2.0, "", "Largest height over width of a tile", "assumed: n, the features of a layer, is "
        "seldom short",
    )  # fmt: skip
    widest_aspect: float = constant(
        4.0, "", "Largest width over height of a tile", "assumed: m is often short",
    )  # fmt: skip
    widest_aspect_of_lowest: float = constant(
        8.0, "", "Largest width over height of the lowest tiles, which serve products of few rows",
        "assumed",
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
        8, "", "The same for the lower tile that computes a few remaining rows", "assumed",
    )  # fmt: skip
    split_k_steps: int = constant(
        4, "k steps", "Least k steps of each part of split-k",
        "derived: with fewer, the pipeline of at least three stages is never full",
    )  # fmt: skip
    max_split_k: int = constant(32, "parts", "Most parts of split-k of a product", "assumed")
    starved_waves: float = constant(
        2.0, "waves", "Split-k and split keys are tried only if tiles are fewer than this many "
        "for each multiprocessor", "assumed",
    )  # fmt: skip
    ample_waves: int = constant(
        16, "waves", "A tile is left out where a larger one that is no slower has this many "
        "tiles for each multiprocessor",
        "derived: with half as many tiles of twice the size, the last wave costs at most an eighth",
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
        5e-6, "s", "Time of the host to launch one kernel from Python", UNMEASURED,
    )  # fmt: skip
    replay_s: float = constant(
        10e-6, "s", "Time of the host to launch a recorded CUDA graph", UNMEASURED,
    )  # fmt: skip
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
        return BlockSizes(
            block_elements=self.block_elements,
            warp_elements=self.warp_elements,
            max_warps=self.max_warps,
            max_whole_row_elements=self.max_whole_row_elements,
            whole_rows=(
                (self.whole_rows_short, self.whole_columns_short),
                (self.whole_rows_middle, self.whole_columns_middle),
                (self.whole_rows_long, self.whole_columns_long),
            ),
            loop_elements=self.loop_elements,
            strip_elements=self.strip_elements,
            min_vector_elements=self.min_vector_elements,
            scattered_elements=self.scattered_elements,
            scattered_warps=self.scattered_warps,
            spare_lanes_ratio=self.spare_lanes_ratio,
        )
