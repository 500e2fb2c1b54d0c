"""Steps and graphs as a table of entries that JSON can hold.

An entry is a string, number, boolean or None, or a list: a head, which says what is made, and the
numbers of the earlier entries that it is made of. Classes are those of a fixed list of modules, so
that reading a table runs none but their constructors. Nothing recurses, because dims may be nested
thousands deep.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from ftuner.errors import ParseError, SavedModelError
from ftuner.graph.buffers import hollow, is_hollow
from ftuner.graph.ir import MAX_RANK, Array
from ftuner.graph.schedules import SCHEDULES
from ftuner.graph.splitting import PackedWeight
from ftuner.runtime.saved.container import MALFORMED

_MODULES = (
    "core.access", "core.attention_softmax", "core.dtype", "core.expr", "core.index_expr",
    "core.product", "core.recurrence", "core.symbolic", "frontends.onnx.records",
    "graph.specialization", "graph.appending", "graph.buffers", "graph.ir", "graph.ops.learning",
    "graph.ops.text", "graph.ragged", "graph.sources", "graph.splitting", "graph.steps",
    "runtime.specialization", "runtime.model", "tasks.program",
    *(schedule.module_name("step").removeprefix("ftuner.") for schedule in SCHEDULES),
)  # fmt: skip
"""The modules whose dataclasses and named tuples are written."""
_KEPT_APART = ("graph.buffers.Buffer", "graph.ir.Node", "graph.ir.RandomKey", "graph.ir.Value")
"""Classes whose values equal themselves alone; equal values of others are one entry."""
_SCALARS = (str, bool, int, float, type(None))
MEANING = 2
"""Changes when the steps, the attributes of nodes or the packed weights of files mean something
else, though the fields of their classes are the same."""
KINDS = "biufV"
"""NumPy's, of arrays that are stored as they are; `V` are blocks."""
MOST_BYTES = 1 << 48
"""Of an array."""

_Made = Callable[[Sequence[Any]], Any]


@cache
def _class_of(name: str) -> type:
    """The class of a name in tables, whose module is imported.

    Raises:
        LookupError: there is none.
    """
    module = name.rpartition(".")[0]
    if module not in _MODULES:
        raise LookupError(f"no class {name:.80}")
    return _classes_of(module)[name]


@cache
def _classes_of(module: str) -> dict[str, type]:
    """The classes of one of `_MODULES`, by their names in tables."""
    return {
        f"{module}.{cls.__qualname__}": cls
        for cls in vars(import_module(f"ftuner.{module}")).values()
        if isinstance(cls, type) and cls.__module__ == f"ftuner.{module}" and _names(cls)
    }


def _names(cls: type) -> tuple[str, ...]:
    """Return the fields of a dataclass or a named tuple; nothing for other classes. Fields that are
    given by keyword alone, such as lines of sources, have defaults and are left out."""
    if is_dataclass(cls):
        return tuple(field.name for field in fields(cls) if field.init and not field.kw_only)
    return tuple(getattr(cls, "_fields", ())) if issubclass(cls, tuple) else ()


@cache
def schema() -> str:
    """Names what tables may hold: versions of ftuner with the same name read each other's."""
    found = {name: cls for module in _MODULES for name, cls in _classes_of(module).items()}
    names = [(name, _names(cls)) for name, cls in sorted(found.items())]
    return f"{MEANING}-{hashlib.sha256(repr(names).encode()).hexdigest()[:12]}"


class Table:
    """Writes values as entries, each once."""

    def __init__(
        self, store: Callable[[Array], int], made: Callable[[Array], int | None] = lambda x: None
    ) -> None:
        """`store`: keeps the elements of an array; returns their number. `made`: the same of an
        array, or of what a hollow one stands for, that can be made again; it is not packed then."""
        self.entries: list[Any] = []
        self._store, self._made = store, made
        self._known: dict[object, int] = {}
        """Entries by their content."""
        self._of: dict[int, int] = {}
        """Entries of values by identity."""
        self._kept: list[Any] = []
        """Those values and their parts, whose identities stay theirs meanwhile."""

    def add(self, root: object) -> int:
        """The number of a value's entry.

        Raises:
            SavedModelError: a value, or one within it, of a class that cannot be written.
        """
        left: list[tuple[Any, tuple[str, Sequence[Any]] | None]] = [(root, None)]
        while left:
            value, apart = left.pop()
            if self._number(value) is not None:
                continue
            if apart is None:
                if isinstance(value, PackedWeight) and self._made(value.of) is not None:
                    apart = _taken_apart(value._replace(packed=None))
                else:
                    apart = _taken_apart(value)
                left.append((value, apart))
                left += [(part, None) for part in apart[1]]
                continue
            head, parts = apart
            numbers = [self._number(part) for part in parts]
            shared = not isinstance(value, np.ndarray) and head not in _KEPT_APART
            if head in ("array", "hollow"):
                made = self._made(value)
                head = head if made is None else "array"
                if head == "array":
                    numbers.append(self._store(value) if made is None else made)
            self._of[id(value)] = self._entry([head, *numbers], (head, *numbers), shared)
            self._kept.append((value, parts))
        found = self._number(root)
        assert found is not None
        return found

    def _number(self, value: Any) -> int | None:
        if type(value) in _SCALARS:
            # 1, 1.0 and True are equal, as are 0.0 and -0.0.
            return self._entry(value, (type(value), repr(value)), True)
        return self._of.get(id(value))

    def _entry(self, entry: Any, content: object, shared: bool) -> int:
        number = self._known.get(content) if shared else None
        if number is None:
            number = len(self.entries)
            self.entries.append(entry)
            if shared:
                self._known[content] = number
        return number


def _taken_apart(value: Any) -> tuple[str, Sequence[Any]]:
    """The head of a value's entry, and what it is made of.

    Raises:
        SavedModelError: it is of another class.
    """
    cls = type(value)
    if cls in (tuple, list):
        return cls.__name__, value
    if isinstance(value, Mapping):
        return "dict", [part for item in value.items() for part in item]
    if cls is range:
        return "range", (value.start, value.stop, value.step)
    if cls is bytes:
        return "bytes", (value.hex(),)
    if isinstance(value, np.generic):
        return "number", (np.asarray(value),)
    if cls is np.ndarray:
        if value.dtype.kind == "O":
            return "objects", (tuple(value.shape), *value.flat)
        if value.dtype.kind in KINDS:
            head = "hollow" if is_hollow(value) else "array"
            return head, (value.dtype.str, tuple(value.shape))
    name = f"{cls.__module__.removeprefix('ftuner.')}.{cls.__qualname__}"
    with suppress(LookupError):
        if _class_of(name) is cls:
            return name, [getattr(value, field) for field in _names(cls)]
    raise SavedModelError(
        f"the model holds a {cls.__module__}.{cls.__qualname__}, which is not saved"
    )


def read(entries: object, array: Callable[[int, np.dtype[Any], tuple[int, ...]], Array]) -> Any:
    """The value of the last entry of a table. `array`: the elements of a number, dtype and shape.

    Raises:
        ParseError: not such a table.
    """
    made: list[Any] = []

    def shaped(parts: Sequence[Any]) -> tuple[np.dtype[Any], tuple[int, ...]]:
        dtype, shape = np.dtype(parts[0]), parts[1]
        size = dtype.itemsize
        for extent in shape:
            if type(extent) is not int or extent < 0:
                raise ValueError(f"an extent is {extent!r:.40}")
            size *= max(extent, 1)
        if dtype.kind not in KINDS or size > MOST_BYTES or len(shape) > MAX_RANK:
            raise ValueError(f"an array of {shape} elements of {dtype}")
        return dtype, shape

    makers: dict[str, _Made] = {
        "tuple": tuple,
        "list": list,
        "dict": lambda parts: dict(zip(parts[::2], parts[1::2], strict=True)),
        "range": lambda parts: range(*parts),
        "bytes": lambda parts: bytes.fromhex(*parts),
        "number": lambda parts: parts[0][()],
        "objects": lambda parts: np.array(parts[1:], object).reshape(parts[0]),
        "hollow": lambda parts: hollow(*shaped(parts)),
    }
    try:
        if not isinstance(entries, list):
            raise TypeError("not a list")
        for entry in entries:
            if type(entry) is not list:
                made.append(entry)
                continue
            head, *numbers = entry
            own = numbers.pop() if head == "array" else 0
            parts = [made[number] for number in numbers]
            if head == "array":
                made.append(array(own, *shaped(parts)))
                continue
            maker = makers.get(head)
            made.append(_class_of(head)(*parts) if maker is None else maker(parts))
        return made[-1]
    except MALFORMED as error:
        raise ParseError(f"entry {len(made)}: {type(error).__name__}: {error}") from error
