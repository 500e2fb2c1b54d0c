"""Parts that several programs leave and the last one adds up: what orders stores before loads."""

import re
from functools import cache

import pytest
from tests.codegen.triton.compiling import compile_all
from tests.gpu_kernels import product_kernel
from tests.recorded_gpus import gpu

from ftuner.codegen.triton.product import gemm_source
from ftuner.codegen.triton.source import Source
from ftuner.codegen.triton.targets import TARGETS
from ftuner.core.dtype import BFLOAT16, FLOAT32
from ftuner.core.gpu.attention import AttentionForm
from ftuner.core.gpu.tile import BlockTile
from ftuner.schedules.attention.gpu_kernel import attention_source
from ftuner.schedules.attention.gpu_plan import attention_planner

PLAIN = BlockTile(64, 64, 32, 4, 3)
EXACT = BlockTile(32, 32, 16, 4, 3)
PRODUCTS = {
    "product": product_kernel((PLAIN,), BFLOAT16, "bfloat16", "k", "k", split=True),
    "product of two bands": product_kernel(
        (PLAIN, BlockTile(32, 64, 32, 4, 3)), BFLOAT16, "bfloat16", "k", "k", split=True
    ),
    "exact product": product_kernel((EXACT,), FLOAT32, "float32", "k", "k", split=True),
    "unaligned product": product_kernel(
        (EXACT,), FLOAT32, "float32", "k", "spatial", alignment=4, split=True
    ),
}
FORMS = {
    "attention": AttentionForm.over(BFLOAT16, "bfloat16", 128, 128, causal="first"),
    "exact attention": AttentionForm.over(FLOAT32, "float32", 64, 64),
}
CHIPS = {"sm_80": "a100-sxm-80gb", "sm_90": "h200"}
CASES = [
    # LLVM moves blocks of the product that checks each element: its text is in another order.
    (name, chip)
    for chip in CHIPS
    for name in (*PRODUCTS, *FORMS)
    if name != "unaligned product"
]
STEPS = re.compile(r"\bst\.global|\bld\.global\S*|\bbar\.sync|\batom\.global\S*")


def source_of(name: str, chip: str) -> Source:
    if name in PRODUCTS:
        return gemm_source(PRODUCTS[name])
    kernels = attention_planner(gpu(CHIPS[chip]), FORMS[name], False).kernels
    return attention_source(next(kernel for kernel in kernels if kernel.split))


@cache
def assemblies() -> dict[tuple[str, str], str]:
    pairs = [(source_of(*case), TARGETS[case[1]]) for case in CASES]
    found = compile_all(pairs)
    assert [compiled.error for compiled in found] == [""] * len(CASES)
    return {case: compiled.assembly for case, compiled in zip(CASES, found, strict=True)}


@pytest.mark.parametrize("name", [*PRODUCTS, *FORMS])
def test_text_has_all_links(name: str) -> None:
    text = source_of(name, "sm_90").text
    bands = len(PRODUCTS[name].tiles) if name in PRODUCTS else 1
    links = (
        r"tl\.debug_barrier\(\)\n *arrived = tl\.atomic_add\([^\n]*, 1, sem=\"acq_rel\","
        r" scope=\"gpu\"\)\n *tl\.debug_barrier\(\)\n"
    )
    assert len(re.findall(links, text)) == text.count("atomic") == bands
    # All loads of parts, and no others.
    parts = re.findall(r"tl\.load\((?:slots|sums) [^\n]*", text)
    assert len(parts) == text.count(".cg") >= bands
    assert all(".cg" in load for load in parts)


@pytest.mark.parametrize(("name", "chip"), CASES)
def test_machine_code_has_all_links(name: str, chip: str) -> None:
    """Stores, a barrier, the addition at the device's scope, a barrier, loads from L2."""
    steps = STEPS.findall(assemblies()[name, chip])
    arrivals = [i for i, step in enumerate(steps) if step.startswith("atom")]
    assert arrivals
    for arrival in arrivals:
        assert steps[arrival].startswith("atom.global.gpu.acq_rel.add")
        before = steps[:arrival][::-1]
        assert before.index("bar.sync") < before.index("st.global")
        after = steps[arrival + 1 :]
        assert after[0] == "bar.sync"
        # Up to the store that sets the counter back, only parts are read.
        loads = [step for step in after[: after.index("st.global")] if step != "bar.sync"]
        assert loads
        assert all(re.match(r"ld\.global\.(?:\S*\.)?cg\b", load) for load in loads), loads
