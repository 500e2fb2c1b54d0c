"""Hardware models in the cache: a device is probed once."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ftuner.hardware.recorded import to_document
from ftuner.runtime.cache import HARDWARE, Cache

if TYPE_CHECKING:
    from ftuner.hardware.gpu_model import GpuHardware
    from ftuner.hardware.model import CpuHardware

_Model = TypeVar("_Model", "CpuHardware", "GpuHardware")


def known_or_probed(
    cache: Cache, key: str, decode: Callable[[Any], _Model], probe: Callable[[], _Model],
    again: bool,
) -> _Model:  # fmt: skip
    """The hardware model under `key` in the cache, or the one that `probe` makes, which is kept.

    `decode` makes a model of a document, or raises a HardwareError if the document is not a model
    of this device. `again` probes even if the cache has the model.
    """
    if not again:
        kept = cache.read_document(HARDWARE, key, decode)
        if kept is not None:
            return kept
    found = probe()
    cache.write(HARDWARE, key, json.dumps(to_document(found), indent=1).encode())
    return found
