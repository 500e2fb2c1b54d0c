"""Attention with specialised warps: its text run on tensors of the CPU, and its machine code."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
import triton
from tests.codegen.triton.attention_running import SCALE, check, operands_of
from tests.codegen.triton.compiling import compile_all
from tests.codegen.triton.machine_code import Instruction, Loop, instructions, main_loops
from tests.codegen.triton.static_bound import Bound, least, residency, share_of_peak
from tests.gpu_kernels import SUMS_IN_FLIGHT
from tests.recorded_gpus import gpu

from ftuner.codegen.triton.gluon import VERSIONS
from ftuner.codegen.triton.targets import TARGETS, Compiled
from ftuner.core.attention_softmax import AttentionSoftmax
from ftuner.core.dtype import BFLOAT16, BOOL, FLOAT16, FLOAT32, INT32, DType
from ftuner.core.gpu.attention import AttentionForm, AttentionKernel, AttentionMask, Causal
from ftuner.core.gpu.tile import SPECIALISED_REGISTERS
from ftuner.planner.gpu.plan import AttentionProblem
from ftuner.schedules.attention.gpu_binding_launches import planned_for
from ftuner.schedules.attention.gpu_cost_tile import attention_tile_cost
from ftuner.schedules.attention.gpu_kernel import attention_source
from ftuner.schedules.attention.gpu_plan import SPECIALISED, AttentionPlanner, attention_planner

BETTER = 1.10
"""As in `test_static_bound`."""
DEPTHS = (64, 128)
CAUSAL: tuple[Causal, ...] = ("none", "first")


def form_of(depth: int, causal: Causal, dtype: DType = BFLOAT16) -> AttentionForm:
    return AttentionForm.over(
        dtype, dtype.name, depth, depth, causal=causal, loads="descriptors"  # type: ignore[arg-type]
    )  # fmt: skip


# Its arithmetic.


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize(
    ("extents", "past"),
    [
        # Batch, heads, sharing, rows, keys.
        ((1, 1, 1, 1, 1), None),
        ((2, 2, 2, 200, 300), None),
        ((1, 1, 1, 64, 768), None),
        ((1, 2, 1, 300, 300), 0),
        ((1, 1, 2, 130, 700), 570),
        ((1, 1, 1, 256, 512), 256),
        # The first rows see no key.
        ((1, 1, 1, 200, 150), -50),
        ((1, 1, 1, 20, 150), -30),
    ],
)
def test_results(extents: tuple[int, ...], past: int | None, stages: int) -> None:
    operands = operands_of((*extents, 64, 64), FLOAT16)
    tile = replace(SPECIALISED, stages=stages)
    softmax = AttentionSoftmax(SCALE, causal=past)
    check(operands, softmax, tile=tile, aligned=True, loads="descriptors")


def test_text(golden: Callable[[str, str], None]) -> None:
    golden("attention-specialised.py.txt", attention_source(kernel_of(128, "first")).text)


# Its machine code.

HARDWARE = gpu("h200")
WARPS, GROUPS = 4, 2
"""Of a warpgroup; warpgroups that multiply, which the bound takes for blocks."""
SHARES = {64: 0.7, 128: 0.99}
"""Of the peak, by the static bound, rounded down."""
GAINS = {64: 1.08, 128: 1.2}
"""Over the best tile in Triton, rounded down."""
SAVED_BYTES = 8
"""Of a thread: its number, which causal kernels put aside outside of loops."""
LIKE = [(depth, causal) for depth in DEPTHS for causal in CAUSAL]


def kernel_of(depth: int, causal: Causal) -> AttentionKernel:
    return AttentionKernel(form_of(depth, causal), SPECIALISED, sums_in_flight=SUMS_IN_FLIGHT)


@cache
def results() -> dict[AttentionKernel, Compiled]:
    """What becomes of the kernels, and of those in Triton that are chosen otherwise."""
    kernels = [kernel_of(*like) for like in LIKE]
    for depth in DEPTHS:
        planner = attention_planner(HARDWARE, form_of(depth, "none"), False)
        kernels += [k for k in planner.kernels if k.tile.bq >= 64 and not k.split]
    pairs = [(attention_source(kernel), TARGETS["sm_90"]) for kernel in kernels]
    return dict(zip(kernels, compile_all(pairs), strict=True))


def code_of(kernel: AttentionKernel, folder: Path) -> list[Instruction]:
    compiled = results()[kernel]
    assert not compiled.error
    return instructions(compiled.binary, folder)


@pytest.mark.parametrize(("depth", "causal"), LIKE)
def test_registers_move_to_the_warps_that_multiply(
    depth: int, causal: Causal, tmp_path: Path
) -> None:
    compiled = results()[kernel_of(depth, causal)]
    found = compiled.resources
    assert found is not None
    assert (found.registers, found.threads) == (SPECIALISED_REGISTERS, 32 * SPECIALISED.all_warps)
    assert found.spilled_bytes <= (SAVED_BYTES if causal == "first" else 0)
    assert found.shared_bytes <= HARDWARE.shared_bytes_per_block
    for change in ("inc", "dec"):
        assert re.search(rf"setmaxnreg\.{change}\.sync", compiled.assembly)


@pytest.mark.parametrize(("depth", "causal"), LIKE)
def test_powers_are_computed_while_a_product_runs(
    depth: int, causal: Causal, tmp_path: Path
) -> None:
    loops = main_loops(code_of(kernel_of(depth, causal), tmp_path), ("HGMMA",))
    # Two warpgroups, each with a loop over the keys that all rows see, and one over the others.
    assert len(loops) == (4 if causal == "first" else 2)
    for loop in loops:
        # A thread has 64 scores and two rows.
        assert loop.count("MUFU") == overlapped(loop) == 66
        assert loop.count("HGMMA") == (depth + SPECIALISED.bk) // 16
        assert loop.count("BAR") == 1
        assert not loop.spills


def overlapped(loop: Loop) -> int:
    """Special functions after all products of a turn were issued, before the last is waited for."""
    issued = max(n for n, i in enumerate(loop.body) if i.name == "HGMMA")
    waited = max(n for n, i in enumerate(loop.body) if i.rest.startswith(".DEPBAR.LE gsb0, 0x0"))
    return sum(i.name == "MUFU" for i in loop.body[issued:waited])


def bound_of(kernel: AttentionKernel, folder: Path) -> tuple[Bound, int]:
    """The bound of a turn of a block, or of a warpgroup that multiplies, and its multiply-adds."""
    tile, form = kernel.tile, kernel.form
    macs = tile.bq * tile.bk * (form.depth + form.columns)
    warps, found = tile.warps, results()[kernel].resources
    assert found is not None
    blocks = residency(HARDWARE, found)
    if tile.specialised:
        warps, blocks, macs = WARPS, GROUPS, macs // GROUPS
    return least(HARDWARE, code_of(kernel, folder), warps, blocks, macs)[1], macs


@pytest.mark.parametrize("depth", DEPTHS)
def test_what_is_gained(depth: int, tmp_path: Path) -> None:
    """By the static bound."""

    def share(kernel: AttentionKernel) -> float:
        return share_of_peak(HARDWARE, *bound_of(kernel, tmp_path), "bfloat16")

    found = share(kernel_of(depth, "none"))
    others = [k for k in results() if not k.tile.specialised and k.form.depth == depth]
    assert found >= SHARES[depth]
    assert found >= GAINS[depth] * max(map(share, others))


@pytest.mark.parametrize(("depth", "causal"), LIKE)
def test_the_estimate_is_no_better_than_the_code(
    depth: int, causal: Causal, tmp_path: Path
) -> None:
    kernel = kernel_of(depth, causal)
    cost = attention_tile_cost(HARDWARE, kernel.form, kernel.tile)
    assert cost is not None
    assert cost.blocks == 1
    cycles = cost.step_s[1] * HARDWARE.clock_hz
    assert GROUPS * bound_of(kernel, tmp_path)[0].cycles <= BETTER * cycles


# Where it is chosen.


def planner_of(chip: str, warpgroups: int, form: AttentionForm) -> AttentionPlanner:
    hardware = gpu(chip)
    tuning = replace(hardware.tuning, specialised_warpgroups=warpgroups)
    return attention_planner(replace(hardware, tuning=tuning), form, False)


FORM = form_of(128, "first")


@pytest.mark.parametrize(
    ("chip", "form"),
    [
        ("a100-sxm-80gb", replace(FORM, loads="pointers")),
        ("b200", FORM),
        ("h200", form_of(32, "none")),
        ("h200", AttentionForm.over(BFLOAT16, "bfloat16", 128, 64, loads="descriptors")),
        ("h200", replace(FORM, loads="pointers")),
        ("h200", replace(FORM, mask=AttentionMask(BOOL))),
        ("h200", replace(FORM, causal="last", ragged=INT32)),
        ("h200", replace(FORM, sinks=FLOAT32)),
        ("h200", replace(FORM, capped=True)),
        ("h200", replace(FORM, negative=True)),
    ],
)
def test_other_forms_and_chips_have_kernels_in_triton(chip: str, form: AttentionForm) -> None:
    assert not any(k.tile.specialised for k in planner_of(chip, 2, form).kernels)


def test_it_is_off_until_a_device_has_run_it() -> None:
    assert HARDWARE.tuning.specialised_warpgroups == 1
    assert not any(k.tile.specialised for k in attention_planner(HARDWARE, FORM, False).kernels)


@pytest.mark.parametrize(
    ("depth", "causal", "heads", "rows", "chosen"),
    [
        (128, "none", 32, 8192, True), (128, "first", 32, 8192, True),
        (128, "none", 32, 1024, True), (64, "none", 12, 8192, True),
        (128, "none", 32, 64, False), (64, "none", 12, 77, False), (128, "first", 8, 1, False),
        (128, "first", 32, 1024, False),
    ],
)  # fmt: skip
def test_where_it_is_chosen(
    depth: int, causal: Causal, heads: int, rows: int, chosen: bool
) -> None:
    problem = AttentionProblem(1, heads, 1, rows, rows, depth, depth)
    plan = planner_of("h200", 2, form_of(depth, causal)).plan(problem)
    assert plan.kernel.tile.specialised == chosen


@pytest.mark.parametrize(("depth", "causal"), LIKE)
def test_no_estimate_is_worse(depth: int, causal: Causal) -> None:
    without, planner = (planner_of("h200", n, form_of(depth, causal)) for n in (1, 2))
    for batch, heads in ((1, 8), (8, 32), (32, 32)):
        for rows, keys in ((77, 900), (271, 657), (1500, 777), (2048, 2048), (4099, 4099)):
            past = keys - rows if causal == "first" else 0
            problem = AttentionProblem(batch, heads, 1, rows, keys, depth, depth, past)
            seconds = planner.seconds(planner.plan(problem))
            assert seconds <= without.seconds(without.plan(problem))


def test_other_versions_of_triton_have_kernels_in_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    hardware = replace(HARDWARE, tuning=replace(HARDWARE.tuning, specialised_warpgroups=2))
    device = torch.device("cuda")
    assert triton.__version__ in VERSIONS
    assert planned_for(hardware, device) is hardware
    assert planned_for(hardware, torch.device("cpu")).tuning.specialised_warpgroups == 1
    monkeypatch.setattr(triton, "__version__", "3.6.0")
    assert planned_for(hardware, device).tuning.specialised_warpgroups == 1
    assert planned_for(HARDWARE, device) is HARDWARE
