"""The options of sessions and of runs, with onnxruntime's names, defaults and types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from difflib import get_close_matches
from operator import gt, index
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, overload

import numpy as np

from ftuner.ort.description import Array
from ftuner.ort.enumerations import ExecutionMode, ExecutionOrder, GraphOptimizationLevel
from ftuner.ort.exceptions import ArgumentError, ArgumentTypeError, refuse, refusing
from ftuner.ort.values import OrtValue, expect_value

MAX_KEY, MAX_VALUE = 1024, 8192
"""Most characters of a configuration entry; onnxruntime's."""
OWN = "ftuner."
"""What keys of configuration entries begin with that onnxruntime does not have."""
APPEND_IN_PLACE = f"{OWN}append_in_place"
UNPAD = f"{OWN}unpad"
DATA_FOLDER = "session.model_external_initializers_file_folder_path"
"""The key of the folder of data outside the model file."""
FLAGS = {"0": False, "1": True}
_INT_BITS = 31
T = TypeVar("T")
Bytes = bytes | bytearray | memoryview | Array


class Setting(Generic[T]):
    """A property of options that takes values of one type."""

    def __init__(self, default: T) -> None:
        self.default = default

    def __set_name__(self, owner: type[Options], name: str) -> None:
        self.name = name

    @overload
    def __get__(self, options: None, owner: type[Options]) -> Setting[T]: ...
    @overload
    def __get__(self, options: Options, owner: type[Options]) -> T: ...
    def __get__(self, options: Options | None, owner: type[Options]) -> T | Setting[T]:
        if options is None:
            return self
        found: T = options.settings.get(self.name, self.default)
        return found

    def __set__(self, options: Options, value: T) -> None:
        options.settings[self.name] = _taken(value, self.default, f"{type(options).__name__}."
                                             f"{self.name}")  # fmt: skip


def _taken(value: object, default: object, what: str) -> object:
    """A value as the type of a default.

    Raises:
        ArgumentTypeError: it is of another type, or outside the range of 32 bits.
    """
    kind = type(default)
    if kind is bool and (value is None or isinstance(value, int)):
        return bool(value)
    if kind is int:
        try:
            found = index(value)  # type: ignore[arg-type]
        except TypeError:
            raise _wrong(value, kind, what) from None
        if -(1 << _INT_BITS) <= found < 1 << _INT_BITS:
            return found
        raise ArgumentTypeError(f"{what} is {found}; expected an integer of 32 bits")
    if isinstance(value, kind):
        return value
    raise _wrong(value, kind, what)


def _wrong(value: object, kind: type, what: str) -> ArgumentTypeError:
    return ArgumentTypeError(
        f"{what} is {value!r} of type {type(value).__name__}; expected {kind.__name__}"
    )


class Options:
    """Properties that are `Setting`s, and entries of text under keys of any name."""

    __slots__ = ("_entries", "settings")

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        """Values of the properties that were set."""
        self._entries: dict[str, str] = {}

    def __setattr__(self, name: str, value: object) -> None:
        if not hasattr(type(self), name):
            known = [n for n, found in vars(type(self)).items() if isinstance(found, Setting)]
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}; {hint}")
        super().__setattr__(name, value)

    def _add_entry(self, key: str, value: str) -> None:
        for what, text in (("key", key), ("value", value)):
            if not isinstance(text, str):
                raise _wrong(text, str, f"the {what} of a configuration entry")
        if not 0 < len(key) <= MAX_KEY or len(value) > MAX_VALUE:
            raise ArgumentError(
                f"a configuration entry has {len(key)} and {len(value)} characters; its key has 1 "
                f"to {MAX_KEY}, its value at most {MAX_VALUE}"
            )
        self._entries[key] = value

    def _entry(self, key: str) -> str:
        try:
            return self._entries[key]
        except KeyError:
            raise ArgumentError(
                f"{type(self).__name__} has no configuration entry {key!r}; there are "
                f"{', '.join(self._entries) or 'none'}"
            ) from None


@dataclass
class Given:
    """What a session is given by calls."""

    extents: dict[str, int] = field(default_factory=dict)
    """Extents of named dims of the model's inputs."""
    providers: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Execution providers with their options."""
    weights: dict[str, OrtValue] = field(default_factory=dict)
    """Values in the place of initialisers."""
    external: set[str] = field(default_factory=set)
    """Names of `weights` that must be initialisers of the model."""
    files: dict[str, Array] = field(default_factory=dict)
    """The bytes of files of data outside the model file, by location."""


@refusing
class SessionOptions(Options):
    """Options of a session. `docs/onnxruntime.md` says which have an effect."""

    __slots__ = ("_given",)

    enable_cpu_mem_arena = Setting(True)
    enable_mem_pattern = Setting(True)
    enable_mem_reuse = Setting(True)
    enable_profiling = Setting(False)
    execution_mode = Setting(ExecutionMode.ORT_SEQUENTIAL)
    execution_order = Setting(ExecutionOrder.DEFAULT)
    graph_optimization_level = Setting(GraphOptimizationLevel.ORT_ENABLE_ALL)
    inter_op_num_threads = Setting(0)
    intra_op_num_threads = Setting(0)
    """Threads of a run, the caller's included; 0 or less for those of the process."""
    log_severity_level = Setting(-1)
    log_verbosity_level = Setting(0)
    logid = Setting("")
    optimized_model_filepath = Setting("")
    profile_file_prefix = Setting("onnxruntime_profile_")
    use_deterministic_compute = Setting(False)
    use_per_session_threads = Setting(True)

    def __init__(self) -> None:
        super().__init__()
        self._given = Given()

    @property
    def append_in_place(self) -> bool:
        """Whether outputs append to inputs in place, as of `ftuner.load`."""
        return FLAGS[self._entries.get(APPEND_IN_PLACE, "0")]

    @property
    def unpad(self) -> Literal["auto"] | None:
        """Whether runs leave out the padding of batches, as of `ftuner.load`."""
        return "auto" if FLAGS[self._entries.get(UNPAD, "0")] else None

    @property
    def folder(self) -> Path | None:
        """The folder of data outside the model file, if it is not the model's."""
        found = self._entries.get(DATA_FOLDER)
        return Path(found) if found else None

    def copied(self) -> SessionOptions:
        """A copy of the options, which later changes of these do not change. Values are shared."""
        found = SessionOptions()
        found.settings, found._entries = copy(self.settings), copy(self._entries)
        found._given = Given(*map(copy, vars(self._given).values()))
        return found

    def add_session_config_entry(self, key: str, value: str, /) -> None:
        """Keep a text under a key. Three keys have an effect: "ftuner.append_in_place" with "1"
        has outputs on a CPU append to inputs in place, "ftuner.unpad" with "1" leaves out the
        padding of batches, both as of `ftuner.load`, and `DATA_FOLDER` names the folder of data
        outside the model file.

        Raises:
            ArgumentTypeError, ArgumentError: no texts, an empty key, or too many characters; a key
                that begins with "ftuner." and is another, or a value that is neither "0" nor "1".
        """
        if isinstance(key, str) and key.startswith(OWN) and isinstance(value, str):
            if key not in (APPEND_IN_PLACE, UNPAD):
                raise ArgumentError(f"there is no configuration entry {key!r}; ftuner's own are "
                                    f"{APPEND_IN_PLACE!r} and {UNPAD!r}")  # fmt: skip
            if value not in FLAGS:
                raise ArgumentError(f"{key} is {value!r}; expected one of {', '.join(FLAGS)}")
        self._add_entry(key, value)

    def get_session_config_entry(self, key: str, /) -> str:
        """The text under a key. Raises ArgumentError if there is none."""
        return self._entry(key)

    def add_free_dimension_override_by_name(self, name: str, extent: int, /) -> None:
        """Give a named dim of the model's inputs an extent."""
        self._given.extents[name] = index(extent)

    def add_provider(self, name: str, options: Mapping[str, str], /) -> None:
        """Add an execution provider, for sessions that are made without `providers`."""
        self._given.providers.append((name, dict(options)))

    def has_providers(self) -> bool:
        """Whether `add_provider` was called."""
        return bool(self._given.providers)

    def add_initializer(self, name: str, value: OrtValue, /) -> None:
        """Give a value in the place of an initialiser. A model without it ignores the value.

        Raises:
            ArgumentTypeError: no OrtValue.
        """
        self._given.weights[name] = expect_value(value)

    def add_external_initializers(
        self, names: Sequence[str], values: Sequence[OrtValue], /
    ) -> None:
        """Give values in the place of initialisers, such as those in files beside the model.

        Raises:
            ArgumentError: more names than values, or fewer.
            ArgumentTypeError: no OrtValues.
        """
        if len(names) != len(values):
            raise ArgumentError(f"{len(names)} names and {len(values)} values; expected a value "
                                "for each name")  # fmt: skip
        self._given.weights.update((n, expect_value(v)) for n, v in zip(names, values, strict=True))
        self._given.external.update(names)

    def add_external_initializers_from_files_in_memory(
        self, names: Sequence[str], buffers: Sequence[Bytes], lengths: Sequence[int], /
    ) -> None:
        """Give the contents of files of data outside the model file, by the locations that it has
        for them.

        Raises:
            ArgumentError: other numbers of names, buffers and lengths; a buffer that is shorter.
        """
        held = [np.frombuffer(bytes(buffer), np.uint8) for buffer in buffers]
        sizes = [len(found) for found in held]
        if not len(names) == len(sizes) == len(lengths) or any(map(gt, lengths, sizes)):
            raise ArgumentError(
                f"{len(names)} names, lengths {[*lengths]}, and buffers of {sizes} bytes; expected "
                "a buffer and its length for each name"
            )
        self._given.files.update(
            (n, x[:size]) for n, x, size in zip(names, held, lengths, strict=True)
        )

    def set_load_cancellation_flag(self, cancel: bool, /) -> None:
        if cancel:
            refuse("SessionOptions.set_load_cancellation_flag")

    def clear_ep_context_data_read_func(self) -> None:
        """Forget the function of `set_ep_context_data_read_func`: there is none."""


@refusing
class RunOptions(Options):
    """Options of a run. Only `terminate` has an effect."""

    __slots__ = ()

    log_severity_level = Setting(-1)
    log_verbosity_level = Setting(0)
    logid = Setting("")
    only_execute_path_to_fetches = Setting(False)
    terminate = Setting(False)
    """Runs with these options that have not begun are refused."""

    def add_run_config_entry(self, key: str, value: str, /) -> None:
        """Keep a text under a key. No key has an effect.

        Raises:
            ArgumentTypeError, ArgumentError: as `SessionOptions.add_session_config_entry`.
        """
        self._add_entry(key, value)

    def get_run_config_entry(self, key: str, /) -> str:
        """The text under a key. Raises ArgumentError if there is none."""
        return self._entry(key)
