"""Errors: what onnxruntime raises in a case is what ftuner.ort raises, with a message that says
what was given and what was expected."""

import builtins
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as their_state
from tests.ort import models
from tests.ort.scripts import CPU, feeds, session_of

import ftuner.ort
from ftuner.errors import FTunerError
from ftuner.ort.capi import onnxruntime_pybind11_state as own_state

Case = Callable[[Any, Path], object]
"""Takes a module and an empty folder."""


def loaded(content: bytes, name: str = "model.onnx") -> Case:
    def case(ort: Any, folder: Path) -> object:
        (folder / name).write_bytes(content)
        return ort.InferenceSession(str(folder / name), providers=CPU)

    return case


def given(source: Any) -> Case:
    return lambda ort, folder: ort.InferenceSession(source, providers=CPU)


def ran(**changed: Any) -> Case:
    """A run with some inputs changed; those that are `...` are left out."""

    def case(ort: Any, folder: Path) -> object:
        found = {**feeds(), **changed}
        return session_of(ort).run(None, {n: x for n, x in found.items() if x is not ...})

    return case


def bound(**changed: Any) -> Case:
    def case(ort: Any, folder: Path) -> object:
        session = session_of(ort)
        binding = session.io_binding()
        for name, x in {**feeds(), **changed}.items():
            if x is not ...:
                binding.bind_cpu_input(name, x)
        binding.bind_output("z")
        return session.run_with_iobinding(binding)

    return case


def bound_to(value: Callable[[Any], Any], name: str = "z") -> Case:
    def case(ort: Any, folder: Path) -> object:
        session = session_of(ort)
        binding = session.io_binding()
        for known, x in feeds().items():
            binding.bind_cpu_input(known, x)
        binding.bind_ortvalue_output(name, value(ort))
        return session.run_with_iobinding(binding)

    return case


def option(name: str, value: Any) -> Case:
    return lambda ort, folder: setattr(ort.SessionOptions(), name, value)


def weighted(names: list[str], *arrays: Any) -> Case:
    def case(ort: Any, folder: Path) -> object:
        options = ort.SessionOptions()
        # onnxruntime does not keep them alive.
        values = [ort.OrtValue.ortvalue_from_numpy(x) for x in arrays]
        options.add_external_initializers(names, values)
        return session_of(ort, models.with_weight_outside(), sess_options=options), values

    return case


def override(**weight: Any) -> Case:
    data = models.scaled_sum(overridable=True)
    return lambda ort, folder: session_of(ort, data).run(None, {**feeds(), **weight})


def terminated(ort: Any, folder: Path) -> object:
    options = ort.RunOptions()
    options.terminate = True
    return session_of(ort).run(None, feeds(), options)


def other_session(ort: Any, folder: Path) -> object:
    binding = session_of(ort).io_binding()
    binding.bind_output("z")
    return session_of(ort).run_with_iobinding(binding)


def without_outputs(ort: Any, folder: Path) -> object:
    session = session_of(ort)
    binding = session.io_binding()
    for name, x in feeds().items():
        binding.bind_cpu_input(name, x)
    return session.run_with_iobinding(binding)


def value_of(x: Any, *device: Any) -> Case:
    return lambda ort, folder: ort.OrtValue.ortvalue_from_numpy(x, *device)


def entry(key: Any, value: Any) -> Case:
    return lambda ort, folder: ort.SessionOptions().add_session_config_entry(key, value)


WHOLE = models.scaled_sum()
X = feeds()["x"]
CASES: dict[str, tuple[Case, str]] = {
    # Files.
    "missing file": (given("nowhere.onnx"), "nowhere.onnx.*no such file.*working folder"),
    "folder": (lambda ort, folder: ort.InferenceSession(folder), "is a folder; expected a file"),
    "text file": (loaded(b"a text\n" * 20, "model.txt"), "model.txt: not an ONNX model"),
    "truncated file": (loaded(WHOLE[:-20]), "model.onnx: not an ONNX model, or not all of one"),
    "empty file": (loaded(b""), "not an ONNX model: it has no graph"),
    "empty bytes": (given(b""), "0 bytes: not an ONNX model: it has no graph"),
    "truncated bytes": (given(WHOLE[:-20]), "bytes: not an ONNX model, or not all of one"),
    "bytes of a text": (given(b"hello world hello"), "17 bytes: not an ONNX model"),
    "empty path": (given(""), "an empty text; expected the path of a file, or its bytes"),
    "None as a source": (given(None), "a NoneType; expected the path of a file, or its bytes"),
    "number as a source": (given(3), "a int; expected the path of a file, or its bytes"),
    "bytearray": (given(bytearray(WHOLE)), "a bytearray; expected the path of a file"),
    "unknown operator": (given(models.of_node("Nope")), "Nope"),
    "unknown domain": (given(models.of_node("Nope", domain="org.other")), "org.other.Nope"),
    "too few operands": (given(models.of_node("Add")), "1 input; at least 2"),
    "unknown operand": (given(models.of_node("Add", "x, q")), "nothing gives its input 'q'"),
    # Runs.
    "missing input": (ran(y=...), r"missing: 'y', a tensor\(float\) of shape \[batch, 3\]"),
    "unknown input": (ran(q=X), "inputs are 'x', 'y'; unknown: 'q'"),
    "wrong name": (ran(y=..., Y=X), "missing: 'y'.*unknown: 'Y'"),
    "unknown output": (
        lambda ort, folder: session_of(ort).run(["no"], feeds()),
        "no output 'no'; its outputs are z, shape",
    ),
    "text for names": (
        lambda ort, folder: session_of(ort).run("z", feeds()), "output_names is 'z'; expected None",
    ),
    "numbers for names": (
        lambda ort, folder: session_of(ort).run([3], feeds()), r"output_names is \[3\]; expected",
    ),
    "integers": (ran(x=X.astype(np.int64)), r"has the element type tensor\(int64\); the model"),
    "float64": (ran(x=X.astype(np.float64)), r"tensor\(double\); the model takes tensor\(float\)"),
    "too few axes": (ran(x=X[0]), r"1 axes, shape \[3\]; the model takes 2, \[batch, 3\]"),
    "too many axes": (ran(x=X[None]), r"3 axes, shape \[1, 2, 3\]; the model takes 2"),
    "wrong extent": (ran(x=np.ones((2, 4), "f")), "4 elements along axis 1.*the model takes 3"),
    "contradicting extents": (ran(x=np.ones((5, 3), "f")), "batch is 5 elsewhere"),
    "None": (ran(x=None), "input 'x' is None; the model takes"),
    "text": (ran(x="abc"), "input 'x' is a str; the model takes.*give a NumPy array"),
    "number": (ran(x=3.0), "input 'x' is a float; the model takes"),
    "tuple": (ran(x=((1.0, 2.0, 3.0),)), "input 'x' is a tuple; the model takes"),
    "ragged list": (ran(x=[[1, 2], [3.0]]), "input 'x' is a list that is no tensor of float32"),
    "list of texts": (ran(x=[["a", "b", "c"]]), "input 'x' is a list that is no tensor"),
    "empty list": (ran(x=[]), r"1 axes, shape \[0\]; the model takes 2"),
    "array of texts": (ran(x=np.array([["a", "b", "c"]])), r"tensor\(string\); the model takes"),
    "array of objects": (ran(x=np.array([[1.0, 2, 3]], object)), r"tensor\(string\)"),
    "initialiser of another type": (override(weight=np.ones(3, np.int64)), r"tensor\(int64\)"),
    "initialiser of another shape": (override(weight=np.ones(2, "f")), "2 elements along axis 0"),
    "constant as an input": (ran(weight=np.ones(3, "f")), "unknown: 'weight'"),
    "index out of range": (
        lambda ort, folder: session_of(ort, models.gathered()).run(
            None, {"x": np.ones(3, "f"), "i": np.array([7, 0])}
        ),
        "an index is out of range",
    ),
    "other run options": (
        lambda ort, folder: session_of(ort).run(None, feeds(), 3), "run_options is a int; expected",
    ),
    "terminated": (terminated, "terminate of its options is True"),
    # Values.
    "value of a list": (value_of([1, 2]), "a list was given; expected a NumPy array"),
    "value of texts": (value_of(np.array(["a"])), "tensors do not have elements of str"),
    "value of complex numbers": (value_of(np.ones(1, np.complex64)), "elements of complex64"),
    "unknown device": (value_of(X, "abacus", 0), "no device is called 'abacus'; expected cpu"),
    "number of no element type": (
        lambda ort, folder: ort.OrtValue.ortvalue_from_numpy_with_onnx_type(X, 99),
        "no element type has the number 99",
    ),
    "elements of another size": (
        lambda ort, folder: ort.OrtValue.ortvalue_from_numpy_with_onnx_type(X, 16),
        r"elements of 4 bytes; tensor\(bfloat16\) has 2",
    ),
    "negative extents": (
        lambda ort, folder: ort.OrtValue.ortvalue_from_shape_and_type([-2, 3], np.float32),
        r"shape is \[-2, 3\]; extents are not negative",
    ),
    "update of another size": (
        lambda ort, folder: ort.OrtValue.ortvalue_from_numpy(X.copy()).update_inplace(X[:1]),
        r"shape \[1, 3\] was given for a value.*\[2, 3\]",
    ),
    "update by a list": (
        lambda ort, folder: ort.OrtValue.ortvalue_from_numpy(X.copy()).update_inplace([1]),
        "data is a list; expected a NumPy array or an OrtValue",
    ),
    # Bindings.
    "binding of an unknown input": (bound(q=X), "the model has no input 'q'; it has x, y"),
    "binding of a list": (bound(x=[[1.0, 2, 3]]), "a list was given; expected a NumPy array"),
    "binding of None": (bound(x=None), "a NoneType was given; expected a NumPy array"),
    "binding of float64": (bound(x=X.astype(np.float64)), r"tensor\(double\); the model takes"),
    "binding of another extent": (bound(x=np.ones((2, 4), "f")), "4 elements along axis 1"),
    "binding without an input": (bound(y=...), "missing: 'y'"),
    "no bound output": (
        without_outputs,
        "no output is bound; bind_output binds one of z, shape",
    ),
    "bound to another shape": (
        bound_to(lambda ort: ort.OrtValue.ortvalue_from_shape_and_type([2, 4], np.float32)),
        r"output 'z' has the shape \[2, 3\]; it is bound to memory of shape \[2, 4\]",
    ),
    "bound to another type": (
        bound_to(lambda ort: ort.OrtValue.ortvalue_from_shape_and_type([2, 3], np.int64)),
        r"tensor\(float\) of shape \[2, 3\] was given for a value that is tensor\(int64\)",
    ),
    "bound to an unknown output": (
        bound_to(lambda ort: ort.OrtValue.ortvalue_from_numpy(X.copy()), "no"), "no output 'no'",
    ),
    "address without a shape": (
        lambda ort, folder: session_of(ort).io_binding().bind_output("z", buffer_ptr=4096),
        "output 'z' is bound to the address 0x1000; give element_type and shape",
    ),
    "binding of another session": (other_session, "belongs to another session"),
    # Options.
    "text for threads": (option("intra_op_num_threads", "2"), "is '2' of type str; expected int"),
    "fraction for threads": (option("intra_op_num_threads", 2.5), "is 2.5 of type float"),
    "too many threads": (option("intra_op_num_threads", 1 << 40), "expected an integer of 32 bits"),
    "number for a level": (
        option("graph_optimization_level", 99), "is 99 of type int; expected Graph",
    ),
    "path for a text": (option("profile_file_prefix", Path("x")), "expected str"),
    "text for a switch": (option("enable_profiling", "a"), "is 'a' of type str; expected bool"),
    "misspelt option": (option("intra_op_num_thread", 2), "did you mean intra_op_num_threads?"),
    "unknown option": (option("colour", 2), "no attribute 'colour'; there are enable"),
    "misspelt option of a run": (
        lambda ort, folder: setattr(ort.RunOptions(), "termnate", True), "did you mean terminate?",
    ),
    "other options": (lambda ort, folder: ort.InferenceSession(WHOLE, 3), "sess_options is a int"),
    "number for an entry": (entry("a", 3), "the value of a configuration entry is 3 of type int"),
    "empty key": (entry("", "3"), "its key has 1 to 1024"),
    "no such entry": (
        lambda ort, folder: ort.SessionOptions().get_session_config_entry("a"),
        "no configuration entry 'a'; there are none",
    ),
    "no such entry of a run": (
        lambda ort, folder: ort.RunOptions().get_run_config_entry("a"), "no configuration entry",
    ),
    "weight of another shape": (
        weighted(["weight"], np.ones(2, "f")),
        r"float32\[3\] in the file; float32\[2\] was given in its place",
    ),
    "weight of another type": (
        weighted(["weight"], np.ones(3)), r"float32\[3\] in the file; float64\[3\] was given",
    ),
    "weight of no initialiser": (
        weighted(["weight", "no"], *[np.ones(3, "f")] * 2), "the model has no initialiser 'no'",
    ),
    "fewer weights than names": (
        weighted(["weight", "no"], np.ones(3, "f")), "2 names and 1 values; expected a value for",
    ),
    "fewer files than names": (
        lambda ort, folder: ort.SessionOptions().add_external_initializers_from_files_in_memory(
            ["a", "b"], [b"12"], [2]
        ),
        r"2 names, lengths \[2\], and buffers of \[2\] bytes; expected a buffer",
    ),
    "severity out of range": (
        lambda ort, folder: ort.set_default_logger_severity(9), "severity is 9; expected 0",
    ),
    "text for a severity": (
        lambda ort, folder: ort.set_default_logger_severity("a"), "severity is 'a'",
    ),
    "text for a seed": (lambda ort, folder: ort.set_seed("a"), "seed is 'a'; expected an integer"),
    "unknown provider without a fallback": (
        lambda ort, folder: ort.InferenceSession(WHOLE, providers=["Nope"], enable_fallback=0),
        "no provider is called 'Nope'; available are CPUExecutionProvider",
    ),
    "providers of another type": (
        lambda ort, folder: ort.InferenceSession(WHOLE, providers=[3], enable_fallback=0),
        "a provider is 3; expected a name",
    ),
    "fewer options than providers": (
        lambda ort, folder: ort.InferenceSession(
            WHOLE, providers=CPU, provider_options=[{}, {}], enable_fallback=0
        ),
        "expected a mapping for each name",
    ),
}  # fmt: skip


def own_class(theirs: type[BaseException]) -> type[BaseException]:
    """The class that stands for one that onnxruntime raises: of the same name, if it is one of its
    own, else itself. What it raises as plain `Exception` stands for any."""
    if theirs.__module__ == their_state.__name__:
        found: type[BaseException] = getattr(own_state, theirs.__name__)
        return found
    assert getattr(builtins, theirs.__name__) is theirs
    return theirs


@pytest.mark.filterwarnings("ignore:.*(provider|Provider)")
@pytest.mark.parametrize("name", CASES)
def test_the_same_errors(name: str, tmp_path: Path) -> None:
    case, message = CASES[name]
    for folder in ("theirs", "own"):
        (tmp_path / folder).mkdir()
    with pytest.raises(Exception) as theirs:
        case(onnxruntime, tmp_path / "theirs")
    with pytest.raises(own_class(theirs.type), match=message) as own:
        case(ftuner.ort, tmp_path / "own")
    # A misspelt attribute is Python's own error.
    assert isinstance(own.value, (FTunerError, AttributeError))


def test_a_missing_file_is_pythons_error_as_well() -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        ftuner.ort.InferenceSession("nowhere.onnx")
    with pytest.raises(FileNotFoundError, match="no such file"):
        ftuner.load("nowhere.onnx")


def test_exceptions_are_all_there_and_ours() -> None:
    theirs, own = (
        {n: x for n, x in vars(state).items() if isinstance(x, type) and issubclass(x, Exception)}
        for state in (their_state, own_state)
    )
    assert theirs.keys() == own.keys()
    assert all(issubclass(x, FTunerError) for x in own.values())


def test_errors_are_remembered_by_their_cause() -> None:
    """The error of ftuner's own is the cause of the one that onnxruntime's users know."""
    with pytest.raises(own_state.InvalidGraph) as caught:
        ftuner.ort.InferenceSession(models.of_node("Nope"))
    assert isinstance(caught.value.__cause__, ftuner.UnsupportedOperatorError)


def test_what_is_lacking_is_not_malformed() -> None:
    """Element types that no tensor of ftuner has, and outputs that are sequences."""
    of_complex = models.model_of("(complex64[n] x) => (complex64[n] y) { y = Identity(x) }")
    of_sequence = models.model_of("(float[n] x) => (seq(float[]) y) { y = SequenceConstruct(x) }")
    for data in (of_complex, of_sequence):
        with pytest.raises(own_state.NotImplemented, match="is not supported"):
            ftuner.ort.InferenceSession(data)
