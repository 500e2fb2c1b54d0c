"""Hardware models in the cache: a device is probed once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from ftuner.hardware.recorded import to_document
from ftuner.runtime.cache import HARDWARE, Cache

if TYPE_CHECKING:
    from ftuner.hardware.gpu_model import GpuHardware
    from ftuner.hardware.model import CpuHardware

_Model = TypeVar("_Model", "CpuHardware", "GpuHardware")

_SOURCES = "sources"
"""Entry of a kept document: what a model was completed from."""


def known_or_probed(
    cache: Cache, key: str, decode: Callable[[Any], _Model], probe: Callable[[], _Model],
    again: bool, complete: Callable[[_Model], _Model] = lambda model: model, sources: str = "",
) -> _Model:  # fmt: skip
    """The hardware model under `key` in the cache, or the one that `probe` makes, which is kept.
    `again` probes even if the cache has the model; the others are as of `kept_model`."""
    found = None if again else kept_model(cache, key, decode, complete, sources)
    if found is None:
        found = complete(probe())
        keep_model(cache, key, found, sources)
    return found


def kept_model(
    cache: Cache, key: str, decode: Callable[[Any], _Model],
    complete: Callable[[_Model], _Model] = lambda model: model, sources: str = "",
) -> _Model | None:  # fmt: skip
    """The hardware model under `key` in the cache, if there is one.

    Args:
        decode: makes a model of a document, or raises a HardwareError if the document is not a
            model of this device.
        complete: adds to a model what is not measured on the device; a model that was completed
            from other `sources` is completed anew and kept, and what was measured stays.
    """
    kept = _kept(cache, key, decode)
    if kept is None:
        return None
    found, completed_from = kept
    if completed_from != sources:
        found = complete(found)
        keep_model(cache, key, found, sources)
    return found


def _kept(cache: Cache, key: str, decode: Callable[[Any], _Model]) -> tuple[_Model, str] | None:
    """A kept model, and what it was completed from."""

    def decode_kept(document: Any) -> tuple[_Model, str]:
        if not isinstance(document, Mapping):
            return decode(document), ""
        rest = {name: value for name, value in document.items() if name != _SOURCES}
        return decode(rest), str(document.get(_SOURCES, ""))

    return cache.read_document(HARDWARE, key, decode_kept)


def keep_model(
    cache: Cache, key: str, model: CpuHardware | GpuHardware, sources: str = ""
) -> None:  # fmt: skip
    """Keep a model under `key`, completed from `sources`, for this process and others."""
    document = to_document(model)
    if sources:
        document[_SOURCES] = sources
    cache.write(HARDWARE, key, json.dumps(document, indent=1).encode())
