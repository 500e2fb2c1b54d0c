"""Machines as data: hardware descriptions to and from plain documents, and the recorded ones.

A document is made of what TOML and JSON have in common: tables, lists, strings, numbers and
booleans. Its keys are the fields of the dataclass, and `kind` (`cpu` or `gpu`). Recorded machines
are such documents in `machines/*.toml`, one a file; a file elsewhere is read by its path. The table
`tuning` holds only the constants that differ from the defaults, so that kept models follow the
defaults.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

from ftuner.core.given import expected_range, to_float
from ftuner.errors import HardwareError, MissingMachineError
from ftuner.hardware.constants import Constant, is_taken
from ftuner.hardware.intake_tuning import Intake
from ftuner.hardware.isa import FIXED, instruction_sets
from ftuner.hardware.model import APART, CpuHardware

if TYPE_CHECKING:
    from ftuner.hardware.gpu_model import GpuHardware

_KINDS: Mapping[str, str] = {
    "cpu": "ftuner.hardware.model.CpuHardware",
    "gpu": "ftuner.hardware.gpu_model.GpuHardware",
}
"""The classes of machines by kind, imported when a machine of the kind is read."""
_SUFFIX = ".toml"
_PROVENANCES = frozenset({"system", "probed", "datasheet", "fitted", "assumed"})
_MAY_BE_ZERO = frozenset(
    {"associativity", "launch_s", "accumulator_bytes", "of_bytes_per_cycle",
     "of_bfloat16_per_cycle", "tiles_of_bytes_per_cycle", "tiles_of_bfloat16_per_cycle"}
)  # fmt: skip
_SURE = "confidence"
_MAY_BE_EMPTY = frozenset({"provenance", _SURE, "matrix_flops_per_s", "matrix_instructions"})

_HINTS: Mapping[str, Any] = {
    "bool": bool, "float": float, "int": int, "str": str, "Intake": Intake,
    "Mapping[str, float]": Mapping[str, float], "Mapping[str, str]": Mapping[str, str],
}  # fmt: skip
"""By how annotations are written: evaluating them takes milliseconds."""

_T = TypeVar("_T")


def own_folder() -> Any:
    """The folder of this module: a path, or what stands for one within an archive."""
    folder = Path(__file__).parent
    if folder.is_dir():
        return folder
    from importlib import resources  # Here, because it takes as long as loading a small model.

    return resources.files(__package__)


@cache
def recorded_names(kind: str = "") -> tuple[str, ...]:
    """Names of the recorded machines, or of those of a kind (`cpu`, `gpu`), sorted."""
    line = f'\nkind = "{kind}"\n' if kind else ""
    files = [f for f in (own_folder() / "machines").iterdir() if f.name.endswith(_SUFFIX)]
    found = (f.name[: -len(_SUFFIX)] for f in files if line in f.read_text(encoding="utf-8"))
    return tuple(sorted(found))


def load_recorded(name: str | PathLike[str]) -> CpuHardware | GpuHardware:
    """The recorded machine of a name, or of a path that ends in `.toml`.

    Raises:
        HardwareError: no such name or file, or a file that does not describe a machine.
    """
    if isinstance(name, (str, PathLike)) and Path(name).suffix == _SUFFIX:
        return _read(Path(name))
    known = recorded_names()
    if not isinstance(name, str) or name not in known:
        import difflib  # Here, because most names are known.

        close = difflib.get_close_matches(str(name).lower(), known, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise HardwareError(
            f"no recorded machine {name!r}; expected the path of a {_SUFFIX} file, or one of "
            f"{', '.join(known)}.{hint}"
        )
    return _load(name)


@cache
def _load(name: str) -> CpuHardware | GpuHardware:
    path = own_folder() / "machines" / f"{name}{_SUFFIX}"
    return from_document(_parse_toml(path.read_text(encoding="utf-8")))


def _read(path: Path) -> CpuHardware | GpuHardware:
    try:
        return from_document(_parse_toml(path.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise MissingMachineError(f"cannot read {path}: {error.strerror}") from error
    except OSError as error:
        raise HardwareError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, HardwareError) as error:  # Not UTF-8 or TOML, or not a machine.
        raise HardwareError(f"{path}: {error}") from error


def _parse_toml(text: str) -> dict[str, Any]:
    # Imported here because most processes never read a recorded machine.
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    document: dict[str, Any] = tomllib.loads(text)
    return document


def to_document(hardware: CpuHardware | GpuHardware) -> dict[str, Any]:
    """The hardware as nested dicts and lists, which JSON and TOML can hold."""
    return {"kind": hardware.kind, **_encode(hardware)}


def _class_of(kind: str) -> type[CpuHardware] | type[GpuHardware]:
    module, _, name = _KINDS[kind].rpartition(".")
    found: type[CpuHardware] | type[GpuHardware] = getattr(import_module(module), name)
    return found


def _encode(value: Any) -> Any:
    if is_dataclass(value):
        return {
            f.name: _encode(getattr(value, f.name))
            for f in fields(value)
            if APART not in f.metadata
            if not _follows_default(f, getattr(value, f.name))
        }
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    if isinstance(value, Mapping):
        return dict(value)
    return value


def _follows_default(field: Field[Any], value: Any) -> bool:
    """Whether an entry is left out: a constant that has its default, a tuning without fitted
    values has no confidence."""
    return (
        value == field.default if Constant in field.metadata else field.name == _SURE and not value
    )


def from_document(document: Mapping[str, Any]) -> CpuHardware | GpuHardware:
    """The inverse of `to_document`.

    Raises HardwareError, naming the entry, if something is missing, unknown, of a wrong type, not
    finite, not positive, out of the range of its constant, or not what an ISA's manual says."""
    if not isinstance(document, Mapping):
        raise HardwareError(f"hardware document is {_described(document)}; expected a table")
    kind = document.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise HardwareError(f"hardware document: kind is {kind!r}; expected 'cpu' or 'gpu'")
    entries = {key: value for key, value in document.items() if key != "kind"}
    hardware = _decode_dataclass(_class_of(kind), entries, "hardware")
    for field in fields(hardware):
        parts = getattr(hardware, field.name)
        if isinstance(parts, tuple):
            names = [part.name for part in parts]
            if len(set(names)) < len(names):
                raise HardwareError(f"hardware.{field.name} repeats a name: {', '.join(names)}")
    if isinstance(hardware, CpuHardware):
        _check_isas(hardware)
    return hardware


def _check_isas(hardware: CpuHardware) -> None:
    rows = {row.name: row for row in instruction_sets(hardware.architecture)}
    for isa in hardware.isas:
        row = rows.get(isa.name)
        if row is None:
            raise HardwareError(
                f"hardware.isas has {isa.name!r}; known of {hardware.architecture} are "
                f"{', '.join(rows) or 'none'}"
            )
        for field in FIXED:
            given, fixed = getattr(isa, field), getattr(row, field)
            if given != fixed:
                raise HardwareError(f"{field} of {isa.name} is {given}; expected {fixed}")


def _decode_dataclass(cls: type[_T], document: Any, where: str) -> _T:
    table = _expect(document, Mapping, "a table", where)
    assert is_dataclass(cls)
    hints = {f.name: _HINTS.get(str(f.type)) for f in fields(cls)}
    if None in hints.values():
        hints = get_type_hints(cls)
    known_names = [f.name for f in fields(cls) if APART not in f.metadata]
    unknown = [key for key in table if key not in known_names]
    if unknown:
        raise HardwareError(f"{where} has the unknown entries {unknown}")
    values: dict[str, Any] = {}
    for field in fields(cls):
        if field.name in table:
            value = _decode(hints[field.name], table[field.name], f"{where}.{field.name}")
            known = field.metadata.get(Constant)
            expected = known.expectation(value) if known is not None else None
            if expected is not None:
                raise HardwareError(f"{where}.{field.name} is {value}; expected {expected}")
            values[field.name] = value
        elif field.default is MISSING and field.default_factory is MISSING:
            raise HardwareError(f"{where} lacks {field.name!r}")
    for name, source in values.get("provenance", {}).items():
        if name not in hints or not (source in _PROVENANCES or is_taken(source)):
            raise HardwareError(
                f"{where}.provenance says {name} = {source!r}; expected a field and one of "
                f"{', '.join(sorted(_PROVENANCES))}"
            )
    for name in values.get(_SURE, {}):
        if name not in hints:
            raise HardwareError(f"{where}.confidence has {name!r}; expected a field")
    return cls(**values)


def _decode(hint: Any, value: Any, where: str) -> Any:
    field = where.rpartition(".")[2]
    if hint is bool:
        return _expect(value, bool, "true or false", where)
    if hint is str:
        return _expect(value, str, "a string", where)
    if hint is int or hint is float:
        return _decode_number(hint, value, where, zero=field in _MAY_BE_ZERO)
    if isinstance(hint, type) and is_dataclass(hint):
        return _decode_dataclass(hint, value, where)
    if get_origin(hint) is tuple:
        items = _expect(value, list, "a list", where)
        if not items and field not in _MAY_BE_EMPTY:
            raise HardwareError(f"{where} is empty")
        item_type = get_args(hint)[0]
        return tuple(
            _decode_dataclass(item_type, item, f"{where}[{i}]") for i, item in enumerate(items)
        )
    assert get_origin(hint) is Mapping, f"no document form for {hint}"
    table = _expect(value, Mapping, "a table", where)
    if not table and field not in _MAY_BE_EMPTY:
        raise HardwareError(f"{where} is empty")
    key_type, item_type = get_args(hint)
    return {
        _expect(key, key_type, "a string as key", where): _decode(item_type, item, f"{where}.{key}")
        for key, item in table.items()
    }


def _decode_number(hint: type, value: Any, where: str, zero: bool) -> int | float:
    accepted = int if hint is int else (int, float)
    # In Python a boolean is an integer; in a document it is a mistake.
    if isinstance(value, bool) or not isinstance(value, accepted):
        kind = "an integer" if hint is int else "a number"
        raise HardwareError(f"{where} is {_described(value)}; expected {kind}")
    number = to_float(value)
    expected = expected_range(number, zero)
    if expected is not None:
        raise HardwareError(f"{where} is {number!r}; expected it {expected}")
    return number if hint is float else value


def _expect(value: Any, kind: Any, expected: str, where: str) -> Any:
    if not isinstance(value, kind):
        raise HardwareError(f"{where} is {_described(value)}; expected {expected}")
    return value


def _described(value: Any) -> str:
    return f"{value!r:.60} ({type(value).__name__})"
