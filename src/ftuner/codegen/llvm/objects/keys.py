"""The keys of compiled objects on disk: hashes of everything that decides an object.

That is the bundle, the target and the compiler: llvmlite, LLVM and ftuner's code generator. The
code generator is every module that the compiler imports, directly or indirectly, as found in the
sources at each start. Any edit of such a module changes the keys.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from importlib import resources
from typing import Protocol

from ftuner.codegen.llvm.objects.bundle import Bundle
from ftuner.codegen.llvm.objects.jit import Target, compiler_version

COMPILER_MODULE = "ftuner.codegen.llvm.objects.compile"
"""Imported by name when something is compiled, so that a warm start does not load it."""
_MENTION = re.compile(
    rb"ftuner((?:\.\w+)*)(?:[ \t]+import[ \t]*(\((?:[^)#]|#[^\n]*)*|(?:\\\r?\n|[^\n])*))?"
)
"""A dotted name in `ftuner`, and the names that an import statement takes from it. The pattern
begins with literal text, which makes the search fast."""
_WORD = re.compile(rb"\w+")


class Folder(Protocol):
    """A path, or a path within an archive."""

    def joinpath(self, inner: str, /) -> Folder: ...

    def read_bytes(self) -> bytes: ...


def bundle_key(bundle: Bundle, target: Target) -> str:
    """The key of a bundle's object. It never depends on a shape."""
    text = repr((bundle, target, compiler_version(), generator_digest()))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@lru_cache(maxsize=1)
def generator_digest() -> str:
    """A hash of the sources of all modules that the compiler imports: objects of another code
    generator are not found."""
    return digest_of(sources_of(COMPILER_MODULE, resources.files("ftuner")))


def digest_of(sources: dict[str, bytes]) -> str:
    """A hash of modules' names and sources."""
    digest = hashlib.sha256()
    for name, source in sorted(sources.items()):
        digest.update(b"%s %d\n" % (name.encode(), len(source)))
        digest.update(source)
    return digest.hexdigest()


def sources_of(module: str, package: Folder) -> dict[str, bytes]:
    """The sources of an ftuner module and of all ftuner modules that it imports, by name.

    Parsing would take a hundred times as long as a text search. So each dotted name of ftuner in a
    source counts as an import: a docstring may add a module, but none is missed. Imports must be
    absolute, as in all of ftuner.

    Args:
        module: The full name.
        package: The folder of `ftuner`.

    Raises:
        FileNotFoundError: the module has no source.
    """
    found: dict[str, bytes] = {}
    seen = {"ftuner"}
    packages = {"ftuner"}
    left = [(module, b"")]
    while left:
        name, taken = left.pop()
        if name not in seen:
            seen.add(name)
            inner = "/".join(name.split(".")[1:])
            source = _read(package.joinpath(f"{inner}.py"))
            if source is None:
                source = _read(package.joinpath(f"{inner}/__init__.py"))
                if source is not None:
                    packages.add(name)
            if source is not None:
                found[name] = source
                left += [(f"ftuner{n.decode()}", t) for n, t in set(_MENTION.findall(source))]
        if name in packages:
            # Submodules, or names that its `__init__` hands on.
            left += [(f"{name}.{word.decode()}", b"") for word in _WORD.findall(taken)]
    if module not in found:
        raise FileNotFoundError(f"{package} has no source of {module}")
    return found


def _read(file: Folder) -> bytes | None:
    try:
        return file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
