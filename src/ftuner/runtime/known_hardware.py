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

    Args:
        decode: makes a model of a document, or raises a HardwareError if the document is not a
            model of this device.
        again: probe even if the cache has the model.
        complete: adds to a model what is not measured on the device; a model that was completed
            from other `sources` is completed anew, and what was measured stays.
    """

    kept = None if again else _kept(cache, key, decode)
    if kept is not None and kept[1] == sources:
        return kept[0]
    found = complete(probe() if kept is None else kept[0])
    keep_model(cache, key, found, sources)
    return found


def kept_model(cache: Cache, key: str, decode: Callable[[Any], _Model]) -> _Model | None:
    """The hardware model under `key` in the cache, if there is one, as it was kept."""
    found = _kept(cache, key, decode)
    return None if found is None else found[0]


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
