"""The cost of a block tile on one multiprocessor of a GPU: registers, shared memory, seconds.

A block of warps computes a tile of `bm x bn` accumulators, `bk` k steps at a time. A multiprocessor
spends on such a stage the longest of

    issue    2 bm bn bk operations at the rate of the matrix instruction that fits the tile
    shared   the stage written to shared memory once, and read as often as the instruction needs it
             (`operand_reads`), at `shared_bytes_per_clock`
    port     the stage loaded from L2, at `l2_bytes_per_clock`

These overlap in part: a resource that is nearly as busy as the busiest one delays it
(`overlapped_seconds`). The seconds of `r` resident blocks add up, and hide the waits of each: a
block begins a stage `step_cycles` or more after the end of its previous one, and not before its
loads arrive, of which `stages - 1` are in flight (Little's law).

Without matrix units each thread multiplies a small tile of its own. Its reads from shared memory
count for each thread, even where threads read the same elements.

What is aligned to less than 16 bytes takes an instruction and an address for each load of its
alignment (`copies`). Elements of two bytes pass through registers, because asynchronous copies move
four bytes or more: a block loads a stage, waits for it, and multiplies, one after the other.

Sources: footprints and intensities of tiles from FTuner (arXiv 2407.21418) and Roller (OSDI 2022).
`wgmma` reads both operands from shared memory at 128 bytes per clock: derived from its latencies by
width in arXiv 2501.12084, table 9. Registers were compared with ptxas's reports on Triton kernels
for sm_80, sm_90 and sm_100.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from ftuner.core.dtype import BFLOAT16, FLOAT16, FLOAT32, DType
from ftuner.core.expr import ACCUMULATOR, Apply, Expr, Operand, flatten
from ftuner.core.gpu.schedule import LINE_BYTES
from ftuner.core.gpu.tile import (
    ALIGNMENT_BYTES,
    LEAST_COPY_BYTES,
    SPLIT_PRODUCTS,
    BlockTile,
    Loads,
    Multiply,
    ProductKernel,
    Slicing,
)
from ftuner.hardware.gpu_model import GpuHardware, MatrixInstruction

ADDRESS_REGISTERS = 2
"""Registers for the 64-bit address of each 16 bytes that a thread loads for a stage."""
COPY_BYTES = 16
"""The widest load of one thread."""
SPECIALISING = ("sm_100",)
"""Chips for which Triton 3.6 and 3.9 specialise the warps of persistent loops; sm_90 is not one."""
LEAST_SPECIALISED = 64
"""Fewest rows of a tile with specialised warps: those of the matrix instruction with accumulators
in tensor memory. For lower tiles and for split-k Triton fails or takes too much shared memory."""
SPECIALISED = BlockTile(128, 256, 64, 8, 4)
"""The tile of which there is a kernel with two warpgroups."""
SPECIALISED_FUNCTIONS = (
    "add", "multiply", "minimum", "maximum", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh",
)  # fmt: skip
"""Functions that its epilogue may have: those that tests compile in it."""
REGISTER_BYTES = 4
ACCUMULATOR_BYTES = 4
"""Accumulators are float32."""
REGISTER_UNIT = 8
"""Registers of a thread are allocated in multiples of this (CUDA occupancy calculator)."""
WIDEST_INSTRUCTION = 256
"""Most columns of an asynchronous matrix instruction (PTX ISA)."""
VECTOR_THREADS = {32: (4, 8), 64: (8, 8)}
"""Threads of a warp along m and n, without matrix instructions, by the threads of a warp."""
_NVIDIA = "sm_"
_VECTOR_NAME, _VECTOR_SIDE = "fma", 2
"""Rows, and columns, of the tile that a thread multiplies."""
MULTIPLIES: dict[DType, tuple[Multiply, ...]] = {
    FLOAT16: ("float16",),
    BFLOAT16: ("bfloat16",),
    FLOAT32: ("float32", "tf32", "tf32x3"),
}
"""The ways to multiply elements of each dtype; the exact one comes first. See `multiplied_on`."""


@lru_cache(maxsize=8)
def vector_instruction(warp_threads: int) -> MatrixInstruction:
    """Returns the multiply-adds of a warp's threads, modelled as one instruction."""
    down, across = VECTOR_THREADS[warp_threads]
    return MatrixInstruction(
        name=_VECTOR_NAME, rows=_VECTOR_SIDE * down, columns=_VECTOR_SIDE * across, k_bytes=4,
        warps=1, rate=1.0, asynchronous=False, accumulator_bytes=0,
    )  # fmt: skip


def is_vector(instruction: MatrixInstruction) -> bool:
    """Whether it is a `vector_instruction`, not a matrix instruction."""
    return instruction.name == _VECTOR_NAME


def vector_threads(instruction: MatrixInstruction) -> tuple[int, int]:
    """Returns the threads of a warp along m and n, for a `vector_instruction`."""
    return instruction.rows // _VECTOR_SIDE, instruction.columns // _VECTOR_SIDE


class ProductForm(NamedTuple):
    """The form of a product, on which the cost of a tile depends: dtypes and loads."""

    dtype: DType
    multiply: Multiply
    alignment: int = ALIGNMENT_BYTES
    """Bytes to which rows of operands are aligned, as `ProductKernel.alignment`."""

    @property
    def bytes_of_load(self) -> int:
        """Bytes that a thread loads at once."""
        return max(self.alignment, self.dtype.itemsize)


class TileCost(NamedTuple):
    """The cost of one tile on one multiprocessor."""

    tile: BlockTile
    blocks: int
    """Resident blocks."""
    busy_s: float
    """One stage of `bk` k steps, when its loads have arrived."""
    issue_s: float
    """The multiply-adds of one stage."""
    shared_s: float
    """The transfers of one stage: shared memory, or the port to L2, whichever takes longer."""
    step_s: float
    """Overhead between two stages of a block that is alone."""
    wait_s: float
    """Between two stages of a block that is bound by the latency of its loads."""
    fill_s: float
    """From the first load to the first multiply-add, and what of the last tile's store another
    warpgroup does not hide."""
    store_s: float
    """From the last multiply-add to the last store, as far as no other warpgroup hides it."""
    partial_s: float
    """Writing the accumulators, or reading them back, with split-k."""
    overlap_exponent: float

    def seconds_of_step(self, resident: int) -> float:
        """Returns a multiprocessor's seconds for one stage of one of its `resident` blocks."""
        alone_s = max(self.busy_s + self.step_s, self.wait_s)
        if resident == 1:
            return alone_s
        return overlapped_seconds(self.overlap_exponent, self.busy_s, alone_s / resident)


def overlapped_seconds(exponent: float, *seconds: float) -> float:
    """Returns the time of resources that are used at the same time: the p-norm of the seconds of
    each, with p = `GpuTuning.overlap_exponent`. It is between the maximum (perfect overlap) and the
    sum (no overlap)."""
    return float(sum(s**exponent for s in seconds) ** (1.0 / exponent))


def supports(hardware: GpuHardware, multiply: Multiply) -> bool:
    """Whether the chip multiplies so: on its matrix units, or float32 on its vector units."""
    if multiply == "tf32x3":
        return "tf32" in hardware.matrix_flops_per_s and hardware.architecture.startswith(_NVIDIA)
    rates = hardware.vector_flops_per_s if multiply == "float32" else hardware.matrix_flops_per_s
    return multiply in rates


def multiplied_on(hardware: GpuHardware, multiply: Multiply) -> Multiply:
    """Returns how a chip multiplies what may be rounded to `multiply`: tf32 as float32 where it
    has none, and float32 by parts in tf32 where that is faster than its vector units."""
    if multiply == "tf32" and not supports(hardware, "tf32"):
        multiply = "float32"
    if multiply != "float32" or not supports(hardware, "tf32x3"):
        return multiply
    return max(("tf32x3", "float32"), key=lambda way: sustained_flops_per_s(hardware, way))


def peak_flops_per_s(hardware: GpuHardware, multiply: Multiply) -> float:
    """Returns the datasheet's rate of the whole chip; a multiply-add counts as two."""
    if multiply == "tf32x3":
        return hardware.matrix_flops_per_s["tf32"] / SPLIT_PRODUCTS
    rates = hardware.vector_flops_per_s if multiply == "float32" else hardware.matrix_flops_per_s
    return rates[multiply]


def sustained_flops_per_s(hardware: GpuHardware, multiply: Multiply) -> float:
    """Returns the rate that dense products sustain on one multiprocessor."""
    tuning = hardware.tuning
    vector = multiply == "float32"
    share = tuning.sustained_vector_share if vector else tuning.sustained_matrix_share
    if multiply == "tf32x3":
        share = tuning.split_matrix_share
    return peak_flops_per_s(hardware, multiply) / hardware.multiprocessors * share


def instruction_of(
    hardware: GpuHardware, tile: BlockTile, multiply: Multiply
) -> MatrixInstruction | None:
    """Returns the first instruction of which every warp of the tile has one; None if there is
    none."""
    candidates = hardware.matrix_instructions
    if multiply == "float32":
        candidates = (vector_instruction(hardware.warp_threads),)
    for instruction in candidates:
        across, more = divmod(tile.bm, instruction.rows)
        along, rest = divmod(tile.bn, instruction.columns)
        issuers, odd = divmod(tile.warps, instruction.warps)
        if not (more or rest or odd) and across * along >= issuers:
            return instruction
    return None


def warp_grid(tile: BlockTile, instruction: MatrixInstruction) -> tuple[int, int]:
    """Returns the issuers of the instruction (warps, or warpgroups) along m and n. Warpgroups are
    along m first; single warps are placed so that they read the fewest elements."""
    issuers = tile.warps // instruction.warps
    if instruction.asynchronous:
        down = min(issuers, tile.bm // instruction.rows)
        return down, issuers // down
    grids = [(down, issuers // down) for down in range(1, issuers + 1) if issuers % down == 0]
    fitting = [
        (down, across)
        for down, across in grids
        if tile.bm >= down * instruction.rows and tile.bn >= across * instruction.columns
    ]

    return min(fitting, key=lambda grid: (tile.bm * grid[1] + tile.bn * grid[0], -grid[0]))


def vector_grid(tile: BlockTile, warp_threads: int) -> tuple[int, int]:
    """Returns the threads of a block along m and n without matrix units. A thread has squares of 4,
    2 or 1 results, and threads are along n first (Triton's blocked layout)."""
    threads = tile.warps * warp_threads
    accumulators = tile.accumulators_per_thread(warp_threads)
    side = 4 if accumulators >= 16 else 2 if accumulators >= 4 else 1
    across = min(threads, max(tile.bn // side, 1))
    return threads // across, across


def operand_reads(
    hardware: GpuHardware, tile: BlockTile, instruction: MatrixInstruction
) -> tuple[int, int]:
    """Returns how often each element of a stage of A, and of B, is read from shared memory."""
    if is_vector(instruction):
        down, across = vector_grid(tile, hardware.warp_threads)
        return across, down
    down, across = warp_grid(tile, instruction)
    if not instruction.asynchronous:
        return across, down
    if instruction.accumulator_bytes:
        # One thread issues it for the whole block.
        across = 1
    wide = -(-(tile.bn // across) // WIDEST_INSTRUCTION)
    return across * wide, -(-tile.bm // instruction.rows)


def stage_bytes(tile: BlockTile, itemsize: int) -> int:
    return (tile.bm + tile.bn) * tile.bk * itemsize


def loads_of(hardware: GpuHardware, multiply: Multiply, aligned: bool) -> Loads:
    """Returns how tiles are loaded: by descriptors where the chip has a copy engine and matrices
    are aligned to 16 bytes. Products without matrix units read shared memory element by element and
    need their own layout of it, so they use pointers."""
    described = hardware.bulk_copy and aligned and multiply != "float32"
    return "descriptors" if described else "pointers"


def _loads_of(hardware: GpuHardware, form: ProductForm) -> Loads:
    return loads_of(hardware, form.multiply, form.alignment == ALIGNMENT_BYTES)


def kernel_of(hardware: GpuHardware, tile: BlockTile, form: ProductForm) -> ProductKernel:
    """Returns the uKernel of a tile without an epilogue, before warps are specialised."""
    return _kernel_of(tile, form, _loads_of(hardware, form), hardware.tuning.slicing)


def _kernel_of(tile: BlockTile, form: ProductForm, loads: Loads, slicing: Slicing) -> ProductKernel:
    dtype, multiply, alignment = form
    return ProductKernel((tile,), dtype, multiply, "k", "k", loads, alignment, slicing=slicing)


def shared_bytes(hardware: GpuHardware, tile: BlockTile, form: ProductForm) -> int:
    """Returns the shared memory of a block."""
    slicing, architecture = hardware.tuning.slicing, hardware.architecture
    return _shared_bytes(tile, form, _loads_of(hardware, form), slicing, architecture)


@lru_cache(maxsize=4096)
def _shared_bytes(
    tile: BlockTile, form: ProductForm, loads: Loads, slicing: Slicing, architecture: str
) -> int:
    """Calibration asks for few tiles, beside thousands of values of the constants of rates."""
    return _kernel_of(tile, form, loads, slicing).shared_bytes(architecture)


def specialises(hardware: GpuHardware, kernel: ProductKernel) -> bool:
    """Whether the warps of a kernel are specialised: where Triton supports it, with descriptors for
    loads and stores, if the tile fits shared memory in one slice and is not cut into parts
    there."""
    architecture = hardware.architecture
    return (
        architecture in SPECIALISING
        and kernel.stores_by_descriptor
        and kernel.main.bm >= LEAST_SPECIALISED
        and not kernel.split
        and kernel.multiply != "tf32x3"
        and replace(kernel, specialised=True).shared_bytes(architecture)
        <= hardware.shared_bytes_per_block
    )


def _in_registers(epilogue: Expr) -> bool:
    """Whether an epilogue is of sums, rows, columns and functions of `SPECIALISED_FUNCTIONS`."""
    nodes = [step.node for step in flatten(epilogue)]
    return ACCUMULATOR in nodes and all(
        node.function in SPECIALISED_FUNCTIONS
        if isinstance(node, Apply)
        else not isinstance(node, Operand) or node.kind != "matrix"
        for node in nodes
    )


def warpgroups_of(hardware: GpuHardware, kernel: ProductKernel) -> int:
    """Returns `ProductKernel.warpgroups` of a kernel that has not been given them yet."""
    takes = (
        hardware.architecture == "sm_90"
        and kernel.tiles == (SPECIALISED,)
        and kernel.stores_by_descriptor
        and kernel.dtype.itemsize == 2
        and not kernel.split
        and _in_registers(kernel.epilogue)
    )
    return hardware.tuning.specialised_warpgroups if takes else 1


def registers_per_thread(
    hardware: GpuHardware, tile: BlockTile, instruction: MatrixInstruction, form: ProductForm
) -> int:
    """Returns the 32-bit registers that a thread needs: accumulators, fragments of A and B for two
    instructions, an address for each load, and without asynchronous copies also a stage in
    flight."""
    itemsize, multiply = form.dtype.itemsize, form.multiply
    threads = tile.warps * hardware.warp_threads
    # Accumulators in tensor memory also pass through registers, at the end of the tile.
    found = float(tile.accumulators_per_thread(hardware.warp_threads))
    if is_vector(instruction):
        down, across = vector_grid(tile, hardware.warp_threads)
        fragment = tile.bm / down + tile.bn / across
        tuning = hardware.tuning
        found += max(fragment * tile.bk / tuning.preload_divisor, tuning.fragment_registers)
    elif multiply == "tf32x3" and instruction.asynchronous:
        # Both parts of a stage.
        found += 2 * (tile.bm + tile.bn) * tile.bk / threads
    elif not instruction.asynchronous:
        down, across = warp_grid(tile, instruction)
        fragment_bytes = (tile.bm // down + tile.bn // across) * instruction.k_bytes
        # Both parts beside the whole; of a deep stage, those of two lines are cut at once.
        parts = 3 * max(tile.bk * itemsize // LINE_BYTES, 1) if multiply == "tf32x3" else 1
        found += parts * 2 * fragment_bytes / (hardware.warp_threads * REGISTER_BYTES)
    loaded = stage_bytes(tile, itemsize) / threads
    found += ADDRESS_REGISTERS * loaded / form.bytes_of_load
    if not hardware.asynchronous_copy:
        found += loaded / REGISTER_BYTES
    return hardware.tuning.base_registers + round(found)


def fits_loads(hardware: GpuHardware, tile: BlockTile, form: ProductForm, window: int = 0) -> bool:
    """Whether the registers suffice, of a tile that fits when it is loaded by 16 bytes at a time.
    Through a window of `window` spatial axes, a thread also has the indices of each load of A."""
    instruction = instruction_of(hardware, tile, form.multiply)
    if instruction is None or form.alignment == ALIGNMENT_BYTES:
        return instruction is not None
    needed = registers_per_thread(hardware, tile, instruction, form)
    loads = tile.bm * tile.bk * form.dtype.itemsize // form.bytes_of_load
    needed += window * loads // (tile.warps * hardware.warp_threads)
    # Without asynchronous copies, ptxas cuts the loads of a stage into parts.
    at_once = form.bytes_of_load >= LEAST_COPY_BYTES
    spare = hardware.tuning.spare_registers if at_once else 0
    return needed <= hardware.registers_per_thread - spare


def resident_blocks(
    hardware: GpuHardware, tile: BlockTile, instruction: MatrixInstruction, form: ProductForm
) -> int:
    """Returns the blocks resident on a multiprocessor at once; 0 if one does not fit."""
    aligned = form._replace(alignment=ALIGNMENT_BYTES)
    registers = registers_per_thread(hardware, tile, instruction, aligned)
    used = shared_bytes(hardware, tile, form)
    if registers > hardware.registers_per_thread or used > hardware.shared_bytes_per_block:
        return 0
    if form.alignment < ALIGNMENT_BYTES:
        # ptxas keeps the addresses of loads in all registers that there are.
        threads = tile.warps * hardware.warp_threads
        most = hardware.registers_per_multiprocessor // threads
        registers = min(hardware.registers_per_thread, most)
    elif specialises(hardware, kernel_of(hardware, tile, form)):
        # Triton shares out all registers of a multiprocessor among specialised warps.
        return 1
    accumulators = tile.bm * tile.bn * ACCUMULATOR_BYTES
    return occupancy(hardware, instruction, tile.warps, registers, used, accumulators)


def occupancy(
    hardware: GpuHardware, instruction: MatrixInstruction, warps: int, registers: int,
    shared: int, accumulator_bytes: int,
) -> int:  # fmt: skip
    """Returns the blocks resident on a multiprocessor at once.

    Args:
        warps: of a block.
        registers: of a thread.
        shared: bytes of shared memory of a block.
        accumulator_bytes: of a block; they count where accumulators are in tensor memory.
    """
    threads = warps * hardware.warp_threads
    registers = -(-registers // REGISTER_UNIT) * REGISTER_UNIT
    kept_back = hardware.shared_bytes_per_multiprocessor - hardware.shared_bytes_per_block
    limits = [
        hardware.blocks_per_multiprocessor,
        hardware.registers_per_multiprocessor // (registers * threads),
        hardware.shared_bytes_per_multiprocessor // (shared + kept_back),
        hardware.threads_per_multiprocessor // threads,
    ]
    if instruction.accumulator_bytes:
        limits.append(instruction.accumulator_bytes // accumulator_bytes)
    return min(limits)


@lru_cache(maxsize=4096)
def tile_cost(
    hardware: GpuHardware, tile: BlockTile, form: ProductForm, warpgroups: int = 1
) -> TileCost | None:
    """Returns the cost of a tile; None if no instruction fits it or no multiprocessor holds it.
    `warpgroups`: as in `ProductKernel`."""
    itemsize, multiply = form.dtype.itemsize, form.multiply
    instruction = instruction_of(hardware, tile, multiply)
    if instruction is None:
        return None
    blocks = resident_blocks(hardware, tile, instruction, form)
    if not blocks:
        return None
    tuning = hardware.tuning
    waits = multiply == "tf32x3" or not instruction.asynchronous
    step_cycles: float = tuning.step_cycles
    if waits:
        # Several warps of a scheduler hide each other's waits for fragments.
        sharing = max(tile.warps // hardware.subpartitions_per_multiprocessor, 1)
        lines = tile.bk * itemsize / LINE_BYTES
        if is_vector(instruction):
            # Of any depth: `preload_divisor` parts of a step's fragments are waited for.
            lines = tuning.preload_divisor / 2
        fragments = tuning.fragment_wait_cycles * lines
        step_cycles = tuning.synchronous_step_cycles + fragments / sharing
    rate = sustained_flops_per_s(hardware, multiply)
    issue_s = 2.0 * tile.bm * tile.bn * tile.bk / (rate * instruction.rate)
    if multiply == "tf32x3":
        # Each warp cuts what it reads; of warpgroups, only rows of A are cut by each.
        down, across = (1, 1) if instruction.asynchronous else warp_grid(tile, instruction)
        lanes = hardware.subpartitions_per_multiprocessor * hardware.warp_threads
        instructions = (tile.bm * across + tile.bn * down) * tile.bk * tuning.split_instructions
        issue_s += instructions / (lanes * hardware.clock_hz)
    shared_rate = hardware.shared_bytes_per_clock * hardware.clock_hz
    port_rate = hardware.l2_bytes_per_clock * hardware.clock_hz
    stage = stage_bytes(tile, itemsize)
    reads_a, reads_b = operand_reads(hardware, tile, instruction)
    passing = stage + (reads_a * tile.bm + reads_b * tile.bn) * tile.bk * itemsize
    shared_s = max(passing / shared_rate, stage / port_rate)
    step_s = step_cycles / hardware.clock_hz
    busy_s = overlapped_seconds(tuning.overlap_exponent, issue_s, shared_s)
    if form.alignment < ALIGNMENT_BYTES:
        loads = stage / form.bytes_of_load
        whole = form.bytes_of_load >= LEAST_COPY_BYTES
        each = tuning.copy_instructions if whole else tuning.element_instructions
        lanes = hardware.subpartitions_per_multiprocessor * hardware.warp_threads
        issued_s = loads * each / (lanes * hardware.clock_hz)
        # A warp's loads of less than a line take as long as a line.
        moved_s = loads / hardware.warp_threads * (1 if whole else 2) / hardware.clock_hz
        loads_s = overlapped_seconds(tuning.overlap_exponent, issued_s, moved_s)
        shared_s = max(shared_s, loads_s)
        # The warps that multiply issue the loads, too.
        busy_s += loads_s
        step_s += loads_s
        if not whole:
            turns = loads / (tile.warps * hardware.warp_threads * tuning.elements_in_flight)
            step_s += max(turns, 1.0) * tuning.element_latency_cycles / hardware.clock_hz
    stored = tile.bm * tile.bn * itemsize
    store_s = stored / port_rate + 2 * stored / shared_rate
    # Each of two warpgroups stores while the other multiplies, but for the last one of a program.
    last_s = store_s - store_s / warpgroups
    return TileCost(
        tile=tile,
        blocks=blocks,
        busy_s=busy_s,
        issue_s=issue_s,
        shared_s=shared_s,
        step_s=step_s,
        wait_s=tuning.loaded_latency_ratio * hardware.dram_latency_s / max(tile.stages - 1, 1),
        fill_s=hardware.dram_latency_s + stage / port_rate + last_s,
        store_s=store_s - last_s,
        partial_s=tile.bm * tile.bn * ACCUMULATOR_BYTES / (port_rate * tuning.part_rate_share),
        overlap_exponent=tuning.overlap_exponent,
    )
