"""What of a compiled module ftuner computes, and what PyTorch does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from ftuner.core.frozen import dataclass
from ftuner.core.units import count
from ftuner.models import Model
from ftuner.torch.graphs import RECORDER, Division, title_of


@dataclass(frozen=True)
class Explanation:
    """The graphs that one call of a compiled module ran."""

    graphs: int
    operators: int
    """ATen operators of all graphs."""
    left: dict[str, int]
    """Operators that PyTorch computes, each with the reason, and how many there are."""
    models: tuple[Model, ...]
    """The models of the regions that ftuner computes; each has an `explain` of its own."""

    @property
    def share(self) -> float:
        """The share of operators that ftuner computes; views that it leaves to PyTorch count as its
        own, as they cost nothing."""
        return (self.operators - sum(self.left.values())) / max(self.operators, 1)

    def __str__(self) -> str:
        if not self.graphs:
            return "no graph: torch traced none, or computes gradients"
        lines = [
            f"{count(self.graphs, 'graph')}, {count(self.operators, 'operator')}, "
            f"{self.share:.1%} by ftuner in {count(len(self.models), 'region')}"
        ]
        lines += [f"  PyTorch: {n} x {text}" for text, n in self.left.items()]
        lines += [f"  ftuner: {model.summary()}" for model in self.models]
        return "\n".join(lines)


def explain(compiled: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Run a module or function that `torch.compile(..., backend="ftuner")` returned, and say which
    of its operators ftuner computes.

    Args:
        compiled: what `torch.compile` returned.
        args, kwargs: its arguments.
    """
    divisions: list[Division] = []
    token = RECORDER.set(divisions)
    try:
        compiled(*args, **kwargs)
    finally:
        RECORDER.reset(token)
    left = Counter(f"{title_of(n)}: {why}" for d in divisions for n, why in d.left.items())
    models = tuple(region.model for d in divisions for region in d.regions)
    return Explanation(
        len(divisions), sum(d.operators for d in divisions), dict(left.most_common()), models
    )
