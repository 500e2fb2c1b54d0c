"""Constants of a GPU's attention kernels: part of the tuning of a GPU (`hardware.gpu_tuning`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ftuner.hardware.constants import UNMEASURED, constant

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
        4, "instructions", "Instructions for each score besides its exponential: maximum, "
        "multiply-add, sum, conversion", "derived: counted in the kernel's text",
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
        1024, "bytes", "Shared memory for barriers and for sums of rows between warps", _ATTENTION,
    )  # fmt: skip
    spill_registers: int = constant(
        256, "registers", "Kernels modelled with more registers of a thread spill",
        f"{_ATTENTION}: from about 260 on most spilled; below, 24 bytes at most",
    )  # fmt: skip
    vector_spill_registers: int = constant(
        216, "registers", "The same without matrix units, where the model is less exact",
        _ATTENTION,
    )  # fmt: skip
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
        1.1, "For each 4-byte value of a block that threads load by pointers and "
        "multiply as fragments",
    )  # fmt: skip
    second_block_registers: float = _registers(
        2.0, "For each key of a block where warps are along keys and there is a "
        "second block of columns",
    )  # fmt: skip
    second_block_keys: int = constant(
        64, "keys", "Keys that second_block_registers counts at most", _ATTENTION,
    )  # fmt: skip
    mask_base_registers: float = _registers(20.0, "For an aligned mask with a value for each score")
    mask_registers_per_score: float = _registers(1.2, "For each score under an aligned mask")
    mask_registers_per_address: float = _registers(
        12.0, "For each score under a mask whose values are loaded one by one"
    )
    split_sum_loads: int = constant(
        4, "parts", "Parts of split keys that are loaded together by the reduction", "assumed",
    )  # fmt: skip
    split_sum_values: int = constant(
        8192, "values", "Most values of a tile in those loads",
        "derived: 64 registers of each thread of four warps",
    )  # fmt: skip
    tallest_packed_rows: int = constant(
        64, "rows", "Tallest packed tile, whose rows are heads that share keys; one head fills "
        "taller tiles", "assumed",
    )  # fmt: skip
    lowest_unpacked_rows: int = constant(
        32, "rows", "Lowest tile of one head where heads share keys", "assumed",
    )  # fmt: skip
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
    ample_attention_waves: int = constant(
        8, "waves", "Lower tiles that are no faster are left out where a taller one has this many "
        "tiles for each multiprocessor",
        "derived: the last wave then costs at most an eighth",
    )  # fmt: skip
