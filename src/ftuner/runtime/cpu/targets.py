"""Targets of code generation on this machine: queried from LLVM once, then kept in the cache."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from ftuner.codegen.llvm.objects.jit import Target, compiler_build, compiler_version, host_target
from ftuner.codegen.llvm.objects.keys import generator_digest
from ftuner.hardware.isa import InstructionSet, instruction_set
from ftuner.hardware.system import ARCHITECTURES, read_system
from ftuner.runtime.cache import TARGETS, Cache


def known_target(isa: str, cache: Cache) -> Target:
    """The target of an ISA of this machine; LLVM is loaded only if the cache does not know it."""
    facts = read_system()
    if not facts.features:
        # Without features, machines that share the cache could not be distinguished.
        return host_target(isa)
    row = instruction_set(isa)
    asked = repr((row, compiler_version(), compiler_build(), generator_digest()))
    key = f"{facts.fingerprint}-{isa}-{hashlib.sha256(asked.encode()).hexdigest()[:32]}.json"
    kept = cache.read_document(
        TARGETS, key, lambda document: _target_of(document, row, facts.architecture)
    )
    if kept is not None:
        return kept
    found = host_target(isa)
    cache.write(TARGETS, key, json.dumps(vars(found)).encode())
    return found


def _target_of(document: Any, isa: InstructionSet, architecture: str) -> Target:
    """The target in a document. Raises TypeError or ValueError if it is not one of the ISA."""
    found = Target(**document)
    if not all(isinstance(text, str) for text in vars(found).values()):
        raise TypeError(f"{found}; expected strings")
    if ARCHITECTURES.get(found.triple.partition("-")[0].lower()) != architecture:
        raise ValueError(f"the triple is {found.triple!r}; this machine is {architecture}")
    if not found.llvm:
        raise ValueError("no version of LLVM")
    missing = set(isa.features.split(",")) - set(found.features.split(","))
    if missing:
        raise ValueError(f"the features lack {', '.join(sorted(missing))} for {isa.name}")
    return found
