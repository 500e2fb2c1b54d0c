"""Inputs of a model by name: what every device asks of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ftuner.errors import InputError


def check_names(feeds: Mapping[str, object], names: Sequence[str]) -> None:
    """Raises InputError unless inputs are given by name, one for each name, and no other."""
    if not isinstance(feeds, Mapping):
        raise InputError(
            f"inputs are a {type(feeds).__name__}; expected a mapping from names, "
            f"{', '.join(names) or 'none'}, to arrays"
        )
    if len(feeds) != len(names) or any(n not in feeds for n in names):
        missing = [n for n in names if n not in feeds]
        unknown = [n for n in feeds if n not in names]
        raise InputError(
            f"inputs are {', '.join(names)}; missing: {', '.join(missing) or 'none'}; "
            f"unknown: {', '.join(map(str, unknown)) or 'none'}"
        )
