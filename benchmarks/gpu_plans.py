"""What a result says of the plans that were launched for it: tiles, the estimate's terms, and the
resources of the kernel."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.gpu_bench import Bench
from ftuner.planner.gpu.plan import AttentionPlan, ProductPlan
from ftuner.planner.gpu.planner import estimate_plan
from ftuner.runtime.gpu.kernels import Kernel
from ftuner.schedules.attention.gpu_plan import estimate_attention_plan

MOST_PLANS = 4
"""Of one result. Convolutions have one for each group."""


def described(plan: ProductPlan | AttentionPlan) -> dict[str, Any]:
    """A plan as JSON."""
    if isinstance(plan, ProductPlan):
        return {
            "kind": "product", "tiles": [asdict(tile) for tile in plan.kernel.tiles],
            "rows": plan.rows, "split_k": plan.split_k, "swizzle": plan.swizzle,
            "programs": plan.programs,
        }  # fmt: skip
    kernel = plan.kernel
    return {
        "kind": "attention", "tile": asdict(kernel.tile), "causal": kernel.form.causal,
        "packed": kernel.packed, "split_keys": plan.split_keys, "l2_heads": plan.l2_heads,
        "programs": plan.programs,
    }  # fmt: skip


def calls(bench: Bench) -> list[Any]:
    """Layouts of operands with the plan and the kernel of each."""
    return [*bench.backend.products.calls, *bench.backend.attentions.calls]


def new_plans(bench: Bench, before: Sequence[Any]) -> list[dict[str, Any]]:
    """The plans of layouts that were new since `calls` gave those of before."""
    known = set(map(id, before))
    new = [call for call in calls(bench) if id(call) not in known]
    return [_recorded(bench, call.plan, call.kernel) for call in new[:MOST_PLANS]]


def _recorded(bench: Bench, plan: ProductPlan | AttentionPlan, kernel: Kernel) -> dict[str, Any]:
    estimate = estimate_plan if isinstance(plan, ProductPlan) else estimate_attention_plan
    terms = estimate(bench.backend.hardware, plan).terms()  # type: ignore[operator, arg-type]
    resources = kernel.resources
    return {
        **described(plan), "terms": terms, "resources": resources and asdict(resources),
    }  # fmt: skip
