"""The table of operators."""

from __future__ import annotations

from collections.abc import Mapping

from ftuner.graph.operator import Operator
from ftuner.graph.ops.attention import ATTENTION
from ftuner.graph.ops.contraction import CONTRACTIONS
from ftuner.graph.ops.indexing import INDEXING
from ftuner.graph.ops.layout import LAYOUT
from ftuner.graph.ops.ordering import ORDERING
from ftuner.graph.ops.pointwise import POINTWISE
from ftuner.graph.ops.reduction import REDUCTIONS
from ftuner.graph.ops.rotary import ROTARY
from ftuner.graph.ops.scattering import SCATTERING

OPERATORS: Mapping[str, Operator] = {
    o.name: o
    for o in (
        *POINTWISE,
        *LAYOUT,
        *INDEXING,
        *SCATTERING,
        *ORDERING,
        *REDUCTIONS,
        *CONTRACTIONS,
        *ATTENTION,
        *ROTARY,
    )
}
