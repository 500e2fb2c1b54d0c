"""The keys of compiled objects on disk: hashes of everything that decides an object.

That is the bundle, scalar functions from outside ftuner, the target, the compiler (llvmlite and
LLVM) and the code generator: every module that emitters and `objects.compile` import, directly or
indirectly, as found in the sources at each start. Any edit of such a module changes the key.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from typing import NamedTuple, Protocol

from ftuner.codegen.llvm.objects.bundle import Bundle
from ftuner.codegen.llvm.objects.jit import Target, compiler_version

log = logging.getLogger(__name__)
COMPILER_MODULE = "ftuner.codegen.llvm.objects.compile"
"""Imported by name when something is compiled, so that a warm start does not load it."""
_WORD = re.compile(rb"\w+")


class Folder(Protocol):
    """A path, or a path within an archive."""

    def joinpath(self, inner: str, /) -> Folder: ...

    def read_bytes(self) -> bytes: ...


class _Module(NamedTuple):
    digest: bytes
    """A hash of its source."""
    imports: frozenset[tuple[str, bytes]]
    """Modules, and the names that an import statement takes from each."""
    is_package: bool


class Sources:
    """The sources of ftuner and of emitters outside it, each read once.

    Imports are found by a text search, because parsing would take a hundred times as long. Each
    dotted name that begins with the package of the module, or with ftuner, counts as an import: a
    docstring may add a module, but none is missed. Imports must be absolute, as in all of ftuner.
    """

    def __init__(self, package: Folder) -> None:
        """`package`: the folder of ftuner."""
        self._package = package
        self._modules: dict[str, _Module | None] = {}

    def digest(self, *modules: str) -> str:
        """A hash of the sources of modules, given by their full names, and of all that they import
        from their own packages and from ftuner.

        Raises:
            FileNotFoundError: a module has no source.
        """
        digest = hashlib.sha256()
        for name, found in sorted(self.imported(*modules).items()):
            digest.update(name.encode() + found)
        return digest.hexdigest()

    def imported(self, *modules: str) -> dict[str, bytes]:
        """The modules that `digest` covers, and a hash of each."""
        digests: dict[str, bytes] = {}
        seen: set[str] = set()
        left = [(module, b"") for module in modules]
        while left:
            name, taken = left.pop()
            module = self._module(name)
            if module is None:
                continue
            if name not in seen:
                seen.add(name)
                digests[name] = module.digest
                left += module.imports
            if module.is_package:
                # Submodules, or names that its `__init__` hands on.
                left += [(f"{name}.{word.decode()}", b"") for word in _WORD.findall(taken)]
        for name in modules:
            if name not in digests:
                raise FileNotFoundError(f"there is no source of {name}")
        return digests

    def _module(self, name: str) -> _Module | None:
        if name not in self._modules:
            self._modules[name] = self._read(name)
        return self._modules[name]

    def _read(self, name: str) -> _Module | None:
        root, *inner = name.split(".")
        if root != "ftuner":
            found = _source_outside(name)
        elif inner:
            found = self._source("/".join(inner))
        else:
            # Its `__init__` imports all of ftuner for users.
            found = b"", True
        if found is None:
            return None
        source, is_package = found
        imports = frozenset(
            (text.decode(), taken)
            for pattern in {_mentions("ftuner"), _mentions(root)}
            for text, taken in pattern.findall(source)
        )
        return _Module(hashlib.sha256(source).digest(), imports, is_package)

    def _source(self, path: str) -> tuple[bytes, bool] | None:
        """The source of a module of ftuner, and whether it is a package."""
        for suffix, is_package in ((".py", False), ("/__init__.py", True)):
            try:
                return self._package.joinpath(f"{path}{suffix}").read_bytes(), is_package
            except (FileNotFoundError, NotADirectoryError):
                pass
        return None


@cache
def _mentions(root: str) -> re.Pattern[bytes]:
    """Finds each dotted name in a package, and the names that an import statement takes from it.
    The pattern begins with literal text, which makes the search fast."""
    return re.compile(
        rb"(%s(?:\.\w+)*)(?:[ \t]+import[ \t]*(\((?:[^)#]|#[^\n]*)*|(?:\\\r?\n|[^\n])*))?"
        % root.encode()
    )


def _source_outside(name: str) -> tuple[bytes, bool] | None:
    """The source of a module outside ftuner, and whether it is a package."""
    try:
        spec = find_spec(name)
    except ModuleNotFoundError:
        return None
    if spec is None:
        return None
    source = b""
    if isinstance(spec.loader, SourceFileLoader):
        source = spec.loader.get_data(spec.loader.path)
    return source, spec.submodule_search_locations is not None


@cache
def _installed() -> Sources:
    from importlib import resources  # Here, because a model that is kept compiles nothing.

    return Sources(resources.files("ftuner"))


@cache
def generator_digest(*emitters: str) -> str:
    """A hash of the sources of the compiler and of some emitters: objects of another code generator
    are not found. A program frozen without sources finds those of its own process alone."""
    try:
        return _installed().digest(COMPILER_MODULE, *emitters)
    except FileNotFoundError as error:
        log.warning("%s: the machine code of this process is not found by others", error)
        return os.urandom(16).hex()


def bundle_key(bundle: Bundle, target: Target) -> str:
    """The key of a bundle's object. It never depends on a shape."""
    generator = generator_digest(*bundle.modules)
    text = repr((bundle, bundle.functions, target, compiler_version(), generator))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
