"""Inputs of a model, from files or random; its outputs, described and saved."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from ftuner.errors import ConfigurationError, FTunerError, InputError, ShapeError

if TYPE_CHECKING:
    from ftuner.frontends.onnx.records import ModelRecord
    from ftuner.runtime.model import TensorSpec

Array = npt.NDArray[Any]
Shapes = dict[str, tuple[int, ...]]
"""Shapes of inputs by name."""

SEED = 0
"""Seed of random inputs: two runs of a command use the same values."""

_EXTENTS = re.compile(r"(\d+(x\d+)*)?")


def parsed_files(options: Iterable[str]) -> dict[str, Path]:
    """Paths from options of the form `name=file.npy`.

    Raises:
        ConfigurationError: another syntax, or a name given twice.
    """
    found: dict[str, Path] = {}
    for text in options:
        name, sign, path = text.partition("=")
        if not (name and sign and path):
            raise ConfigurationError(f"--input is {text!r}; expected name=file.npy")
        if name in found:
            raise ConfigurationError(f"--input gives {name} twice")
        found[name] = Path(path)
    return found


def parsed_shapes(options: Iterable[str], option: str = "--shape") -> Shapes:
    """Shapes from options of the form `name=1x77`, or several of these separated by commas; `name=`
    is a scalar.

    Raises:
        ConfigurationError: another syntax, or a name given twice.
    """
    found: Shapes = {}
    for text in (part.strip() for option in options for part in option.split(",")):
        name, sign, extents = text.rpartition("=")
        if not (name and sign and _EXTENTS.fullmatch(extents)):
            raise ConfigurationError(
                f"{option} is {text!r}; expected name=1x77, extents with x between them"
            )
        if name in found:
            raise ConfigurationError(f"{option} gives {name} twice")
        found[name] = tuple(int(n) for n in extents.split("x") if n)
    return found


def specs_of(record: ModelRecord) -> list[TensorSpec]:
    """The inputs of a file, with a name for each dim that has no number."""
    from ftuner.core.dim import Names
    from ftuner.frontends.onnx.importer import shape_of
    from ftuner.runtime.model import ANY_RANK, TensorSpec

    names = Names()
    return [
        TensorSpec(
            v.name, v.dtype.name,
            ANY_RANK if v.dims is None
            else tuple(d if isinstance(d, int) else str(d) for d in shape_of(v, names)),
        )
        for v in record.inputs
    ]  # fmt: skip


def all_shapes(
    specs: Sequence[TensorSpec], given: Mapping[str, Sequence[int]], option: str = "--shape"
) -> Shapes:
    """The shapes of all inputs: the given ones, and those that follow from them. `option`: gives
    them, for messages.

    Raises:
        InputError: an unknown name, another number of axes, or extents that do not follow.
        ShapeError: extents that contradict the model.
    """
    from ftuner.runtime.model import ANY_RANK

    known = {spec.name: spec for spec in specs}
    unknown = [name for name in given if name not in known]
    if unknown:
        raise InputError(f"no input {', '.join(unknown)}; there are {', '.join(known)}")
    extents: dict[str, set[int]] = {}
    for name, shape in given.items():
        dims = known[name].shape
        if dims == ANY_RANK:
            continue
        what = f"input {name} was given {_text(shape)}; the model takes {_text(dims)}"
        if len(shape) != len(dims):
            raise InputError(what)
        for dim, extent in zip(dims, shape, strict=True):
            if isinstance(dim, str):
                extents.setdefault(dim, set()).add(extent)
            elif dim != extent:
                raise ShapeError(what)
    # Axes of one name that were given several extents say nothing of others.
    settled = {dim: found.pop() for dim, found in extents.items() if len(found) == 1}
    found: Shapes = {name: tuple(shape) for name, shape in given.items()}
    for spec in specs:
        if spec.name in found:
            continue
        missing = [d for d in spec.shape if isinstance(d, str) and d not in settled]
        if missing:
            raise InputError(
                f"unknown extents {', '.join(missing)} of input {spec.name}, which is "
                f"{_text(spec.shape)}; give them, such as {option} {spec.name}={_example(spec)}"
            )
        found[spec.name] = tuple(d if isinstance(d, int) else settled[d] for d in spec.shape)
    return {spec.name: found[spec.name] for spec in specs}


def _example(spec: TensorSpec) -> str:
    """A shape of the input as options give it."""
    return "x".join(str(n) if isinstance(n, int) else "1" for n in spec.shape)


def random_inputs(
    specs: Sequence[TensorSpec], shapes: Mapping[str, Sequence[int]], seed: int = SEED
) -> dict[str, Array]:
    """Random arrays for inputs of known extents: normal floats; integers and booleans are 0 or 1,
    which every model accepts as indices and masks."""
    rng = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for spec in specs:
        shape = tuple(shapes[spec.name])
        try:
            dtype = np.dtype(spec.dtype)
        except TypeError:
            raise ConfigurationError(
                f"input {spec.name} is {spec.dtype}, for which NumPy has no type; call the model "
                "with tensors"
            ) from None
        try:
            if dtype.kind in "biu":
                found[spec.name] = rng.integers(0, 2, shape, np.int8).astype(dtype)
            else:
                found[spec.name] = np.asarray(rng.standard_normal(shape, np.float32), dtype)
        except (MemoryError, ValueError) as error:
            raise ConfigurationError(f"input {spec.name} of {_text(shape)}: {error}") from error
    return found


def gathered_inputs(
    specs: Sequence[TensorSpec], inputs: Iterable[str] | None, shapes: Iterable[str] | None
) -> dict[str, Array]:
    """Arrays for all inputs from the options `--input` and `--shape`.

    Raises:
        ConfigurationError: a malformed option.
        InputError: a file that cannot be read, or inputs that are missing or unknown.
        ShapeError: extents that contradict the model.
    """
    files, given = parsed_files(inputs or ()), parsed_shapes(shapes or ())
    twice = [name for name in files if name in given]
    if twice:
        raise ConfigurationError(f"{', '.join(twice)}: give --input or --shape, not both")
    arrays = {name: read_array(name, path) for name, path in files.items()}
    extents = all_shapes(specs, given | {name: x.shape for name, x in arrays.items()})
    made = random_inputs([s for s in specs if s.name not in arrays], extents)
    return {spec.name: (arrays | made)[spec.name] for spec in specs}


def read_array(name: str, path: Path) -> Array:
    """The array of a .npy file. Files with pickled objects are not read.

    Raises:
        InputError: the file cannot be read, or is not such an array.
    """
    with _reading(f"input {name}", path, ".npy"):
        found = np.load(path, allow_pickle=False)
    if not isinstance(found, np.ndarray):
        raise InputError(f"input {name}: {path} holds several arrays; expected a .npy file")
    return found


def read_samples(path: Path) -> Iterator[dict[str, Array]]:
    """The inputs of runs: the arrays by name of a .npz file, or of each in a folder, in the order
    of their names.

    Raises:
        InputError: a file cannot be read, or is not such a file; there is none.
    """
    files = sorted(path.glob("*.npz")) if path.is_dir() else [path]
    if not files:
        raise InputError(f"samples: there is no .npz file in {path}")
    for file in files:
        with _reading("samples", file, ".npz"):
            found = np.load(file, allow_pickle=False)
            if isinstance(found, np.ndarray):
                raise InputError(f"samples: {file} holds one array; expected a .npz file")
            with found:
                arrays = dict(found)
        yield arrays


@contextmanager
def _reading(what: str, path: Path, kind: str) -> Iterator[None]:
    """Names the errors of NumPy's reader."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{what}: cannot read {path}: {error.strerror or error}") from error
    except FTunerError:
        raise
    except (ValueError, EOFError, MemoryError, BadZipFile) as error:
        raise InputError(f"{what}: {path} is not a {kind} file of numbers") from error


def description(name: str, x: Array) -> dict[str, Any]:
    """An output's name, dtype, shape, least, mean and greatest value; None if not finite."""
    values = x.astype(np.float64)
    found: dict[str, float | None] = dict.fromkeys(("min", "mean", "max"))
    if x.size:
        for what, value in (("min", values.min()), ("mean", values.mean()), ("max", values.max())):
            found[what] = float(value) if np.isfinite(value) else None
    return {"name": name, "dtype": x.dtype.name, "shape": list(x.shape), **found}


def save(names: Sequence[str], arrays: Sequence[Array], folder: Path) -> dict[str, Path]:
    """Write each output to a file of its name. Characters that a file name should not have are
    quoted as in URLs: `/` is `%2F`.

    Raises:
        ConfigurationError: the folder or a file cannot be written.
    """
    files = {name: folder / f"{quote(name, safe='')}.npy" for name in names}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, x in zip(names, arrays, strict=True):
            np.save(files[name], x)
    except OSError as error:
        raise ConfigurationError(f"cannot write {error.filename}: {error.strerror}") from error
    return files


def _text(shape: Sequence[int | str]) -> str:
    return f"[{', '.join(map(str, shape))}]"
