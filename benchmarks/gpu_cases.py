"""The products that are measured on a GPU: the sets of `workloads/operators.json`, and the layers
of a language model at uneven numbers of rows."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.cases import BatchMatmul, Gemm, select

LLAMA = "llama-8b"
LLAMA_LAYERS = ((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336))
"""(n, k) of the projections of Llama 3 8B: output, query with key and value, gate with up, down."""
LLAMA_ROWS = (1, 2, 3, 5, 8, 13, 17, 31, 48, 64, 77, 128, 197, 256, 333, 512, 777, 1024, 1531, 2048,
              3000, 4096, 6001, 8192)  # fmt: skip
SPECIALISED_ROWS = (777, 2048, 8192)
OTHER_ROWS = (1, 77, 1024, 3000)
"""Of the element types that are not measured everywhere."""
GEMM_SETS = ("dietcode", "deepbench", "mlp", "inductor")
ITEMSIZE = {"bfloat16": 2, "float16": 2, "tf32": 4, "float32": 4}
"""Bytes of an element, by what is multiplied; tf32 lies as float32."""
ROTATED_L2_CAPACITIES = 3
MAX_COPIES = 200
MAX_ROTATED_BYTES = 8 << 30


def rotated(operand_bytes: int, l2_bytes: int) -> int:
    """Copies of all operands of a case to rotate through, so that they do not come from L2."""
    wanted = math.ceil(ROTATED_L2_CAPACITIES * l2_bytes / operand_bytes) + 1
    return max(2, min(wanted, MAX_COPIES, MAX_ROTATED_BYTES // operand_bytes))


@dataclass(frozen=True)
class Product:
    """`y[batch, m, n] = x[batch, m, k] @ w`, w stored as `[batch, n, k]` (nt) or `[batch, k, n]`
    (nn); a batch of 0 is a plain matrix product."""

    set: str
    multiply: str
    layout: str
    batch: int
    m: int
    n: int
    k: int

    @property
    def label(self) -> str:
        batch = f"{self.batch}x" if self.batch else ""
        return f"{self.set} {self.multiply} {self.layout} {batch}{self.m}x{self.n}x{self.k}"

    @property
    def flops(self) -> int:
        return 2 * max(self.batch, 1) * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """Of both operands and the result."""
        elements = self.m * self.k + self.n * self.k + self.m * self.n
        return max(self.batch, 1) * elements * ITEMSIZE[self.multiply]


def gemm_cases() -> list[Product]:
    """bfloat16 of all sets, and a few of the other element types."""
    found = [
        Product(LLAMA, "bfloat16", "nt", 0, m, n, k) for n, k in LLAMA_LAYERS for m in LLAMA_ROWS
    ]
    found += [
        Product("specialised", "bfloat16", "nt", 0, m, n, k)
        for n, k in (LLAMA_LAYERS[0], LLAMA_LAYERS[2], (3072, 768))
        for m in SPECIALISED_ROWS
    ]
    for name in GEMM_SETS:
        for case in select("gemm", name):
            assert isinstance(case, Gemm)
            found.append(Product(name, "bfloat16", "nt", 0, case.m, case.n, case.k))
    for multiply in ("float16", "tf32", "float32"):
        found += [
            Product(LLAMA, multiply, "nt", 0, m, n, k)
            for n, k in (LLAMA_LAYERS[0], LLAMA_LAYERS[3])
            for m in OTHER_ROWS
        ]
    return list(dict.fromkeys(found))


def bmm_cases() -> list[Product]:
    """All sets, bfloat16."""
    found = []
    for case in select("bmm", "all"):
        assert isinstance(case, BatchMatmul)
        found.append(
            Product(case.source, "bfloat16", case.layout, case.batch, case.m, case.n, case.k)
        )
    return found


def regret_cases() -> list[Product]:
    """A sample of the layers, of few rows and of many, that is not sorted by either."""
    return [
        Product(LLAMA, "bfloat16", "nt", 0, m, *LLAMA_LAYERS[i % len(LLAMA_LAYERS)])
        for i, m in enumerate((1, 13, 128, 777, 48, 3000, 333, 17, 1531, 8192, 5, 197, 2048, 77,
                               512, 4096))
    ]  # fmt: skip


def dry_cases(multiplies: tuple[str, ...] = ("float16", "float32")) -> Iterator[Product]:
    """Some that the interpreter runs in no time."""
    for multiply in multiplies:
        yield Product("dry", multiply, "nt", 0, 5, 24, 40)
        yield Product("dry", multiply, "nt", 0, 33, 16, 24)
