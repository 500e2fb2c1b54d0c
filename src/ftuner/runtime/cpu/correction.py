"""The learned correction of this machine's estimates in the cache, beside its hardware model."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

from ftuner.cost.cpu.correction_features import COVER_FEATURES, KINDS, SHARE_FEATURES
from ftuner.errors import DatasetError
from ftuner.hardware.constants import constants
from ftuner.hardware.correction import SCHEMA, LearnedCorrection, from_document
from ftuner.hardware.model import CpuHardware
from ftuner.runtime.cache import CORRECTIONS, Cache


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
    tuning = [(name, getattr(hardware.tuning, name)) for name in constants(hardware.tuning)]
    of_tuning = hashlib.sha256(repr(tuning).encode()).hexdigest()[:8]
    return f"{hardware.fingerprint}-{SCHEMA}-{of_tuning}.json"


def _checked(learned: LearnedCorrection, hardware: CpuHardware) -> LearnedCorrection:
    if learned.fingerprint != hardware.fingerprint:
        raise DatasetError(
            f"a correction of the machine {learned.fingerprint}; expected {hardware.fingerprint}"
        )
    found = (learned.kinds, learned.share.names, learned.cover.names)
    if found != (KINDS, SHARE_FEATURES, COVER_FEATURES):
        raise DatasetError("a correction of other features; learn it again with this version")
    return learned
