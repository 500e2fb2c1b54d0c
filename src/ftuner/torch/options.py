"""The options of `torch.compile(..., backend="ftuner", options=...)`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from ftuner.errors import ConfigurationError


@dataclass(frozen=True)
class Options:
    """How graphs are compiled."""

    threads: int | None = None
    """Threads of a run, the caller's included; by default those of the process."""
    fullgraph_or_error: bool = False
    """Whether an operator that would be left to PyTorch is an error."""
    check: bool = False
    """Whether the first runs are compared with PyTorch."""
    precision: str | None = None
    """`precision` of `ftuner.load`; on a GPU its `dtype`, which float32 is held in."""


def options_of(given: Mapping[str, object] | None) -> Options:
    """The options of a mapping.

    Raises:
        ConfigurationError: an unknown option, or a value of another type.
    """
    kinds = {
        "threads": (int, type(None)), "fullgraph_or_error": (bool,), "check": (bool,),
        "precision": (str, type(None)),
    }  # fmt: skip
    assert kinds.keys() == {f.name for f in fields(Options)}
    for name, value in (given or {}).items():
        if name not in kinds:
            raise ConfigurationError(f"no option {name!r}; there are {', '.join(kinds)}")
        if not isinstance(value, kinds[name]) or (name == "threads" and value is True):
            raise ConfigurationError(
                f"option {name} is {value!r}; expected {kinds[name][0].__name__}"
            )
    return Options(**(given or {}))  # type: ignore[arg-type]
