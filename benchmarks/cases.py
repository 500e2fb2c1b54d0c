"""The cases: operators with one dynamic extent, read from `workloads/operators.json`."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

WORKLOADS = Path(__file__).parent / "workloads"
KINDS = ("gemm", "bmm")


@dataclass(frozen=True)
class Gemm:
    """`y[m, n] = x[m, k] @ w[n, k].T + b[n]`, float32, weight constant, m dynamic."""

    source: str
    m: int
    n: int
    k: int

    @property
    def label(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def flops(self) -> int:
        """Multiply-adds counted as two; the bias is left out."""
        return 2 * self.m * self.n * self.k

    @property
    def moved_bytes(self) -> int:
        """Bytes of all operands, each read or written once."""
        return 4 * (self.n * self.k + self.n + self.m * (self.n + self.k))

    @property
    def prepared_by(self) -> tuple[int, int]:
        """What an engine may prepare for; cases that agree in it share the prepared weight."""
        return self.n, self.k

    @property
    def rotated_bytes(self) -> int:
        """Bytes of the operand that several copies are made of: the weight."""
        return 4 * self.n * self.k


@dataclass(frozen=True)
class BatchMatmul:
    """`y[batch, m, n] = a[batch, m, k] @ b`, float32, nothing constant.

    `layout` says how b is stored: `nn` as `[batch, k, n]`, `nt` as `[batch, n, k]`.
    """

    source: str
    layout: str
    batch: int
    m: int
    n: int
    k: int

    @property
    def label(self) -> str:
        return f"{self.layout} {self.batch}x{self.m}x{self.n}x{self.k}"

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def moved_bytes(self) -> int:
        return self.rotated_bytes + 4 * self.batch * self.m * self.n

    @property
    def prepared_by(self) -> tuple[str]:
        return (self.layout,)

    @property
    def rotated_bytes(self) -> int:
        """Bytes of both operands."""
        return 4 * self.batch * self.k * (self.m + self.n)


Case = Gemm | BatchMatmul


@lru_cache(maxsize=1)
def workload() -> dict[str, Any]:
    """The workload file as it is written."""
    loaded: dict[str, Any] = json.loads((WORKLOADS / "operators.json").read_text())
    return loaded


def _gemms() -> Iterator[Gemm]:
    for entry in workload()["gemm"]:
        for n, k in entry["nk"]:
            for m in entry["m"]:
                yield Gemm(entry["source"], m, n, k)


def _batch_matmuls() -> Iterator[BatchMatmul]:
    for entry in workload()["batch_matmul"]:
        for t in entry["t"]:
            # The file writes a shape as "m x k x n".
            terms = entry["shape"].split(" x ")
            m, k, n = (t if term == "T" else int(term) for term in terms)
            yield BatchMatmul(entry["source"], entry["layout"], entry["batch"], m, n, k)


def select(kind: str, set_name: str) -> tuple[Case, ...]:
    """The cases of one kind (`gemm` or `bmm`) in one set, or in every set with `all`.

    Cases that share their preparation stand together. Raises ValueError for an unknown kind or set.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown kind of case {kind!r}; one of {', '.join(KINDS)}")
    every: list[Case] = list(_gemms() if kind == "gemm" else _batch_matmuls())
    sets = list(dict.fromkeys(case.source for case in every))
    if set_name != "all" and set_name not in sets:
        raise ValueError(f"unknown set {set_name!r} of {kind}; one of all, {', '.join(sets)}")
    chosen = [case for case in every if set_name in ("all", case.source)]
    order = list(dict.fromkeys(case.prepared_by for case in chosen))
    return tuple(sorted(chosen, key=lambda case: order.index(case.prepared_by)))


MIN_COPIES = 2
MAX_COPIES = 24
MAX_ROTATED_BYTES = 256 << 20
ROTATED_L2_CAPACITIES = 4
"""Bytes in rotation over the L2 of one core: at four times its capacity, a least-recently-used
level has lost each copy before that copy's turn comes again."""


def rotation_copies(bytes_per_copy: int, l2_bytes: int) -> int:
    """Copies to rotate through, so that the operand does not come from L1 or L2.

    At least two where memory allows; never more than `MAX_COPIES` or `MAX_ROTATED_BYTES`.
    """
    wanted = math.ceil(ROTATED_L2_CAPACITIES * l2_bytes / bytes_per_copy)
    affordable = max(1, MAX_ROTATED_BYTES // bytes_per_copy)
    return min(max(wanted, MIN_COPIES), MAX_COPIES, affordable)
