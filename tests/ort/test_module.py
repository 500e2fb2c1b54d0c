"""What ftuner.ort does that onnxruntime does not, or does otherwise."""

import ctypes
import logging
import os
import re
import warnings
from functools import partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from tests.at_once import at_once
from tests.child import printed
from tests.frontends.onnx_models import parsed
from tests.ort import member_table, models
from tests.ort.scripts import CPU, feeds, session_of
from tests.ort.test_scripts import expect_same
from tests.serving.test_unpadding import encoder_bytes

import ftuner
import ftuner.ort
from ftuner.ort.capi.onnxruntime_pybind11_state import NotImplemented as Refused
from ftuner.ort.exceptions import REASONS
from ftuner.ort.process import SUBMODULES
from ftuner.ort.transformers.io_binding_helper import TypeHelper
from ftuner.runtime.cpu.backend import CpuBackend

SOURCES = Path(ftuner.__file__).parent.parent


def test_the_page_is_current() -> None:
    text = member_table.PATH.read_text(encoding="utf-8")
    if f"onnxruntime {onnxruntime.__version__}" not in text:
        pytest.skip("the page is of another release of onnxruntime")
    assert text == member_table.page(), "run python -m tests.ort.member_table"


def test_reasons_are_those_of_members() -> None:
    found = {m.name: m.status for m in member_table.members()}
    left_out = {name for name, status in found.items() if status != member_table.THERE}
    assert left_out == set(REASONS)
    for name in member_table.WITHOUT_EFFECT:
        assert found[name] == member_table.THERE, name


@pytest.mark.parametrize("name", [name for name in REASONS if "." not in name])
def test_absent_names_say_why(name: str) -> None:
    with pytest.raises(AttributeError, match="has no attribute") as caught:
        getattr(ftuner.ort, name)
    assert REASONS[name] in str(caught.value)


def test_refused_members_say_why() -> None:
    """Each is called with as many arguments as it has parameters."""
    made = {
        "InferenceSession": session_of(ftuner.ort), "OrtValue": ftuner.ort.OrtValue,
        "SessionOptions": ftuner.ort.SessionOptions(), "RunOptions": ftuner.ort.RunOptions(),
    }  # fmt: skip
    for name in [name for name in REASONS if "." in name]:
        owner, _, part = name.partition(".")
        function = getattr(made[owner], part)
        call = partial(function, *[made[owner]] * len(signature(function).parameters))
        with pytest.raises(Refused, match=re.escape(REASONS[name])):
            call()


def test_the_names_of_ftuner_itself() -> None:
    assert ftuner.InferenceSession is ftuner.ort.InferenceSession
    assert ftuner.SessionOptions is ftuner.ort.SessionOptions
    for name in ftuner.ort.__all__:
        assert getattr(ftuner.ort, name) is not None


def test_arrays_of_the_other_byte_order() -> None:
    """Their elements are taken. onnxruntime takes their bytes as they are."""
    session, given = session_of(ftuner.ort), feeds()
    swapped = {name: x.astype(x.dtype.newbyteorder()) for name, x in given.items()}
    expect_same(session.run(None, swapped), session.run(None, given))
    value = ftuner.ort.OrtValue.ortvalue_from_numpy(swapped["x"])
    expect_same(value.numpy(), given["x"])


def test_torch_tensors_and_lists_for_initialisers() -> None:
    torch = pytest.importorskip("torch")
    session = session_of(ftuner.ort, models.scaled_sum(overridable=True))
    given = {name: torch.from_numpy(x) for name, x in feeds().items()}
    (found,) = session.run(["z"], {**given, "weight": [2, 2, 2]})
    expect_same(found, 2 * (feeds()["x"] + feeds()["y"]))
    binding = session.io_binding()
    for name, x in {**feeds(), "weight": np.full(3, 4, np.float32)}.items():
        binding.bind_cpu_input(name, x)
    binding.bind_output("z")
    session.run_with_iobinding(binding)
    expect_same(binding.copy_outputs_to_cpu(), [4 * (feeds()["x"] + feeds()["y"])])


def test_arrays_of_bfloat16() -> None:
    x = np.arange(3).astype(pytest.importorskip("ml_dtypes").bfloat16)
    session = session_of(ftuner.ort, models.identity(16))
    held = ftuner.ort.OrtValue.ortvalue_from_numpy_with_onnx_type(x.view(np.uint16), 16)
    assert held.numpy().dtype == x.dtype
    for given in (x, held):
        (found,) = session.run(None, {"x": given})
        assert found.dtype == x.dtype
        assert found.tolist() == [0, 1, 2]


def test_values_in_memory_that_cannot_be_written() -> None:
    value = ftuner.ort.OrtValue.ortvalue_from_numpy(np.broadcast_to(np.float32(1), (2, 3)))
    value.update_inplace(np.zeros((2, 3), np.float32))
    fixed = np.ones(3, np.float32)
    fixed.flags.writeable = False
    value = ftuner.ort.OrtValue.ortvalue_from_numpy(fixed)
    with pytest.raises(RuntimeError, match="read-only memory; make it from a copy"):
        value.update_inplace(np.zeros(3, np.float32))


def test_runs_from_several_threads() -> None:
    session = session_of(ftuner.ort, models.scaled_sum(overridable=True))
    found: dict[int, list[Any]] = {}

    def work(number: int) -> None:
        weight = np.full(3, number, np.float32)
        for _ in range(20):
            found[number] = session.run(["z"], {**feeds(number), "weight": weight})

    at_once(*(partial(work, number) for number in range(1, 5)))
    for number in range(1, 5):
        given = feeds(number)
        expect_same(found[number], [number * (given["x"] + given["y"])])


def test_threads_of_the_process(as_default: CpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftuner.api.default_backend", lambda: as_default)
    ftuner.ort.set_global_thread_pool_sizes(2, 1)
    assert ftuner.get_num_threads() == 2
    ftuner.ort.set_global_thread_pool_sizes()
    assert ftuner.get_num_threads() == 2


def test_severity_is_the_level_of_the_loggers() -> None:
    logger = logging.getLogger("ftuner")
    before = logger.level
    try:
        ftuner.ort.set_default_logger_severity(1)
        assert logger.level == logging.INFO
    finally:
        logger.setLevel(before)


@pytest.mark.filterwarnings("ignore:provider 'Nope'")
def test_providers_that_are_not_there() -> None:
    with pytest.warns(UserWarning, match="provider 'DmlExecutionProvider' is not available"):
        session = ftuner.ort.InferenceSession(
            models.scaled_sum(), providers=["DmlExecutionProvider", *CPU]
        )
    assert session.get_providers() == CPU
    with pytest.warns(UserWarning, match="'Nope'.*the CPU is used instead"):
        ftuner.ort.InferenceSession(models.scaled_sum(), providers=["Nope"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ftuner.ort.InferenceSession(models.scaled_sum(), providers=CPU)


def test_tuning_results_of_another_library() -> None:
    session = session_of(ftuner.ort)
    session.set_tuning_results(session.get_tuning_results())
    with pytest.raises(RuntimeError, match="results are given; expected none"):
        session.set_tuning_results([{"ep": "CPUExecutionProvider"}])


def test_options_are_those_at_the_start() -> None:
    options = ftuner.ort.SessionOptions()
    options.add_session_config_entry("a", "b")
    session = session_of(ftuner.ort, sess_options=options)
    options.logid = "later"
    options.add_session_config_entry("a", "c")
    kept = session.get_session_options()
    assert (kept.logid, kept.get_session_config_entry("a")) == ("", "b")


def appending_session(value: str | None) -> Any:
    options = ftuner.ort.SessionOptions()
    if value is not None:
        options.add_session_config_entry("ftuner.append_in_place", value)
    return ftuner.ort.InferenceSession(models.decoder(), options)


def with_arrays(session: Any, past: Any, new: Any) -> Any:
    return session.run(["present"], {"past": past, "new": new})[0]


def with_values(session: Any, past: Any, new: Any) -> Any:
    value = ftuner.ort.OrtValue.ortvalue_from_numpy
    past = value(past) if isinstance(past, np.ndarray) else past
    return session.run_with_ort_values(["present"], {"past": past, "new": value(new)})[0]


def with_binding(session: Any, past: Any, new: Any) -> Any:
    binding = session.io_binding()
    if isinstance(past, np.ndarray):
        binding.bind_cpu_input("past", past)
    else:
        binding.bind_ortvalue_input("past", past)
    binding.bind_cpu_input("new", new)
    binding.bind_output("present")
    session.run_with_iobinding(binding)
    return binding.get_outputs()[0]


@pytest.mark.parametrize("call", [with_arrays, with_values, with_binding])
@pytest.mark.parametrize(("value", "in_place"), [(None, False), ("0", False), ("1", True)])
def test_outputs_append_in_place(call: Any, value: str | None, in_place: bool) -> None:
    session = appending_session(value)
    wanted = np.arange(8, dtype=np.float32).reshape(1, 2, 1, 4)
    past, places = wanted, []
    for number in range(5):
        new = np.full((1, 2, 1, 4), number, np.float32)
        past = call(session, past, new)
        wanted = np.concatenate([wanted, new], 2)
        found = past if isinstance(past, np.ndarray) else past.numpy()
        np.testing.assert_array_equal(found, wanted)
        places.append(found.ctypes.data)
    assert (len(set(places)) == 1) == in_place


@pytest.mark.parametrize("value", ["0", "1"])
def test_padding_is_left_out(value: str) -> None:
    options = ftuner.ort.SessionOptions()
    options.add_session_config_entry("ftuner.unpad", value)
    session = ftuner.ort.InferenceSession(encoder_bytes(), options)
    ids = np.arange(8).reshape(2, 4)
    mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0]])
    tokens, classes = session.run(None, {"input_ids": ids, "attention_mask": mask})
    alone = session.run(None, {"input_ids": ids[1:, :2], "attention_mask": mask[1:, :2]})
    np.testing.assert_allclose(tokens[1:, :2], alone[0], atol=1e-5)
    np.testing.assert_allclose(classes[1:], alone[1], atol=1e-5)
    assert tokens[1, 2:].any() == (value == "0")


def test_padding_that_is_computed_is_warned_of() -> None:
    options = ftuner.ort.SessionOptions()
    options.add_session_config_entry("ftuner.unpad", "1")
    with pytest.warns(UserWarning, match="padding is computed: no input is a mask"):
        ftuner.ort.InferenceSession(models.decoder(), options)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("ftuner.append", "1", "no configuration entry 'ftuner.append'.*'ftuner.append_in_place'"),
        ("ftuner.append_in_place", "yes", "append_in_place is 'yes'; expected one of 0, 1"),
    ],
)
def test_wrong_entries_of_ftuner(key: str, value: str, message: str) -> None:
    with pytest.raises(RuntimeError, match=message) as found:
        ftuner.ort.SessionOptions().add_session_config_entry(key, value)
    assert isinstance(found.value, ftuner.FTunerError)


def test_the_address_of_rows_that_are_apart() -> None:
    """Memory at the address of a value has its elements one after the other."""
    session = appending_session("1")
    past = np.arange(8, dtype=np.float32).reshape(1, 2, 1, 4)
    value = with_binding(session, past, -past)
    elements = np.array(value.numpy())
    assert not value.numpy().flags.c_contiguous
    shared = (ctypes.c_float * elements.size).from_address(value.data_ptr())
    assert list(shared) == elements.reshape(-1).tolist()
    again = with_binding(session, value, past).numpy()
    np.testing.assert_array_equal(again, np.concatenate([elements, past], 2))


def test_types_by_their_names() -> None:
    pytest.importorskip("torch")
    from onnxruntime.transformers.io_binding_helper import TypeHelper as Theirs

    own, other = (session_of(ort, models.gathered()) for ort in (ftuner.ort, onnxruntime))
    for function in ("get_io_numpy_type_map", "get_io_torch_type_map", "get_io_onnx_type_map"):
        assert getattr(TypeHelper, function)(own) == getattr(Theirs, function)(other)
    assert TypeHelper.get_input_type(own, "i") == Theirs.get_input_type(other, "i")
    assert TypeHelper.get_output_type(own, "y") == Theirs.get_output_type(other, "y")
    for kind in ("float", "double", "float16", "int64", "bool", "uint8"):
        name = f"tensor({kind})"
        for function in ("ort_type_to_numpy_type", "ort_type_to_torch_type"):
            assert getattr(TypeHelper, function)(name) == getattr(Theirs, function)(name)
        numpy_type = TypeHelper.ort_type_to_numpy_type(name)
        torch_type = TypeHelper.numpy_type_to_torch_type(numpy_type)
        assert torch_type == Theirs.numpy_type_to_torch_type(numpy_type)
        assert TypeHelper.torch_type_to_numpy_type(torch_type) == numpy_type
    with pytest.raises(ValueError, match="there is no 'q'; there are x, i"):
        TypeHelper.get_input_type(own, "q")
    with pytest.raises(ValueError, match="is the type of no tensor in ftuner"):
        TypeHelper.ort_type_to_numpy_type("tensor(float8e4m3fn)")
    with pytest.raises(ValueError, match="NumPy has no type"):
        TypeHelper.ort_type_to_numpy_type("tensor(bfloat16)")


def test_modules_of_the_same_names() -> None:
    for name in SUBMODULES:
        assert import_module(f"onnxruntime{name}") is not None
        own = import_module(f"ftuner.ort{name}")
        state = [n for n in vars(own) if name.endswith("state") and not n.startswith("__")]
        for member in {*getattr(own, "__all__", state)} - {"install"}:
            assert hasattr(import_module(f"onnxruntime{name}"), member), (name, member)
    from ftuner.ort.capi import _pybind_state

    assert _pybind_state.InferenceSession is ftuner.ort.InferenceSession


INSTALLED = """
import sys
import ftuner.ort
ftuner.ort.install()
ftuner.ort.install()
import onnxruntime
import onnxruntime as ort
from onnxruntime import InferenceSession, SessionOptions
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument
from onnxruntime.capi import _pybind_state as C
import onnxruntime.transformers.io_binding_helper
from importlib.metadata import version
from importlib.util import find_spec
assert onnxruntime is ort is ftuner.ort
assert InferenceSession is ftuner.InferenceSession is C.InferenceSession
assert onnxruntime.transformers.io_binding_helper.TypeHelper
assert find_spec("onnxruntime") is not None
assert version("onnxruntime") == onnxruntime.__version__
print("done")
"""
OTHERS = """
import sys
import ftuner.ort
ftuner.ort.install()
import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from onnxruntime.tools.symbolic_shape_infer import SymbolicShapeInference
from onnxruntime.transformers import optimizer
folder = sys.argv[1]
path = f"{folder}/model.onnx"
x = np.ones((2, 8), np.float32)
class Reader(CalibrationDataReader):
    left = [{"x": x}]
    def get_next(self):
        return self.left.pop() if self.left else None
assert SymbolicShapeInference.infer_shapes(onnx.load(path)).graph.value_info
quant_pre_process(path, f"{folder}/prepared.onnx")
quantize_dynamic(path, f"{folder}/dynamic.onnx")
quantize_static(path, f"{folder}/static.onnx", Reader())
optimizer.optimize_model(path, "bert").save_model_to_file(f"{folder}/optimised.onnx")
wanted, *found = (
    onnxruntime.InferenceSession(f"{folder}/{name}.onnx").run(None, {"x": x})[0]
    for name in ("model", "prepared", "dynamic", "static", "optimised")
)
for y in found:
    np.testing.assert_allclose(y, wanted, atol=0.1)
assert type(onnxruntime.InferenceSession(path)).__module__ == "ftuner.ort.session"
print("done")
"""
TOO_LATE = """
import onnxruntime
import ftuner.ort
try:
    ftuner.ort.install()
except ftuner.ConfigurationError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("script", "expected"), [(INSTALLED, "done"), (TOO_LATE, "call ftuner.ort.install() before")]
)
def test_installing(script: str, expected: str) -> None:
    done = printed("-c", script, env={"PYTHONPATH": str(SOURCES)})
    assert expected in done


def test_modules_that_only_onnxruntime_has_are_its_own(tmp_path: Path) -> None:
    """Quantisation, tools and the transformer optimiser work, on ftuner's sessions."""
    pytest.importorskip("sympy")
    weight = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    nodes = "product = MatMul(x, weight) y = Relu(product)"
    model = parsed(f"(float[batch, 8] x) => (float[batch, 4] y) {{ {nodes} }}", 17, weight=weight)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    done = printed(
        "-W", "ignore", "-c", OTHERS, str(tmp_path), env={**os.environ, "PYTHONPATH": str(SOURCES)}
    )
    assert done.endswith("done\n")


def test_the_optimised_model_is_a_copy_and_a_warning(tmp_path: Path) -> None:
    options = ftuner.ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    with pytest.warns(UserWarning, match="a copy of the model as it was given"):
        session_of(ftuner.ort, sess_options=options)
    again = ftuner.ort.InferenceSession(options.optimized_model_filepath)
    expect_same(again.run(None, feeds()), session_of(ftuner.ort).run(None, feeds()))
    options.optimized_model_filepath = str(tmp_path / "nowhere" / "optimised.onnx")
    with (
        pytest.warns(UserWarning, match="a copy"),
        pytest.raises(ftuner.ort.capi.onnxruntime_pybind11_state.Fail, match="No such file"),
    ):
        session_of(ftuner.ort, sess_options=options)


def test_one_import_has_the_modules_of_classes() -> None:
    code = (
        "import ftuner.ort as onnxruntime\n"
        "print(onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument.__name__, "
        "onnxruntime.capi._pybind_state.InferenceSession.__name__)"
    )
    done = printed("-c", code, env={"PYTHONPATH": str(SOURCES)})
    assert done == "InvalidArgument InferenceSession\n"


def test_a_version_without_onnxruntime() -> None:
    """A package that asks for the version finds one though onnxruntime is not installed."""
    script = (
        "import sys\n"
        "from importlib import metadata\n"
        "find = metadata.MetadataPathFinder.find_distributions\n"
        "metadata.MetadataPathFinder.find_distributions = classmethod(\n"
        "    lambda cls, context: () if context.name == 'onnxruntime' else find(context))\n"
        "import ftuner.ort\n"
        "ftuner.ort.install()\n"
        "print(metadata.version('onnxruntime'))\n"
    )
    done = printed("-c", script, env={"PYTHONPATH": str(SOURCES)})
    assert done.strip() == ftuner.ort.__version__
