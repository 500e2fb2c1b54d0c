"""Saved models: the same bits without onnx and a compiler, and a named error for any other file."""

import gc
import pickle
import re
import shutil
import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from tests.at_once import at_once
from tests.conftest import HOST_ISAS
from tests.frontends.onnx_models import parsed
from tests.runtime.saved.files import MODELS, ONES, dense, pictures, recurrent, weight
from tests.runtime.saved.keeping import same, saved_alike, written

import ftuner
from ftuner.codegen.llvm.native.binding_records import WordTable
from ftuner.codegen.llvm.native.symbols import WORDS_SYMBOL
from ftuner.codegen.llvm.objects.bundle import family_bundle
from ftuner.core.cpu.tile import RegisterTile, UKernel
from ftuner.core.dtype import UINT8
from ftuner.core.product import WORD_PRODUCTS
from ftuner.hardware.isa import instruction_set
from ftuner.hardware.system import read_system
from ftuner.hardware.tuning import KLoopTuning
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.kernels import Kernels
from ftuner.runtime.cpu.session import ISA_VARIABLE
from ftuner.runtime.saved import container, models, values


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("make", MODELS)
def test_the_same_bits(make: Any, threads: int, tmp_path: Path) -> None:
    made, feeds = make()
    own, path = ftuner.load(made, threads=threads), tmp_path / "model.ftuner"
    ftuner.save(own, path)
    again = ftuner.load(path, threads=threads)
    same(own, again, feeds)
    assert own.weights_bytes == again.weights_bytes
    assert [step.title for step in own.steps] == [step.title for step in again.steps]
    assert own.explain(feeds).weight_bytes == again.explain(feeds).weight_bytes
    # What was loaded is saved alike.
    saved_alike(own, again, tmp_path)


def test_with_another_number_of_threads(saved: Path) -> None:
    x = weight(64, 48)
    one, two = (ftuner.load(saved, threads=threads) for threads in (1, 2))
    np.testing.assert_allclose(one(x=x)["y"], two(x=x)["y"], 1e-4, 1e-4)
    assert (one.threads, two.threads) == (1, 2)


def test_appended_in_place(tmp_path: Path) -> None:
    joined = "present = Concat<axis=1>(past, new)"
    made = parsed(
        f"(float[n, p, 4] past, float[n, s, 4] new) => (float[] present) {{ {joined} }}", 17
    )
    own, path = ftuner.load(made, append_in_place=True), tmp_path / "model.ftuner"
    ftuner.save(own, path)
    again = ftuner.load(path)
    assert again.appended == own.appended == {"past": "present"}
    first = again(past=weight(1, 3, 4), new=weight(1, 2, 4))["present"]
    second = again(past=first, new=weight(1, 1, 4))["present"]
    np.testing.assert_array_equal(second[:, :5], first)
    ftuner.save(ftuner.load(made), path)
    with pytest.raises(ftuner.ConfigurationError, match="saved without append_in_place"):
        ftuner.load(path, append_in_place=True)


def test_random_numbers(tmp_path: Path) -> None:
    made = parsed("(float[n] x) => (float[n] y) { y = RandomNormalLike(x) }", 17)
    path = tmp_path / "model.ftuner"
    ftuner.save(ftuner.load(made), path)
    same(ftuner.load(made, random_seed=7), ftuner.load(path, random_seed=7), {"x": weight(5)})


def test_several_isas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, feeds = dense()
    source, path = written(tmp_path / "model.onnx", made), tmp_path / "model.ftuner"
    ftuner.save(ftuner.load(source, threads=1), path, isas=HOST_ISAS)
    for isa in HOST_ISAS:
        monkeypatch.setenv(ISA_VARIABLE, isa)
        again = ftuner.load(path, threads=1)
        assert {x.isa for x in again.all_executables()} == {isa}
        np.testing.assert_allclose(again.run(feeds)[0], ftuner.load(made).run(feeds)[0], 1e-4, 1e-4)
    with pytest.raises(ftuner.ConfigurationError, match="was not loaded from a path"):
        ftuner.save(ftuner.load(made), path, isas=["other"])
    for file in (source, path):
        with pytest.raises(ftuner.ConfigurationError, match="this machine has"):
            ftuner.save(ftuner.load(file), tmp_path / "other.ftuner", isas=["avx1024"])


ALONE = """
import sys
sys.path.insert(0, sys.argv[2])
import numpy as np
import ftuner
found = ftuner.load(sys.argv[1])(x=np.ones((5, 48), np.float32))
sys.stdout.write(found["y"].tobytes().hex())
"""


def test_with_numpy_alone(saved: Path, tmp_path: Path) -> None:
    """No other package, cache folder or model of the machine."""
    for package in (np, ftuner):
        assert package.__file__
        folder = Path(package.__file__).parent
        for name in (folder.name, f"{folder.name}.libs"):
            (tmp_path / name).symlink_to(folder.with_name(name))
    environment = {"FTUNER_CACHE_DIR": str(tmp_path / "empty")}
    found = subprocess.run(
        [sys.executable, "-I", "-S", "-c", ALONE, str(saved), str(tmp_path)], env=environment,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert not found.stderr
    assert found.stdout == ftuner.load(saved)(**ONES)["y"].tobytes().hex()
    assert not (tmp_path / "empty").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_weights_are_shared(saved: Path) -> None:
    """They are pages of the file, which this process has no copy of."""
    kept = ftuner.load(saved)
    kept(**ONES)
    text = Path("/proc/self/smaps").read_text()
    at = text.index(str(saved))
    entry = dict(line.split(":", 1) for line in text[at:].splitlines()[1:20] if ":" in line)
    assert int(entry["Anonymous"].split()[0]) == 0
    assert int(entry["Rss"].split()[0]) > 0


def test_a_saved_model_is_pickled_by_its_path(saved: Path) -> None:
    same(ftuner.load(saved), pickle.loads(pickle.dumps(ftuner.load(saved))), ONES)


def test_a_file_is_replaced_as_a_whole(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.ftuner"
    shutil.copy(saved, path)
    before = ftuner.load(path)
    wanted = before(**ONES)["y"]
    ftuner.save(ftuner.load(recurrent()[0]), path)
    np.testing.assert_array_equal(before(**ONES)["y"], wanted)
    assert [spec.name for spec in ftuner.load(path).outputs] == ["y", "h", "c"]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_numbers_at_run_time(tmp_path: Path) -> None:
    """What was compiled for the answers so far is saved; others are refused."""
    text = """(float[n, 8] x, int64[1] axes, int64[r] shape) => (float[] y) {
        a = MatMul(x, w)
        b = Unsqueeze(a, axes)
        y = Reshape(b, shape)
    }"""
    made = parsed(text, 17, w=weight(8, 8))
    own, path = ftuner.load(made), tmp_path / "model.ftuner"
    feeds = {"x": weight(6, 8), "axes": np.array([1]), "shape": np.array([3, 16])}
    own.run(feeds)
    ftuner.save(own, path)
    again = ftuner.load(path)
    same(own, again, feeds)
    same(own, again, {**feeds, "x": weight(2, 8), "shape": np.array([2, 8])})
    assert again.explain(feeds).groups
    with pytest.raises(ftuner.SavedModelError, match="no machine code for these"):
        again.run({**feeds, "axes": np.array([0])})
    saved_alike(own, again, tmp_path)


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    unranked = parsed("(float[] x) => (float[] y) { y = Relu(x) }", 17)
    with pytest.raises(ftuner.SavedModelError, match="number of axes"):
        ftuner.save(ftuner.load(unranked), tmp_path / "model.ftuner")
    own = ftuner.load(dense()[0])
    for name in ("model.onnx", "model"):
        with pytest.raises(ftuner.ConfigurationError, match=r"ends in \.ftuner"):
            ftuner.save(own, tmp_path / name)
    (tmp_path / "folder.ftuner").mkdir()
    with pytest.raises(ftuner.ConfigurationError, match="not a regular file"):
        ftuner.save(own, tmp_path / "folder.ftuner")
    with pytest.raises(ftuner.ConfigurationError, match="cannot write"):
        ftuner.save(own, tmp_path / "missing" / "model.ftuner")
    assert [file.name for file in tmp_path.iterdir()] == ["folder.ftuner"]


def test_options_that_a_file_has_not(saved: Path, tmp_path: Path) -> None:
    for options in ({"device": "cuda"}, {"dtype": "float16"}):
        with pytest.raises(ftuner.ConfigurationError, match="compiled for a CPU"):
            ftuner.load(saved, **options)  # type: ignore[arg-type]
    with pytest.raises(ftuner.MissingFileError):
        ftuner.load(tmp_path / "missing.ftuner")


def test_another_version(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its steps are compiled again if this version can read them."""
    with monkeypatch.context() as patch:
        patch.setattr(models, "interface", lambda: "0.0.1-0")
        same(ftuner.load(saved), ftuner.load(saved), ONES)
        (record,) = caplog.records
        assert "saved by ftuner" in record.message
        assert record.message.endswith("compiled again for this machine")
        with patch.context() as inner:
            inner.setattr(models, "find_spec", lambda name: None)
            with pytest.raises(ftuner.SavedModelError, match=r"save the model again.* llvmlite is"):
                ftuner.load(saved)
        patch.setattr(values, "MEANING", 0)
        values.schema.cache_clear()
        with pytest.raises(ftuner.SavedModelError, match="save the model again"):
            ftuner.load(saved)
    values.schema.cache_clear()
    path = tmp_path / "model.ftuner"
    with monkeypatch.context() as patch:
        patch.setattr(container, "FORMAT", 2)
        ftuner.save(ftuner.load(dense()[0]), path)
    with pytest.raises(ftuner.SavedModelError, match="has the format 2"):
        ftuner.load(path)


def test_a_file_of_another_native_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its machine code lacks a function, or reads other records, in the same version."""
    own, path, image = ftuner.load(dense()[0]), tmp_path / "model.ftuner", Kernels.image
    bundle = models.runtime_bundle

    def older_image(kernels: Kernels, bundles: Any) -> Any:
        found = image(kernels, bundles)
        left = {name: x for name, x in found.entries.items() if name != WORDS_SYMBOL}
        return found._replace(entries=left)

    def older_bundle(*arguments: Any) -> Any:
        found = bundle(*arguments)
        return replace(found, symbols=tuple(s for s in found.symbols if s != WORDS_SYMBOL))

    models.interface.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(Kernels, "image", older_image)
        patch.setattr(models, "runtime_bundle", older_bundle)
        ftuner.save(own, path)
    models.interface.cache_clear()
    same(ftuner.load(path), own, ONES)
    assert caplog.records[-1].message.endswith("compiled again for this machine")
    with monkeypatch.context() as patch:
        patch.setattr(WordTable, "OTHER", 8)
        assert models.interface.__wrapped__() != models.interface()


def test_a_matrix_unit_is_needed_by_its_kernels_alone() -> None:
    row, types = instruction_set("avx512"), WORD_PRODUCTS[UINT8]
    facts = replace(read_system(), features=frozenset({*row.flags, "amx_int8", "amx_fp16"}))
    tile = RegisterTile(16, 4, 1)
    for matrix in (False, True):
        kernel = UKernel(replace(tile, matrix=matrix), types, row.name, 16)
        bundle = family_bundle((kernel,), row, KLoopTuning(), 64)
        needed = models.needed_flags(row, facts, [bundle])
        assert [f for f in needed if f.startswith("amx")] == ["amx_bf16", "amx_int8"] * matrix


def test_another_machine(
    saved: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    facts = read_system()
    needed = models.needed_flags(instruction_set(HOST_ISAS[-1]), facts)
    machines = {"this is other": replace(facts, architecture="other")}
    if needed:
        poorer = replace(facts, features=facts.features - {needed[0]})
        machines[f"lacks {needed[0]}.*ftuner save"] = poorer
    for text, machine in machines.items():
        with monkeypatch.context() as patch:
            patch.setattr(models, "_facts", lambda machine=machine: machine)
            again = ftuner.load(saved)
            assert re.search(text, caplog.records[-1].message)
            np.testing.assert_allclose(again(**ONES)["y"], ftuner.load(saved)(**ONES)["y"], 1e-4)
            patch.setattr(models, "find_spec", lambda name: None)
            with pytest.raises(ftuner.HardwareError, match=text):
                ftuner.load(saved)
    # Caches, cores and clocks decide nothing: the plans are those of the machine that saved it.
    with monkeypatch.context() as patch:
        patch.setattr(models, "_facts", lambda: replace(facts, cores=96, caches=()))
        ftuner.load(saved)(**ONES)


@pytest.mark.skipif(len(HOST_ISAS) < 2, reason="this machine has one ISA")
@pytest.mark.parametrize("make", MODELS)
def test_compiled_again_for_another_isa(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights are packed again, from the panels of the file."""
    made, feeds = make()
    source, path = written(tmp_path / "model.onnx", made), tmp_path / "model.ftuner"
    own, (first, *_, last) = ftuner.load(source), HOST_ISAS
    for isa, other in ((first, last), (last, first)):
        ftuner.save(own, path, isas=[isa])
        with monkeypatch.context() as patch:
            patch.setenv(ISA_VARIABLE, other)
            patch.setattr(models, "default_backend", lambda other=other: CpuBackend(isa=other))
            again = ftuner.load(path)
        assert {x.isa for x in again.all_executables()} == {other}
        for one, two in zip(own.run(feeds), again.run(feeds), strict=True):
            if one.dtype.kind == "f":
                np.testing.assert_allclose(one, two, 1e-3, 1e-3)
            else:
                np.testing.assert_array_equal(one, two)
        ftuner.save(again, tmp_path / "again.ftuner", isas=[isa])
        same(ftuner.load(path), ftuner.load(tmp_path / "again.ftuner"), feeds)


@pytest.mark.skipif(len(HOST_ISAS) < 2, reason="this machine has one ISA")
def test_a_narrower_isa_is_used_and_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(ISA_VARIABLE, raising=False)
    source, path = written(tmp_path / "model.onnx", dense()[0]), tmp_path / "model.ftuner"
    ftuner.save(ftuner.load(source), path, isas=HOST_ISAS[:1])
    for _ in range(2):
        again = ftuner.load(path)
        assert {x.isa for x in again.all_executables()} == {HOST_ISAS[0]}
    (record,) = caplog.records
    assert f"no machine code for {HOST_ISAS[-1]}" in record.message


def test_models_of_one_machine_share_workers(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.ftuner"
    ftuner.save(ftuner.load(recurrent()[0]), path)
    first, second = (next(iter(ftuner.load(p).all_executables())) for p in (saved, path))
    assert first.session is second.session  # type: ignore[attr-defined]


def test_a_file_that_is_loaded_again_keeps_nothing_more(saved: Path) -> None:
    kept = ftuner.load(saved)
    (executable,) = kept.all_executables()
    kernels = executable.session.kernels  # type: ignore[attr-defined]
    before = len(kernels._files), len(kernels._images)
    again = [ftuner.load(saved) for _ in range(3)]
    assert (len(kernels._files), len(kernels._images)) == before
    assert {id(model._options.code) for model in (kept, *again)} == {id(kept._options.code)}


def test_code_is_freed_with_its_models(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.ftuner"
    ftuner.save(ftuner.load(recurrent()[0]), path)
    kept, other = ftuner.load(saved), ftuner.load(path)
    code, (executable,) = weakref.ref(other._options.code), kept.all_executables()
    session = executable.session  # type: ignore[attr-defined]
    del other
    # The uKernels of a library stay.
    session._products.clear()
    session.kernels._compiled.clear()
    gc.collect()
    assert code() is None


def test_collections_go_on_after_a_load(saved: Path, tmp_path: Path) -> None:
    empty, other = tmp_path / "model.ftuner", tmp_path / "model.onnx"
    empty.write_bytes(b"")
    other.write_bytes(b"no model")
    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        try:
            ftuner.load(saved)
            assert gc.isenabled() == enabled
            for path in (empty, other):
                with pytest.raises(ftuner.FTunerError):
                    ftuner.load(path)
                assert gc.isenabled() == enabled
        finally:
            gc.enable()


def test_first_runs_at_once(tmp_path: Path) -> None:
    """Models of several threads share the tables that plans point to."""
    made, feeds = pictures()
    path = tmp_path / "model.ftuner"
    ftuner.save(ftuner.load(made), path)
    found: list[Any] = []
    for _ in range(3):
        own = [ftuner.load(path, threads=1) for _ in range(2)] * 2
        at_once(*[lambda model=model: found.append(model.run(feeds)[0]) for model in own])
        del own
        gc.collect()
    assert len(found) == 12
    for result in found:
        np.testing.assert_array_equal(result, found[0])
