"""Symbols for the extents that a model file names."""

from __future__ import annotations

from ftuner.core.dim import Symbolic, symbol, symbol_name


class Names:
    """Symbols for the dims of a model, named or not; different texts have different symbols."""

    def __init__(self) -> None:
        self._symbols: dict[str, Symbolic] = {}
        self._used: dict[str, int] = {}
        """How many symbols were requested under each name."""

    def named(self, text: str) -> Symbolic:
        """The symbol of a name, the same each time."""
        found = self._symbols.get(text)
        if found is None:
            found = self._symbols[text] = self.fresh(text)
        return found

    def fresh(self, text: str) -> Symbolic:
        """A new symbol whose name begins with a text."""
        name = wanted = symbol_name(text)
        while name in self._used:
            self._used[wanted] += 1
            name = f"{wanted}_{self._used[wanted]}"
        self._used[name] = 1
        return symbol(name)
