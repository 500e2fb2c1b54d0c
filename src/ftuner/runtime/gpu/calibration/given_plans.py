"""Products and attention by a given plan, whatever the planner would choose."""

from __future__ import annotations

from typing import Any

from ftuner.codegen.triton.attention import attention_source
from ftuner.codegen.triton.product import gemm_source
from ftuner.core.gpu.attention import AttentionForm
from ftuner.planner.gpu.plan import AttentionPlan, ProductPlan
from ftuner.planner.gpu.problem import AttentionProblem, ProductProblem, RequestLengths
from ftuner.runtime.gpu.attention_launches import Attentions
from ftuner.runtime.gpu.kernels import Kernel
from ftuner.runtime.gpu.products import Products
from ftuner.runtime.gpu.session import GpuSession


class PlannedProducts(Products):
    """Products of one shape, by one plan."""

    def __init__(self, session: GpuSession, plan: ProductPlan) -> None:
        super().__init__(session.device, session.kernels, session.scratch, session.block_library)
        self._plan = plan

    def _planned(self, like: Any, problem: ProductProblem) -> tuple[ProductPlan, Kernel]:
        given = self._plan.kernel
        kernel = self._library(given.dtype, given.multiply).kernel(
            given.tiles, given.a_order, given.b_order, given.aligned, given.split, like.epilogue,
            like.c_aligned,
        )  # fmt: skip
        return self._plan._replace(kernel=kernel), self._kernels.kernel(gemm_source(kernel))


class PlannedAttentions(Attentions):
    """Attention of one shape, by one plan."""

    def __init__(self, session: GpuSession, plan: AttentionPlan) -> None:
        super().__init__(session.device, session.kernels, session.scratch, session.hardware)
        self._plan = plan

    def _planned(
        self, form: AttentionForm, problem: AttentionProblem, lengths: RequestLengths | None
    ) -> tuple[AttentionPlan, Kernel]:
        plan = self._plan
        assert (form, problem, lengths) == (plan.kernel.form, plan.problem, None)
        return plan, self._kernels.kernel(attention_source(plan.kernel))
