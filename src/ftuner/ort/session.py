"""Sessions: models with the interface of `onnxruntime.InferenceSession`."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from importlib import import_module
from pathlib import Path
from typing import Any

from ftuner.core.fork_safety import fork_safe_lock
from ftuner.errors import FTunerError, InputError, ShapeError, UnsupportedOperatorError
from ftuner.frontends.onnx.records import ModelMetadata, ModelRecord
from ftuner.inference import model_of_file
from ftuner.ort.binding import IOBinding
from ftuner.ort.description import NodeArg, described
from ftuner.ort.exceptions import ArgumentError, ArgumentTypeError, Fail, refusing, translated
from ftuner.ort.feeds import usable
from ftuner.ort.options import RunOptions, SessionOptions
from ftuner.ort.process import random_seed
from ftuner.ort.profiling import Profile
from ftuner.ort.providers import Chosen, Given, chosen
from ftuner.ort.values import OrtValue
from ftuner.runtime.devices import CPU
from ftuner.runtime.model import Model
from ftuner.runtime.request import Request

Feeds = Mapping[str, object]
Callback = Callable[[list[Any], object, str], None]
"""Takes the outputs of a run, what the caller passed along, and the text of an error or nothing."""


@refusing
class InferenceSession:
    """A model from a file, compiled for inputs of any extents. Safe to use from several threads."""

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str],
        sess_options: SessionOptions | None = None,
        providers: Given | None = None,
        provider_options: Sequence[Mapping[str, object]] | None = None,
        **kwargs: object,
    ) -> None:
        """Compile a model.

        Args:
            path_or_bytes: the path of a file in ONNX's or onnxruntime's format, or its bytes.
            providers: where it runs, best first: `CUDAExecutionProvider` is the GPU back end of
                ftuner. By default the CPU.
            provider_options: a mapping for each of `providers`: `device_id` of CUDA.
            kwargs: `enable_fallback=0` raises instead of using the CPU where `providers` are
                malformed or unknown, or the GPU lacks an operator. Others have no effect.

        Raises:
            ArgumentTypeError: neither a path nor bytes; options of another type.
            NoSuchFile, InvalidProtobuf, MalformedModel: there is no such file, it is no ONNX
                model, or one that breaks a rule of ONNX.
            UnsupportedModel: operators that ftuner does not have; the message lists all of them.
            ConfigurationError: the extra `onnx` is not installed, or more threads than 1024.
        """
        if not isinstance(path_or_bytes, (str, bytes, os.PathLike)) or path_or_bytes == "":
            what = "an empty text" if path_or_bytes == "" else f"a {type(path_or_bytes).__name__}"
            raise ArgumentTypeError(
                f"cannot load a model from {what}; expected the path of a file, or its bytes"
            )
        if not isinstance(sess_options, SessionOptions | None):
            raise ArgumentTypeError(
                f"sess_options is a {type(sess_options).__name__}; expected SessionOptions of this "
                f"module, {SessionOptions.__module__.rpartition('.')[0]}"
            )
        self._model_bytes = path_or_bytes if isinstance(path_or_bytes, bytes) else None
        # Of the same name as in onnxruntime: optimum reads it.
        self._model_path = None if isinstance(path_or_bytes, bytes) else os.fspath(path_or_bytes)
        self._options = (sess_options or SessionOptions()).copied()
        if self._options.optimized_model_filepath:
            _copy_model(path_or_bytes, self._options.optimized_model_filepath)
        self._fallback = bool(int(str(kwargs.get("enable_fallback", 1))))
        self._seed = random_seed()
        self._profile = (
            Profile(self._options.profile_file_prefix) if self._options.enable_profiling else None
        )
        self._load(providers or self._options._given.providers or None, provider_options)

    def _load(
        self, providers: Given | None, options: Sequence[Mapping[str, object]] | None
    ) -> None:
        """Compile the model for the device that is chosen by these."""
        began = time.monotonic_ns()
        try:
            picked = chosen(providers, options)
        except ArgumentError as error:
            if not self._fallback:
                raise
            warnings.warn(f"{error}; the CPU is used instead", stacklevel=3)
            picked = Chosen()
        try:
            try:
                header, model = self._compiled(picked)
            except UnsupportedOperatorError as error:
                if picked.device == CPU or not self._fallback:
                    raise
                warnings.warn(f"{error}; the CPU is used instead", stacklevel=3)
                picked = Chosen()
                header, model = self._compiled(picked)
        except FTunerError as error:
            raise translated(error) from error
        self._chosen, self._model = picked, model
        self._described = described(header, self._model.outputs)
        # Of the same names as in onnxruntime: programs read them instead of calling the getters.
        self._inputs_meta, self._outputs_meta = self._described.inputs, self._described.outputs
        self._model_meta = header.metadata
        self._overridable = frozenset(arg.name for arg in self._described.overridable)
        self._overriding: dict[frozenset[str], Model] = {}
        self._lock = fork_safe_lock()
        self._note("session_initialization", began)

    def _read(self) -> ModelRecord:
        source = self._model_path if self._model_bytes is None else self._model_bytes
        assert source is not None
        options, given = self._options, self._options._given
        weights = {name: value.numpy() for name, value in given.weights.items()}
        # By name: what the cache has of a file is loaded without.
        importer = import_module("ftuner.frontends.onnx.importer")
        record: ModelRecord = importer.read_model(source, weights, options.folder, given.files)
        unknown = given.external - record.graph.constants.keys()
        if unknown:
            raise ArgumentError(
                f"the model has no initialiser {', '.join(map(repr, sorted(unknown)))}, of which "
                "add_external_initializers gives a value"
            )
        return record.with_extents(given.extents)

    def _compiled(
        self, picked: Chosen, inputs: AbstractSet[str] = frozenset()
    ) -> tuple[ModelRecord, Model]:
        """What the file declares, and its model. `inputs`: initialisers that are given to it."""
        threads = self._options.intra_op_num_threads
        append = self._options.append_in_place and picked.device == CPU
        request = Request(
            threads if threads > 0 else None, device=picked.device, append_in_place=append,
            random_seed=self._seed, unpad=self._options.unpad,
        )  # fmt: skip
        given = self._options._given
        # The cache keeps models of files alone, with the data that they name.
        elsewhere = given.weights or given.files or self._options.folder
        path = None if elsewhere or self._model_path is None else os.path.abspath(self._model_path)
        # Without these the model is that of `load`.
        asked = (sorted(given.extents.items()), sorted(inputs)) if given.extents or inputs else ()
        model, header = model_of_file(
            lambda: self._read().with_inputs(inputs), request, path, given=asked
        )
        if request.unpad and model.padding_kept:
            warnings.warn(f"padding is computed: {model.padding_kept}", stacklevel=4)
        return header(), model

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Feeds,
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Run the model on arrays by name; returns the named outputs, or all, in order.

        Args:
            input_feed: for each input an array, an `OrtValue`, or a list of numbers. Initialisers
                of `get_overridable_initializers` may be given as well.

        Raises:
            InvalidArgument: missing or unknown names, or another element type or number of axes.
            ArgumentError: a value that is no array, extents that contradict the model, or an index
                in the data that is out of range.
            ArgumentTypeError: no mapping, no list of names, or no `RunOptions`.
            Fail: `terminate` of the options is set.
        """
        began = time.monotonic_ns()
        if run_options is not None:
            _expect_going_on(run_options)
        found = self._selected(output_names, self._results(input_feed))
        self._note("model_run", began)
        return found

    def _results(self, feeds: Feeds) -> list[Any]:
        """All outputs. Only feeds that the model does not take as they are need a second look."""
        known = type(feeds) is dict or isinstance(feeds, Mapping)
        if not known or not self._overridable.isdisjoint(feeds):
            return self._looked_at(feeds)
        try:
            return self._ran(self._model, feeds)
        except (InputError, ShapeError):
            return self._looked_at(feeds)
        except FTunerError as error:
            raise translated(error) from error

    def _looked_at(self, feeds: Feeds) -> list[Any]:
        """All outputs, of feeds that are converted to what the model takes or are refused."""
        taken = usable(feeds, self._described.inputs, self._described.overridable)
        names = self._overridable.intersection(taken)
        try:
            return self._ran(self._overridden(names) if names else self._model, taken)
        except FTunerError as error:
            raise translated(error) from error

    def _ran(self, model: Model, feeds: Feeds) -> list[Any]:
        profile = self._profile
        if profile is None:
            return model.run(feeds)
        return model.run_noted(feeds, profile.steps(self.get_providers()[0]))

    def _overridden(self, names: frozenset[str]) -> Model:
        """The model in which these initialisers are inputs; compiled by the first run with them."""
        with self._lock:
            found = self._overriding.get(names)
            if found is None:
                _, found = self._compiled(self._chosen, names)
                self._overriding[names] = found
            return found

    def _selected(self, names: Sequence[str] | None, results: list[Any]) -> list[Any]:
        if names is None or (not isinstance(names, str) and not len(names)):
            return results
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise ArgumentTypeError(
                f"output_names is {names!r}; expected None or a list of names, of "
                f"{', '.join(arg.name for arg in self._described.outputs)}"
            )
        known = {arg.name: x for arg, x in zip(self._described.outputs, results, strict=True)}
        self.expect_outputs(names)
        return [known[name] for name in names]

    def expect_outputs(self, names: Iterable[str]) -> None:
        """Raises ArgumentError unless the model has outputs of these names."""
        known = [arg.name for arg in self._described.outputs]
        unknown = [repr(name) for name in names if name not in known]
        if unknown:
            raise ArgumentError(
                f"the model has no output {', '.join(unknown)}; its outputs are {', '.join(known)}"
            )

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """Like `run`, with values for arrays. On a GPU, outputs stay there.

        Raises:
            ArgumentTypeError: a value is no OrtValue.
            InvalidArgument, ArgumentError, Fail: as `run`.
        """
        for name, value in input_dict_ort_values.items():
            if not isinstance(value, OrtValue):
                raise ArgumentTypeError(
                    f"input {name!r} is a {type(value).__name__}; expected an OrtValue: "
                    "OrtValue.ortvalue_from_numpy makes one"
                )
        feeds = {name: value.held() for name, value in input_dict_ort_values.items()}
        return [OrtValue(x) for x in self.run(output_names, feeds, run_options)]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Feeds,
        callback: Callback,
        user_data: object,
        run_options: RunOptions | None = None,
    ) -> None:
        """Like `run`, in a thread of its own, which calls `callback(outputs, user_data, error)`.
        `error` is empty, or the text of an error, without outputs.

        Raises:
            InvalidArgument, ArgumentTypeError: inputs are missing or unknown; no callable.
        """
        if not callable(callback):
            raise ArgumentTypeError(
                f"callback is a {type(callback).__name__}; expected a function of the outputs, "
                "user_data and the text of an error"
            )
        taken = usable(input_feed, self._described.inputs, self._described.overridable)

        def work() -> None:
            try:
                found = self.run(output_names, taken, run_options)
            except FTunerError as error:
                callback([], user_data, str(error))
            else:
                callback(found, user_data, "")

        threading.Thread(target=work, name="ftuner-run-async", daemon=True).start()

    def io_binding(self) -> IOBinding:
        """Inputs and outputs of a run that are bound to memory before it."""
        return IOBinding(self)

    def run_with_iobinding(
        self, iobinding: IOBinding, run_options: RunOptions | None = None
    ) -> None:
        """Run on bound inputs into bound outputs.

        Raises:
            ArgumentTypeError: no IOBinding.
            ArgumentError: it belongs to another session, inputs are missing, no output is bound, or
                memory does not have the type or shape of the input or output that it is bound to.
            Fail: `terminate` of the options is set.
        """
        if not isinstance(iobinding, IOBinding):
            raise ArgumentTypeError(
                f"iobinding is a {type(iobinding).__name__}; io_binding() of the session makes one"
            )
        if iobinding.session is not self:
            raise ArgumentError(
                "the binding belongs to another session; io_binding() of this one makes one"
            )
        if run_options is not None:
            _expect_going_on(run_options)
        began = time.monotonic_ns()
        iobinding.run(self._results)
        self._note("model_run", began)

    def get_inputs(self) -> list[NodeArg]:
        return self._inputs_meta

    def get_outputs(self) -> list[NodeArg]:
        return self._outputs_meta

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Initialisers that a run may be given other values of, as if they were inputs."""
        return self._described.overridable

    def get_modelmeta(self) -> ModelMetadata:
        return self._model_meta

    def get_session_options(self) -> SessionOptions:
        """The options of the session, as they were when it was made."""
        return self._options

    def get_providers(self) -> list[str]:
        return list(self._chosen.options)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Options by the names of the providers that are used."""
        return self._chosen.options

    def set_providers(
        self, providers: Given | None = None,
        provider_options: Sequence[Mapping[str, object]] | None = None,
    ) -> None:  # fmt: skip
        """Compile the model again, for other providers; see the constructor."""
        self._load(providers, provider_options)

    @property
    def appended(self) -> dict[str, str]:
        """The outputs that are computed in the memory of an input, by the name of the input."""
        return self._model.appended

    @property
    def device(self) -> int | None:
        """The number of the GPU that the session computes on, or None for the CPU."""
        name = self._chosen.device
        return None if name == CPU else int(name.rpartition(":")[2])

    def enable_fallback(self) -> None:
        """Use the CPU where providers cannot be used."""
        self._fallback = True

    def disable_fallback(self) -> None:
        """Raise where providers cannot be used."""
        self._fallback = False

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: object, device_type: str, device_id: int = 0,
        vendor_id: int = -1,
    ) -> OrtValue:  # fmt: skip
        """Like `OrtValue.ortvalue_from_shape_and_type`."""
        return OrtValue.ortvalue_from_shape_and_type(
            shape, element_type, device_type, device_id, vendor_id
        )

    def end_profiling(self) -> str:
        """Write the profile; returns the name of its file, or nothing if `enable_profiling` of the
        options is not set."""
        profile, self._profile = self._profile, None
        return "" if profile is None else profile.written()

    def get_profiling_start_time_ns(self) -> int:
        """When profiling began, by `time.monotonic_ns`; 0 if it did not."""
        profile = self._profile
        return 0 if profile is None else profile.start_ns

    def get_tuning_results(self) -> list[dict[str, object]]:
        """Nothing: ftuner keeps what it measures in its cache folder; see `ftuner.tune`."""
        return []

    def set_tuning_results(
        self, results: Sequence[object], *, error_on_invalid: bool = False
    ) -> None:
        """Take what `get_tuning_results` returned: nothing."""
        if results:
            raise ArgumentError(
                "results are given; expected none, as `get_tuning_results` returns: ftuner keeps "
                "what it measures in its cache folder"
            )

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """No option has an effect."""

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Nothing is captured under a number."""

    def _note(self, what: str, began_ns: int) -> None:
        profile = self._profile
        if profile is not None:
            profile.add(what, began_ns)


def _copy_model(model: str | bytes | os.PathLike[str], path: str) -> None:
    """Write a model where onnxruntime writes its optimised form, which programs read again.

    Raises:
        Fail: the file cannot be written.
    """
    warnings.warn(
        f"{path} is a copy of the model as it was given: what ftuner optimises has no form as an "
        "ONNX file",
        stacklevel=3,
    )
    try:
        data = model if isinstance(model, bytes) else Path(model).read_bytes()
        Path(path).write_bytes(data)
    except OSError as error:
        raise Fail(f"optimized_model_filepath is {path!r}: {error.strerror or error}") from error


def _expect_going_on(options: RunOptions) -> None:
    if not isinstance(options, RunOptions):
        raise ArgumentTypeError(
            f"run_options is a {type(options).__name__}; expected RunOptions or None"
        )
    if options.terminate:
        raise Fail("the run is refused: terminate of its options is True; set it to False")
