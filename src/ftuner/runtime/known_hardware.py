"""Hardware models in the cache, with learned corrections: a device is probed once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ftuner.cost.cpu.correction_features import COVER_FEATURES, KINDS, SHARE_FEATURES
from ftuner.errors import DatasetError
from ftuner.hardware.correction import SCHEMA, LearnedCorrection, from_document
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.recorded import to_document
from ftuner.runtime.cache import CORRECTIONS, HARDWARE, Cache

if TYPE_CHECKING:
    from ftuner.hardware.gpu_model import GpuHardware

_Model = TypeVar("_Model", "CpuHardware", "GpuHardware")

_SOURCES = "sources"
"""Entry of a kept document: what a model was completed from."""
_CALIBRATION = ".calibration"
"""Ends the key of what is known of a model's calibration."""


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
    kept = read_kept(cache, key, decode)
    if kept is None:
        return None
    found, completed_from = kept
    if completed_from != sources:
        found = complete(found)
        keep_model(cache, key, found, sources)
    return found


def read_kept(cache: Cache, key: str, decode: Callable[[Any], _Model]) -> tuple[_Model, str] | None:
    """The model under `key` as it is kept, and what it was completed from; None if there is none.
    Nothing is completed or written."""

    def decode_kept(document: Any) -> tuple[_Model, str]:
        if not isinstance(document, Mapping):
            return decode(document), ""
        rest = {name: value for name, value in document.items() if name != _SOURCES}
        return decode(rest), str(document.get(_SOURCES, ""))

    return cache.read_document(HARDWARE, key, decode_kept)


class KeptCalibration(NamedTuple):
    """When and how a kept model was calibrated."""

    at_s: float
    """Seconds since the epoch."""
    slow_share: float
    noisy: bool
    """As of `Calibration`."""


def keep_calibration(cache: Cache, key: str, found: KeptCalibration) -> None:
    """Keep what is known of the calibration of the model under `key`."""
    cache.write(HARDWARE, key + _CALIBRATION, json.dumps(found._asdict()).encode())


def kept_calibration(cache: Cache, key: str) -> KeptCalibration | None:
    """What is known of the calibration of the model under `key`; None if it is not."""

    def decode(document: Any) -> KeptCalibration:
        at_s, slow_share, noisy = (document[name] for name in KeptCalibration._fields)
        return KeptCalibration(float(at_s), float(slow_share), bool(noisy))

    return cache.read_document(HARDWARE, key + _CALIBRATION, decode)


def keep_model(cache: Cache, key: str, model: CpuHardware | GpuHardware, sources: str = "") -> None:
    """Keep a model under `key`, completed from `sources`, for this process and others."""
    document = to_document(model)
    if sources:
        document[_SOURCES] = sources
    cache.write(HARDWARE, key, json.dumps(document, indent=1).encode())


def corrected(cache: Cache, hardware: CpuHardware) -> CpuHardware:
    """The machine with the correction that the cache has for it and its tuning, if any. One that is
    damaged is dropped with a CacheWarning."""

    def decode(document: Any) -> LearnedCorrection:
        return _checked(from_document(document), hardware)

    found = cache.read_document(CORRECTIONS, _key(hardware), decode)
    return hardware if found == hardware.correction else replace(hardware, correction=found)


def keep(cache: Cache, hardware: CpuHardware, learned: LearnedCorrection) -> CpuHardware:
    """Keep a correction for the estimates of a machine with its present tuning; returns the machine
    with it.

    Raises:
        DatasetError: the correction is of another machine, or of other features.
    """
    payload = json.dumps(_checked(learned, hardware).to_document()).encode()
    cache.write(CORRECTIONS, _key(hardware), payload)
    return replace(hardware, correction=learned)


def forget(cache: Cache, hardware: CpuHardware) -> CpuHardware:
    """Remove the correction of a machine; returns the machine without it."""
    cache.drop(CORRECTIONS, _key(hardware))
    return replace(hardware, correction=None)


def _key(hardware: CpuHardware) -> str:
    """Names all that the corrected estimates depend on: errors of another tuning are others."""
    return f"{hardware.fingerprint}-{SCHEMA}-{hardware.tuning.digest}.json"


def _checked(learned: LearnedCorrection, hardware: CpuHardware) -> LearnedCorrection:
    if learned.fingerprint != hardware.fingerprint:
        raise DatasetError(
            f"a correction of the machine {learned.fingerprint}; expected {hardware.fingerprint}"
        )
    found = (learned.kinds, learned.share.names, learned.cover.names)
    if found != (KINDS, SHARE_FEATURES, COVER_FEATURES):
        raise DatasetError("a correction of other features; learn it again with this version")
    return learned
