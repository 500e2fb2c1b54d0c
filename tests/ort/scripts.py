"""Programs for onnxruntime, each of a few members. They take the module, and return plain values
that must be equal with onnxruntime and with ftuner.

Where the two differ on purpose, docs/onnxruntime.md says so and another test has the case.
"""

import json
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.ort import models

CPU = ["CPUExecutionProvider"]
Script = Callable[[Any], object]
SCRIPTS: dict[str, Script] = {}


def script(function: Script) -> Script:
    SCRIPTS[function.__name__] = function
    return function


def session_of(ort: Any, data: bytes | None = None, **given: Any) -> Any:
    return ort.InferenceSession(data or models.scaled_sum(), providers=CPU, **given)


def feeds(rows: int = 2) -> dict[str, Any]:
    x = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
    return {"x": x, "y": np.ones((rows, 3), np.float32)}


def args(found: Any) -> list[tuple[str, str, list[Any]]]:
    return [(arg.name, arg.type, arg.shape) for arg in found]


@script
def sources(ort: Any) -> object:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(models.scaled_sum())
        return [
            ort.InferenceSession(source, providers=CPU).run(["z"], feeds())
            for source in (path, str(path), path.read_bytes())
        ]


@script
def run(ort: Any) -> object:
    session = session_of(ort)
    options = ort.RunOptions()
    names = (None, [], ["z"], ("shape",), ["shape", "z"], ["z", "z"])
    return [session.run(n, feeds()) for n in names] + [session.run(None, feeds(0), options)]


@script
def inputs_of_other_kinds(ort: Any) -> object:
    session = session_of(ort)
    y = feeds()["y"]
    wide = np.arange(12, dtype=np.float32).reshape(2, 6)
    given = (
        [[1.0, 2, 3], [4, 5, 6]], [y[0], y[1]], wide[:, ::2], np.asfortranarray(y),
        np.broadcast_to(np.float32(2), (2, 3)), ort.OrtValue.ortvalue_from_numpy(y),
        np.ma.masked_array(y), wide[::-1, :3],
    )  # fmt: skip
    return [session.run(["z"], {"x": x, "y": y}) for x in given]


@script
def lists_by_element_type(ort: Any) -> object:
    found = []
    for number, values in (
        (1, [1, 2.5, True]), (11, [1, 2.5]), (7, [1, 2]), (6, [1.5, -2]), (9, [True, False, 3]),
        (10, [0.5]), (2, [1, 255]),
    ):  # fmt: skip
        (y,) = session_of(ort, models.identity(number)).run(None, {"x": values})
        found.append((y, y.dtype.name))
    return found


@script
def element_types(ort: Any) -> object:
    found = []
    for number in (1, 11, 10, 3, 2, 5, 4, 6, 12, 7, 13, 9):
        session = session_of(ort, models.identity(number))
        value = ort.OrtValue.ortvalue_from_shape_and_type([2], number)
        (y,) = session.run(None, {"x": np.ones(3, value.numpy().dtype)})
        found.append((args(session.get_inputs()), y, value.data_type(), value.element_type()))
    return found


@script
def bfloat16(ort: Any) -> object:
    held = np.array([0x3F80, 0x4000], np.uint16)
    value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(held, 16)
    return value.data_type(), value.element_type(), value.shape(), value.tensor_size_in_bytes()


@script
def zero_dimensional(ort: Any) -> object:
    session = session_of(ort, models.identity(1, ()))
    return args(session.get_inputs()), session.run(None, {"x": np.array(2, np.float32)})


@script
def descriptions(ort: Any) -> object:
    session = session_of(ort, models.described())
    (arg,) = session.get_inputs()
    known = isinstance(arg, ort.NodeArg), isinstance(session.get_modelmeta(), ort.ModelMetadata)
    return args(session.get_inputs()), args(session.get_outputs()), str(arg), known


@script
def attributes_that_programs_read(ort: Any) -> object:
    session = session_of(ort, models.described())
    read = args(session._inputs_meta), args(session._outputs_meta), session._model_path
    return read, session._model_meta.custom_metadata_map, session._model_bytes == models.described()


@script
def metadata(ort: Any) -> object:
    names = (
        "custom_metadata_map", "description", "domain", "graph_description", "graph_name",
        "producer_name", "version",
    )  # fmt: skip
    return [
        [getattr(session_of(ort, data).get_modelmeta(), name) for name in names]
        for data in (models.described(), models.scaled_sum())
    ]


@script
def overridable_initialisers(ort: Any) -> object:
    weight = np.array([5, 6, 7], np.float32)
    found: list[Any] = []
    for ir in (3, 10):
        session = session_of(ort, models.scaled_sum(ir, overridable=True))
        found += [args(session.get_inputs()), args(session.get_overridable_initializers())]
        found.append(session.run(["z"], feeds()))
    found.append(session.run(["z"], {**feeds(), "weight": weight}))
    binding = session.io_binding()
    for name, x in {**feeds(), "weight": weight}.items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(x))
    binding.bind_output("z")
    session.run_with_iobinding(binding)
    return [*found, binding.copy_outputs_to_cpu(), session.run(["z"], feeds())]


@script
def run_with_ort_values(ort: Any) -> object:
    session = session_of(ort)
    given = {name: ort.OrtValue.ortvalue_from_numpy(x) for name, x in feeds().items()}
    found = session.run_with_ort_values(["z"], given)
    every = session.run_with_ort_values(None, given, ort.RunOptions())
    return [(v.numpy(), v.data_type(), v.device_name()) for v in (*found, *every)]


@script
def run_async(ort: Any) -> object:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    session = session_of(ort, sess_options=options)
    found: list[Any] = []
    for given in (feeds(), {**feeds(), "y": np.ones((3, 3), np.float32)}):
        done = threading.Event()

        def callback(results: Any, data: Any, error: str, done: threading.Event = done) -> None:
            found.append((results, data, bool(error)))
            done.set()

        session.run_async(["z"], given, callback, "mine", ort.RunOptions())
        assert done.wait(60)
    return found


@script
def providers(ort: Any) -> object:
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for given in (None, [], CPU, CPU * 2, [(CPU[0], {"a": 1})], ["XnnpackExecutionProvider"]):
            session = ort.InferenceSession(models.scaled_sum(), providers=given)
            found.append((session.get_providers(), session.get_provider_options()))
        session = ort.InferenceSession(
            models.scaled_sum(), providers=CPU, provider_options=[{"a": 1}], enable_fallback=0
        )
    options = ort.SessionOptions()
    options.add_provider(CPU[0], {})
    chosen = options.has_providers(), ort.InferenceSession(models.scaled_sum(), options)
    found.append((chosen[0], chosen[1].get_providers()))
    session.set_providers(CPU)
    session.disable_fallback()
    session.enable_fallback()
    session.set_providers()
    known = (CPU[0] in ort.get_available_providers(), CPU[0] in ort.get_all_providers())
    return found, session.get_providers(), session.run(["z"], feeds()), known, ort.get_device()


@script
def session_options(ort: Any) -> object:
    options = ort.SessionOptions()
    names = (
        "enable_cpu_mem_arena", "enable_mem_pattern", "enable_mem_reuse", "enable_profiling",
        "execution_mode", "execution_order", "graph_optimization_level", "inter_op_num_threads",
        "intra_op_num_threads", "log_severity_level", "log_verbosity_level", "logid",
        "optimized_model_filepath", "profile_file_prefix", "use_deterministic_compute",
        "use_per_session_threads",
    )  # fmt: skip
    before = [getattr(options, name) for name in names]
    options.enable_cpu_mem_arena = options.enable_mem_pattern = options.enable_mem_reuse = 0
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.inter_op_num_threads, options.intra_op_num_threads = 1, np.int64(1)
    options.log_severity_level, options.log_verbosity_level, options.logid = 3, 1, "me"
    options.use_deterministic_compute = options.use_per_session_threads = True
    session = session_of(ort, sess_options=options)
    kept = session.get_session_options().intra_op_num_threads
    return (
        [int(x) if hasattr(x, "name") else x for x in before],
        [str(getattr(options, name)) for name in names], kept, session.run(["z"], feeds()),
    )  # fmt: skip


@script
def threads(ort: Any) -> object:
    found = []
    for count in (-2, -1, 0, 1, 2, True):
        options = ort.SessionOptions()
        options.intra_op_num_threads = count
        session = session_of(ort, sess_options=options)
        found.append((options.intra_op_num_threads, session.run(["z"], feeds())))
    return found


@script
def entries_of_options(ort: Any) -> object:
    options, running = ort.SessionOptions(), ort.RunOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.dynamic_block_base", "4")
    running.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    options.clear_ep_context_data_read_func()
    options.set_load_cancellation_flag(False)
    return (
        options.get_session_config_entry("session.intra_op.allow_spinning"),
        running.get_run_config_entry("memory.enable_memory_arena_shrinkage"),
        session_of(ort, sess_options=options).run(["z"], feeds(), running),
        options.has_providers(),
    )


@script
def run_options(ort: Any) -> object:
    options = ort.RunOptions()
    names = (
        "log_severity_level", "log_verbosity_level", "logid", "only_execute_path_to_fetches",
        "terminate",
    )  # fmt: skip
    before = [getattr(options, name) for name in names]
    options.log_severity_level, options.log_verbosity_level, options.logid = 3, 1, "run"
    options.only_execute_path_to_fetches = options.terminate = True
    options.terminate = False
    return before, [getattr(options, name) for name in names]


@script
def free_dimensions(ort: Any) -> object:
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("batch", 2)
    options.add_free_dimension_override_by_name("unknown", 7)
    session = session_of(ort, sess_options=options)
    return args(session.get_inputs()), args(session.get_outputs()), session.run(None, feeds())


@script
def weights_in_memory(ort: Any) -> object:
    weight = ort.OrtValue.ortvalue_from_numpy(np.array([4, 5, 6], np.float32))
    outside, shared = ort.SessionOptions(), ort.SessionOptions()
    outside.add_external_initializers(["weight"], [weight])
    for name in ("weight", "unknown"):
        shared.add_initializer(name, weight)
    data = models.with_weight_outside()
    return (
        session_of(ort, data, sess_options=outside).run(["z"], feeds()),
        session_of(ort, sess_options=shared).run(["z"], feeds()),
    )


@script
def files_of_weights(ort: Any) -> object:
    weight, data = np.array([4, 5, 6], np.float32), models.with_weight_outside()
    held, beside = ort.SessionOptions(), ort.SessionOptions()
    # onnxruntime does not keep it alive.
    content = weight.tobytes()
    held.add_external_initializers_from_files_in_memory(["weight.bin"], [content], [len(content)])
    with tempfile.TemporaryDirectory() as folder:
        weight.tofile(f"{folder}/weight.bin")
        key = "session.model_external_initializers_file_folder_path"
        beside.add_session_config_entry(key, folder)
        sessions = [session_of(ort, data, sess_options=options) for options in (held, beside)]
    return [session.run(["z"], feeds()) for session in sessions]


@script
def profiling(ort: Any) -> object:
    quiet = session_of(ort)
    with tempfile.TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.enable_profiling = True
        options.profile_file_prefix = f"{folder}/mine"
        session = session_of(ort, sess_options=options)
        session.run(None, feeds())
        begun = session.get_profiling_start_time_ns() > 0
        path = Path(session.end_profiling())
        events = json.loads(path.read_text())
        names = {event["name"] for event in events if event["cat"] == "Session"}
        named = path.name.startswith("mine_") and path.suffix == ".json"
    nodes = [event for event in events if event["cat"] == "Node"]
    read = {"op_name", "provider", "node_index"}
    return (
        quiet.end_profiling(), begun, named, "model_run" in names, {"ts", "dur"} <= {*events[0]},
        len(nodes) > 0, {event["args"]["provider"] for event in nodes},
        all({*events[0]} == {*event} and read <= {*event["args"]} for event in nodes),
        all(event["name"].endswith("_kernel_time") for event in nodes),
    )  # fmt: skip


@script
def values(ort: Any) -> object:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    value = ort.OrtValue.ortvalue_from_numpy(x, "cpu", 0)
    shared = value.data_ptr() == x.ctypes.data
    value.update_inplace(np.full((2, 3), 7, np.float32))
    value.update_inplace(ort.OrtValue.ortvalue_from_numpy(x + 1))
    strided = ort.OrtValue.ortvalue_from_numpy(np.arange(6, dtype=np.int64)[::2])
    return (
        shared, x, value.numpy(), np.asarray(value), value.shape(), value.data_type(),
        value.element_type(), value.device_name(), value.tensor_size_in_bytes(), strided.numpy(),
        value.has_value(), value.is_tensor(), value.is_sparse_tensor(), value.is_tensor_sequence(),
    )  # fmt: skip


@script
def values_without_elements(ort: Any) -> object:
    make = ort.OrtValue.ortvalue_from_shape_and_type
    found = [make([2, 3], kind) for kind in (np.float32, "int64", 9, np.dtype("float16"))]
    found.append(make((), np.float64, "cpu", 0))
    found.append(session_of(ort).create_ortvalue_from_shape_and_type([0, 4], np.int8, "cpu"))
    return [(value.shape(), value.data_type(), value.numpy().shape) for value in found]


@script
def dlpack(ort: Any) -> object:
    x = np.arange(4, dtype=np.float32)
    value = ort.OrtValue.from_dlpack(x)
    again = np.from_dlpack(value)
    capsule = ort.OrtValue.from_dlpack(value.__dlpack__())
    x[0] = 9
    return value.numpy(), again, capsule.numpy(), value.__dlpack_device__()


@script
def bindings(ort: Any) -> object:
    session, given = session_of(ort), feeds()
    binding = session.io_binding()
    before = binding.get_outputs()
    binding.bind_cpu_input("x", given["x"])
    binding.bind_ortvalue_input("y", ort.OrtValue.ortvalue_from_numpy(given["y"]))
    binding.bind_output("z")
    found: list[Any] = []
    for rows in (2, 4):
        for name, x in feeds(rows).items():
            binding.bind_cpu_input(name, x)
        binding.bind_output("z")
        binding.synchronize_inputs()
        session.run_with_iobinding(binding, ort.RunOptions())
        binding.synchronize_outputs()
        found.append(binding.copy_outputs_to_cpu())
        found.append([value.numpy() for value in binding.get_outputs()])
        found.append(len(binding.get_outputs_as_ortvaluevector()))
    binding.clear_binding_inputs()
    binding.clear_binding_outputs()
    return before, found, binding.get_outputs()


@script
def bound_memory(ort: Any) -> object:
    session, given = session_of(ort), feeds()
    into = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
    binding = ort.IOBinding(session)
    for name, x in given.items():
        binding.bind_input(name, "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_ortvalue_output("z", into)
    binding.bind_output("shape", "cpu")
    session.run_with_iobinding(binding)
    memory = np.zeros((2, 3), np.float32)
    other = session.io_binding()
    for name, x in given.items():
        other.bind_input(name, "cpu", 0, 1, list(x.shape), x.ctypes.data)
    other.bind_output("z", "cpu", 0, np.float32, [2, 3], memory.ctypes.data)
    session.run_with_iobinding(other)
    given["x"][:] = 5
    session.run_with_iobinding(other)
    return into.numpy(), binding.copy_outputs_to_cpu(), memory, other.get_outputs()[0].numpy()


@script
def devices(ort: Any) -> object:
    ort.preload_dlls(cuda=False, cudnn=False)
    made = [ort.OrtDevice.make(*given) for given in (("cpu", 0), ("cuda", 1), ("gpu", 0, 0x1002))]
    return [
        (d.device_id(), d.device_type(), d.device_vendor_id(), d.device_mem_type()) for d in made
    ]


@script
def enumerations(ort: Any) -> object:
    kinds = (
        "GraphOptimizationLevel", "ExecutionMode", "ExecutionOrder", "OrtAllocatorType",
        "OrtMemType", "OrtDeviceVendorId",
    )  # fmt: skip
    level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    members = [
        sorted((name, int(x)) for name, x in getattr(ort, kind).__members__.items())
        for kind in kinds
    ]
    return members, str(level), repr(level), level.name, level.value, level == 99


@script
def process(ort: Any) -> object:
    ort.set_default_logger_verbosity(0)
    ort.set_default_logger_severity(2)
    ort.set_seed(3)
    ort.disable_telemetry_events()
    ort.enable_telemetry_events()
    ort.disable_telemetry_events()
    return (
        ort.__version__, ort.get_version_string(), ort.has_collective_ops(),
        isinstance(ort.get_build_info(), str),
    )  # fmt: skip


@script
def tuning_and_capturing(ort: Any) -> object:
    session = session_of(ort)
    session.set_tuning_results([])
    session.release_captured_graph()
    session.set_ep_dynamic_options({"key": "value"})
    return session.get_tuning_results()
