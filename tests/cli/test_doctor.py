"""`ftuner doctor`: what it finds, on this machine and on described ones."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.child import printed
from tests.cli.invoking import document, run

import ftuner
from ftuner.cli import checks
from ftuner.cli.checks import (
    PROBLEM,
    RIGHT,
    WARNING,
    Finding,
    check_cache,
    check_gpu,
    check_hardware,
    check_limits,
    check_threads,
    devices,
)
from ftuner.cli.checks import check_versions as versions
from ftuner.hardware.system import read_system
from ftuner.runtime.cache import HARDWARE, default_cache
from ftuner.runtime.cpu.backend import CpuBackend, default_backend
from ftuner.runtime.cpu.session import keep_hardware, kept_key, known_hardware
from ftuner.runtime.known_hardware import KeptCalibration, keep_calibration

PARTS = ["versions", "cache", "hardware", "threads", "limits", "GPU"]
FACTS = replace(read_system(), cores=4)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FTUNER_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def only(found: Iterator[Finding], text: str) -> Finding:
    """The finding whose text has `text`."""
    (finding,) = [f for f in found if text in f.text]
    return finding


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_before_tuning(folder: Path) -> None:
    found = document("doctor")
    assert found["healthy"]
    parts = list(dict.fromkeys(finding["part"] for finding in found["findings"]))
    assert parts == PARTS
    (untuned,) = [f for f in found["findings"] if "not tuned yet" in f["text"]]
    assert untuned["state"] == WARNING
    assert "ftuner tune" in untuned["todo"]
    assert not folder.exists(), "nothing is probed or kept"


def test_shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    shown = run("doctor")
    assert shown.exit_code == 0
    for part in (*PARTS, f"ftuner {ftuner.__version__}", "not tuned yet", "-> run ftuner tune",
                 "0 problems"):  # fmt: skip
        assert part in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert "\x1b" not in shown.stdout


def test_a_problem_is_the_exit_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FTUNER_NUM_THREADS", "many")
    found = document("doctor", exit_code=1)
    assert not found["healthy"]
    (problem,) = [f for f in found["findings"] if f["state"] == PROBLEM]
    assert "FTUNER_NUM_THREADS is 'many'" in problem["text"]
    assert problem["todo"]
    shown = run("doctor")
    assert shown.exit_code == 1
    assert "1 problem" in shown.stdout


def test_nothing_is_compiled(folder: Path) -> None:
    """Neither torch nor triton is imported where there is no driver, and nothing is probed."""
    code = (
        "import sys\nfrom ftuner.cli.main import app\n"
        "try: app(['doctor', '--json'])\nexcept SystemExit: print('loaded', *sys.modules)"
    )
    done = printed("-c", code)
    text, _, loaded = done.partition("loaded ")
    if not Path("/proc/driver/nvidia/version").exists():
        assert not {"torch", "triton", "ftuner.runtime.cpu.probe"} & set(loaded.split())
    assert json.loads(text)["healthy"]


def test_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(*missing: str) -> list[Finding]:
        monkeypatch.setattr(checks, "installed", lambda name: None if name in missing else "9.9")
        return list(versions(FACTS))

    assert {finding.state for finding in without()} == {RIGHT}
    assert only(iter(without()), "llvmlite 9.9 with LLVM").state == RIGHT
    absent = without("onnx", "numpy")
    assert only(iter(absent), "onnx: not installed").state == RIGHT
    assert only(iter(absent), "numpy is not installed") == Finding(
        "versions", PROBLEM, "numpy is not installed", "pip install numpy"
    )


def test_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert only(check_cache(FACTS), "made when it is first used").state == RIGHT
    default_cache().write("objects", "one", bytes(1 << 20))
    assert only(check_cache(FACTS), "writeable and private").state == RIGHT
    assert only(check_cache(FACTS), "1 MiB of at most 256 MiB").state == RIGHT
    monkeypatch.setenv("FTUNER_CACHE_MAX_BYTES", str((1 << 20) + 100))
    assert only(check_cache(FACTS), "the least recently used go soon").state == WARNING
    monkeypatch.setenv("FTUNER_CACHE_MAX_BYTES", "10")
    assert only(check_cache(FACTS), "too little to keep anything").state == WARNING
    folder.chmod(0o777)
    (finding,) = check_cache(FACTS)
    assert finding.state == PROBLEM
    assert "FTUNER_CACHE_DIR" in finding.todo


def test_a_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FTUNER_CACHE_DIR", str(tmp_path / "file" / "cache"))
    (finding,) = check_cache(FACTS)
    assert finding.state == PROBLEM


def test_isa(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = replace(FACTS, architecture="x86_64", features=frozenset({"avx2", "fma", "f16c"}))
    monkeypatch.setattr(checks, "remembered_hardware", lambda cache, isa: None)
    monkeypatch.delenv("FTUNER_ISA")
    assert only(check_hardware(facts), "avx2 is used, the widest").state == RIGHT
    monkeypatch.setenv("FTUNER_ISA", "sse2")
    assert only(check_hardware(facts), "sse2 is used").state == WARNING
    monkeypatch.setenv("FTUNER_ISA", "avx2")
    assert only(check_hardware(facts), "avx2 is used, as FTUNER_ISA says").state == RIGHT
    monkeypatch.setenv("FTUNER_ISA", "avx512")
    assert only(check_hardware(facts), "FTUNER_ISA is 'avx512'").state == PROBLEM
    hidden = replace(facts, features=frozenset())
    assert only(check_hardware(hidden), "hides what the CPU can do").state == WARNING


def test_calibration() -> None:
    """Kept with the model: when it was, how sure, and beside what load."""
    cache = default_cache()
    known = known_hardware(cache)
    assert "hardware model in the cache" in only(check_hardware(FACTS), "hardware model").text
    assert only(check_hardware(FACTS), "not measured here").state == WARNING
    name = "tile_cycles"

    def calibrated(sure: float) -> None:
        tuning = replace(known.tuning, provenance={name: "fitted"}, confidence={name: sure})
        keep_hardware(cache, replace(known, tuning=tuning), default_backend()._asked_isa)

    key = kept_key(default_backend()._asked_isa)
    try:
        calibrated(0.9)
        quiet = KeptCalibration(time.time() - 3 * 86400, 0.1, False)
        keep_calibration(cache, key, quiet)
        found = only(check_hardware(FACTS), "1 constant measured here 3 days ago")
        assert (found.state, "confidence 0.90" in found.text) == (RIGHT, True)
        calibrated(0.2)
        assert only(check_hardware(FACTS), "1 below 0.5").state == WARNING
        calibrated(0.9)
        keep_calibration(cache, key, quiet._replace(noisy=True, slow_share=0.7))
        found = only(check_hardware(FACTS), "beside other load (70% of the time)")
        assert (found.state, "--thorough" in found.todo) == (WARNING, True)
    finally:
        for entry in cache.entries():
            if entry.kind == HARDWARE and entry.key.startswith(key):
                cache.drop(entry.kind, entry.key)


def test_tuning_keeps_when_it_calibrated(folder: Path) -> None:
    backend = CpuBackend()
    backend.calibrate(0.2)
    found = only(check_hardware(FACTS), "measured here today")
    assert found.part == "calibration"


def test_a_damaged_model_is_a_warning(folder: Path) -> None:
    cache = default_cache()
    known_hardware(cache)
    (entry,) = [entry for entry in cache.entries() if entry.kind == HARDWARE]
    path = folder / HARDWARE / entry.key
    path.write_bytes(path.read_bytes()[:-1])
    found = list(check_hardware(FACTS))
    assert only(iter(found), "checksum is wrong").state == WARNING
    assert only(iter(found), "not tuned yet").state == WARNING


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "own_affinity", lambda: range(4))
    monkeypatch.setattr(checks.os, "cpu_count", lambda: 8)
    for name in checks.THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("FTUNER_NUM_THREADS")
    assert only(check_threads(FACTS), "4 threads; 4 usable cores").state == RIGHT
    assert only(check_threads(FACTS), "affinity: 4 of 8 CPUs").state == RIGHT
    monkeypatch.setenv("FTUNER_NUM_THREADS", "8")
    assert only(check_threads(FACTS), "8 threads, as FTUNER_NUM_THREADS says").state == WARNING
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert only(check_threads(FACTS), "OMP_NUM_THREADS=3").state == RIGHT


@pytest.mark.parametrize(
    ("files", "text", "state"),
    [
        ({}, "no CPU quota", RIGHT),
        ({}, "no memory limit", RIGHT),
        ({}, "huge pages: the system does not say", RIGHT),
        ({"sys/fs/cgroup/cpu.max": "250000 100000"}, "CPU quota of 2.5, and 4 threads", WARNING),
        ({"sys/fs/cgroup/cpu.max": "800000 100000"}, "CPU quota of 8", RIGHT),
        ({"sys/fs/cgroup/cpu.max": "max 100000"}, "no CPU quota", RIGHT),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/a\n2:memory:/b",
                "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "50000",
                "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000",
            },
            "CPU quota of 0.5",
            WARNING,
        ),
        ({"sys/fs/cgroup/memory.max": str(4 << 30)}, "memory limit of 4 GiB", RIGHT),
        ({"sys/fs/cgroup/memory.max": str(256 << 20)}, "memory limit of 256 MiB", WARNING),
        ({"sys/fs/cgroup/memory.max": "max"}, "no memory limit", RIGHT),
        (
            {
                "proc/self/cgroup": "2:memory:/b",
                "sys/fs/cgroup/memory/b/memory.limit_in_bytes": str(2 << 30),
                "sys/fs/cgroup/memory/memory.limit_in_bytes": str((1 << 63) - 4096),
            },
            "memory limit of 2 GiB",
            RIGHT,
        ),
        ({str(checks.HUGE_PAGES): "always [madvise] never"}, "huge pages: madvise", RIGHT),
        ({str(checks.HUGE_PAGES): "always madvise [never]"}, "huge pages are off", WARNING),
    ],
)
def test_limits(
    files: dict[str, str], text: str, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FTUNER_NUM_THREADS", "4")
    found = only(check_limits(FACTS, write(tmp_path, files)), text)
    assert found.state == state
    assert bool(found.todo) == (state != RIGHT)


DRIVER = {
    "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue"
}
ON_THE_BUS = {
    "sys/bus/pci/devices/0/vendor": "0x10de",
    "sys/bus/pci/devices/0/class": "0x030200",
    "sys/bus/pci/devices/1/vendor": "0x10de",
    "sys/bus/pci/devices/1/class": "0x0c0330",
}


def test_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (none,) = check_gpu(tmp_path)
    assert (none.state, "no NVIDIA GPU" in none.text) == (RIGHT, True)
    (driverless,) = check_gpu(write(tmp_path, ON_THE_BUS))
    assert (driverless.state, "without a driver" in driverless.text) == (WARNING, True)
    write(tmp_path, DRIVER)
    monkeypatch.setattr("ftuner.cli.checks.find_spec", lambda name: None)
    driver, packages = check_gpu(tmp_path)
    assert driver == Finding("GPU", RIGHT, "NVIDIA driver 550.54.15")
    assert packages.todo == "pip install 'ftuner[gpu]'"


def test_a_torch_without_cuda(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    *_, found = check_gpu(write(tmp_path, DRIVER))
    assert (found.state, "not usable" in found.text) == (WARNING, True)


def test_devices_that_torch_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that a recorded machine is like, one of an unknown architecture, one that fails."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from ftuner.runtime.gpu import probe, session

    known = probe.DeviceFacts("NVIDIA H100 80GB HBM3", "sm_90", 132, 32, 65536, 2048, 233472,
                              232448, 50 << 20, 80 << 30)  # fmt: skip

    def read_device(device: Any) -> probe.DeviceFacts:
        if device.index == 2:
            raise RuntimeError("the device is lost")
        return replace(known, architecture="sm_90" if device.index == 0 else "sm_35")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(probe, "read_device", read_device)
    monkeypatch.setattr(session, "is_capturing", lambda device: False)
    monkeypatch.setattr(session, "INTERPRETED", False)
    first, second, third = devices()
    assert first == Finding("GPU", RIGHT, f"cuda:0: {known.name}, sm_90, 80 GiB: usable")
    assert (second.state, "no recorded machine has" in second.text) == (WARNING, True)
    assert (third.state, "the device is lost" in third.text) == (WARNING, True)
    monkeypatch.setattr(session, "INTERPRETED", True)
    assert "TRITON_INTERPRET is set" in next(devices()).text
