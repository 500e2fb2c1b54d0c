"""All operators: those of the modules beside this one."""

from __future__ import annotations

from dataclasses import replace

from ftuner.graph.operator import Operator
from ftuner.graph.ops.attention import ATTENTION
from ftuner.graph.ops.contraction import CONTRACTIONS
from ftuner.graph.ops.control import CONTROL
from ftuner.graph.ops.indexing import INDEXING
from ftuner.graph.ops.layout import LAYOUT
from ftuner.graph.ops.learning import LEARNING
from ftuner.graph.ops.ordering import ORDERING
from ftuner.graph.ops.pointwise import POINTWISE
from ftuner.graph.ops.random_numbers import RANDOM_NUMBERS
from ftuner.graph.ops.recurrence import RECURRENCE
from ftuner.graph.ops.reduction import REDUCTIONS
from ftuner.graph.ops.resampling import RESAMPLING
from ftuner.graph.ops.scattering import SCATTERING
from ftuner.graph.ops.suppression import SUPPRESSION
from ftuner.graph.ops.text import TEXT
from ftuner.graph.ops.trees import TREES
from ftuner.graph.ops.views import VIEWS
from ftuner.graph.ops.windows import WINDOWS
from ftuner.graph.schedules import lowering_of

ROWS: dict[str, Operator] = {
    o.name: replace(o, lower=o.lower or lowering_of(o.name))
    for o in (
        *POINTWISE,
        *VIEWS,
        *LAYOUT,
        *INDEXING,
        *SCATTERING,
        *ORDERING,
        *REDUCTIONS,
        *CONTRACTIONS,
        *LEARNING,
        *TEXT,
        *TREES,
        *ATTENTION,
        *RECURRENCE,
        *RANDOM_NUMBERS,
        *RESAMPLING,
        *SUPPRESSION,
        *WINDOWS,
        *CONTROL,
    )
}
