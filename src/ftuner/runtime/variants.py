"""Models of one file for inputs whose shapes are other than the file says."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ftuner.core.forks import fork_safe_lock
from ftuner.core.recently_used import RecentlyUsed
from ftuner.errors import DTypeError, InputError, OperandError
from ftuner.runtime.cpu.arrays import as_array

if TYPE_CHECKING:
    from ftuner.runtime.model import Model

Shapes = Mapping[str, Sequence[int]]
"""Shapes of inputs by name."""
MAX_VARIANTS = 32
"""Variants of a model that are kept."""
MAX_KNOWN = 256
"""Shapes of inputs of which it is kept which variant they need."""


class Variants:
    """The variants of a model: each is compiled in the first call that needs it, and kept. Which
    one a call needs depends on its shapes alone, not on earlier calls. Safe to use from several
    threads."""

    def __init__(
        self, wanted: Callable[[Shapes], Hashable | None], compiled: Callable[[Any], Model]
    ) -> None:
        """`wanted`: which variant shapes need; None for the model as its file says. `compiled`:
        makes a variant."""
        self._wanted, self._compiled = wanted, compiled
        self._lock = fork_safe_lock()
        self._made: RecentlyUsed[Hashable, Model] = RecentlyUsed(MAX_VARIANTS)
        self._known: RecentlyUsed[object, tuple[Model | None]] = RecentlyUsed(MAX_KNOWN)

    @property
    def used(self) -> bool:
        """Whether a call has needed a variant."""
        return len(self._made) > 0

    def model(self, feeds: Mapping[str, object]) -> Model | None:
        """The variant that arrays need; None for the model as its file says.

        Raises:
            InputError: a value that is no array.
            GraphError, ShapeError: what the file computes of such inputs.
        """
        key = tuple([(name, _shape_of(x, name)) for name, x in feeds.items()])
        known = self._known.get(key)
        if known is None:
            known = (self.of(dict(key)),)
            self._known.add(key, known)
        return known[0]

    def of(self, shapes: Shapes) -> Model | None:
        """The same for shapes."""
        wanted = self._wanted(shapes)
        if wanted is None:
            return None
        with self._lock:
            found = self._made.get(wanted)
            if found is None:
                found = self._compiled(wanted)
                self._made.add(wanted, found)
        return found


def _shape_of(value: Any, name: str) -> tuple[int, ...]:
    try:
        return tuple(value.shape if hasattr(value, "shape") else as_array(value, name).shape)
    except (OperandError, DTypeError) as error:
        raise InputError(str(error)) from None
