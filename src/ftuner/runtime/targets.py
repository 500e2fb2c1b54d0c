"""What code is generated for on this machine: asked of LLVM once, then kept in the cache."""

from __future__ import annotations

import json
import logging

from ftuner.codegen.llvm.bundle import generator_digest
from ftuner.codegen.llvm.jit import Target, compiler_version, host_target
from ftuner.hardware.system import read_system
from ftuner.runtime.cache import Cache

log = logging.getLogger(__name__)
TARGETS = "targets"
"""Kind of cache entry."""


def known_target(isa: str, cache: Cache) -> Target:
    """The target of an ISA of this machine; LLVM is loaded only if the cache does not know it."""
    facts = read_system()
    if not facts.features:
        # Nothing would tell this machine from another one that shares the cache.
        return host_target(isa)
    key = f"{facts.fingerprint}-{isa}-{compiler_version()}-{generator_digest()[:16]}.json"
    data = cache.read(TARGETS, key)
    if data is not None:
        try:
            return Target(**json.loads(data))
        except (TypeError, ValueError) as error:
            log.warning("the target kept for %s is not usable: %s", isa, error)
    found = host_target(isa)
    cache.write(TARGETS, key, json.dumps(vars(found)).encode())
    return found
