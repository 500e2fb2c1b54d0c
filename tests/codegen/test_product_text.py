"""The text of product kernels and the order of their arguments; nothing is run."""

from collections.abc import Callable

import pytest
from tests.child import printed
from tests.gpu_kernels import product_kernel

from ftuner.codegen.triton.product import gemm_source
from ftuner.codegen.triton.product_arguments import gemm_arguments, workspace_elements
from ftuner.core.dtype import BFLOAT16, FLOAT32
from ftuner.core.expr import ACCUMULATOR, Operand, relu
from ftuner.core.gpu.tile import BlockTile, ProductKernel

TALL, LOW = BlockTile(32, 32, 16, 4, 3), BlockTile(16, 32, 16, 4, 3)
BIAS, RESIDUAL = Operand("bias", "column"), Operand("res", "matrix")
POINTERS = product_kernel(
    (TALL,), FLOAT32, "tf32", "k", "spatial", split=True, epilogue=relu(ACCUMULATOR + BIAS)
)
DESCRIPTORS = product_kernel((TALL, LOW), BFLOAT16, "bfloat16", "spatial", "k", loads="descriptors")


def test_text_of_small_kernels(golden: Callable[[str, str], None]) -> None:
    golden("block-pointers.txt", gemm_source(POINTERS).text)
    golden("block-descriptors.txt", gemm_source(DESCRIPTORS).text)


ORDER = {
    POINTERS: (
        "a:*fp32:16 b:*fp32:16 c:*fp32:16 workspace:*fp32:16 counters:*i32:4 operand_bias:*fp32:4 "
        "m:i32:1 n:i32:1 k:i32:4 batch:i32:1 a_stride:i64:4 b_stride:i64:4 a_batch:i64:4 "
        "b_batch:i64:4 c_row:i64:4 c_batch:i64:4 swizzle:i32:1 split_k:i32:1"
    ),
    DESCRIPTORS: (
        "a:tensordesc<bf16[1, 16, 32]>:1 b:tensordesc<bf16[1, 32, 16]>:1 "
        "c:tensordesc<bf16[1, 32, 32]>:1 a_rest:tensordesc<bf16[1, 16, 16]>:1 "
        "c_rest:tensordesc<bf16[1, 16, 32]>:1 m:i32:1 n:i32:1 k:i32:1 batch:i32:1 rows:i32:1 "
        "a_batch:i32:1 b_batch:i32:1 swizzle:i32:1"
    ),
    product_kernel(
        (TALL,), BFLOAT16, "bfloat16", "spatial", "spatial", c_aligned=False,
        epilogue=ACCUMULATOR + RESIDUAL,
    ): (
        "a:*bf16:16 b:*bf16:16 c:*bf16:2 operand_res:*bf16:2 m:i32:1 n:i32:1 k:i32:1 batch:i32:1 "
        "a_stride:i64:8 b_stride:i64:8 a_batch:i64:8 b_batch:i64:8 c_row:i64:1 c_batch:i64:1 "
        "operand_res_row:i64:1 operand_res_batch:i64:1 swizzle:i32:1"
    ),
    product_kernel(
        (TALL,), BFLOAT16, "bfloat16", "k", "k", loads="descriptors", c_aligned=False
    ): (
        "a:tensordesc<bf16[1, 32, 16]>:1 b:tensordesc<bf16[1, 32, 16]>:1 c:*bf16:2 m:i32:1 n:i32:1 "
        "k:i32:1 batch:i32:1 a_batch:i32:1 b_batch:i32:1 c_row:i64:1 c_batch:i64:1 swizzle:i32:1"
    ),
}  # fmt: skip


@pytest.mark.parametrize("kernel", ORDER, ids=lambda kernel: kernel.symbol)
def test_order_types_and_promises_of_arguments(kernel: ProductKernel) -> None:
    found = gemm_arguments(kernel)
    assert " ".join(f"{a.name}:{a.type}:{a.divisor}" for a in found) == ORDER[kernel].replace(
        "  ", " "
    )
    source = gemm_source(kernel)
    assert source.arguments == found
    signature = source.text[source.text.index(f"def {kernel.symbol}(") :].split(")")[0]
    assert signature.endswith(", ".join(a.name for a in found))


def test_a_text_has_a_name_and_a_key_of_its_own() -> None:
    kernels = [*ORDER, product_kernel((LOW,), FLOAT32, "float32", "k", "k")]
    sources = [gemm_source(kernel) for kernel in kernels]
    assert len({s.function for s in sources}) == len({s.key for s in sources}) == len(kernels)
    assert gemm_source(POINTERS).key == sources[0].key


def test_workspace_has_room_for_the_parts_of_every_tile() -> None:
    one = product_kernel((TALL,), FLOAT32, "tf32", "k", "k", split=True)
    assert workspace_elements(one, 33, 65, 2, 33, 3) == 2 * (2 * 3) * 3 * 32 * 32
    two = product_kernel((TALL, LOW), FLOAT32, "tf32", "k", "k", split=True)
    assert workspace_elements(two, 33, 65, 2, 32, 3) == 2 * 3 * 3 * (32 * 32 + 16 * 32)


def test_no_text_needs_triton() -> None:
    script = (
        "import sys\nfrom ftuner.codegen.triton import product, targets, vector_math\n"
        "print({'torch', 'triton', 'llvmlite'} & set(sys.modules))"
    )
    done = printed("-c", script)
    assert done == "set()\n"
