"""A machine's knowledge as one file that moves: its hardware model with its tuning, and the
learned correction of its estimates where there is one.

The file is JSON, not TOML as recorded machines are, because a program writes and reads it: Python
writes no TOML, and a learned correction is mostly arrays. It is data alone. Whatever is wrong with
a file is a HardwareError that names the file and the entry.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from ftuner.core.files import read_regular, write_whole
from ftuner.errors import ConfigurationError, DatasetError, HardwareError, MissingMachineError
from ftuner.hardware import correction
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.priors import own_tuning
from ftuner.hardware.recorded import from_document, to_document

KIND = "ftuner-machine"
SCHEMA = 1
"""Changes when files of the earlier schema cannot be read any more."""
SUFFIX = ".json"
MAX_BYTES = 8 << 20
"""Of a file that is read. A hardware model has some 10 KB, a learned one a few hundred."""
_ENTRIES = frozenset({"kind", "schema", "fingerprint", "hardware", "correction"})


def exported_document(hardware: CpuHardware) -> dict[str, Any]:
    """What is known of a machine, as JSON can hold it, without what the nearest recorded machine
    lends it: that depends on the reader's machines. So does a correction that was learned with it,
    which is left out then."""
    tuning = own_tuning(hardware.tuning)
    document: dict[str, Any] = {
        "kind": KIND,
        "schema": SCHEMA,
        "fingerprint": hardware.fingerprint,
        "hardware": to_document(replace(hardware, tuning=tuning)),
    }
    if hardware.correction is not None and tuning == hardware.tuning:
        document["correction"] = hardware.correction.to_document()
    return document


def from_exported_document(document: Any) -> CpuHardware:
    """The inverse of `exported_document`.

    Raises:
        HardwareError: not such a document, or one of another schema.
    """
    if not isinstance(document, Mapping) or document.get("kind") != KIND:
        raise HardwareError(f"not a machine that ftuner exported: no entry kind = {KIND!r}")
    if document.get("schema") != SCHEMA:
        raise HardwareError(
            f"schema is {document.get('schema')!r:.40}; expected {SCHEMA}: export the "
            "machine again with this version of ftuner"
        )
    unknown = sorted(str(key) for key in document if key not in _ENTRIES)
    if unknown:
        raise HardwareError(f"unknown entries {unknown!r:.200}")
    hardware = from_document(document.get("hardware"))  # type: ignore[arg-type]
    if not isinstance(hardware, CpuHardware):
        raise HardwareError("a model of a GPU; expected one of a CPU")
    if document.get("fingerprint") != hardware.fingerprint:
        raise HardwareError(
            f"fingerprint is {document.get('fingerprint')!r:.40}; that of its hardware is "
            f"{hardware.fingerprint}"
        )
    if "correction" not in document:
        return hardware
    try:
        learned = correction.from_document(document["correction"])
    except DatasetError as error:
        raise HardwareError(str(error)) from error
    if learned.fingerprint != hardware.fingerprint:
        raise HardwareError(f"correction is of the machine {learned.fingerprint!r:.40}")
    return replace(hardware, correction=learned)


def read_exported(path: str | PathLike[str]) -> CpuHardware:
    """What a file says of a machine.

    Raises:
        MissingMachineError: there is no such file.
        HardwareError: the file cannot be read, is too large, or is not what `write_exported` wrote.
    """
    try:
        document = json.loads(read_regular(Path(path), MAX_BYTES), parse_constant=_refuse)
        return from_exported_document(document)
    except FileNotFoundError as error:
        raise MissingMachineError(f"cannot read {path}: {error.strerror}") from error
    except OSError as error:
        raise HardwareError(f"cannot read {path}: {error.strerror or error}") from error
    # Not UTF-8 or JSON, a file too large, an integer of too many digits, or nested too deeply.
    except (ValueError, RecursionError, HardwareError) as error:
        text = f"{path} is not a machine that ftuner hardware --export has written: {error}"
        raise HardwareError(text) from error


def write_exported(path: str | PathLike[str], hardware: CpuHardware) -> None:
    """Write a file, which replaces one of the same name as a whole.

    Raises:
        ConfigurationError: a name that does not end in .json, or the file cannot be written.
    """
    target = Path(path)
    if target.suffix.lower() != SUFFIX:
        raise ConfigurationError(
            f"cannot export a machine as {target.name!r}; expected a name that ends in {SUFFIX}"
        )
    text = json.dumps(exported_document(hardware), indent=1, allow_nan=False)
    try:
        write_whole(target, text + "\n")
    except (OSError, ValueError) as error:  # A name with a NUL is a ValueError.
        why = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"cannot write {path}: {why}") from error


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number in JSON")
