"""Facts read from fake `/proc` and `/sys` trees."""

from pathlib import Path

import pytest

from ftuner.errors import HardwareError
from ftuner.hardware import system
from ftuner.hardware.system import SystemFacts, isas_of, read_system

AVX2 = "fpu sse sse2 fma f16c avx avx2"
AVX512 = AVX2 + " avx512f avx512vl avx512bw avx512dq"


def no_sysconf(name: int) -> int:
    raise ValueError(name)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def cpuinfo(count: int, flags: str, model: str = "Test CPU") -> dict[str, str]:
    block = "processor\t: {}\nmodel name\t: {}\nflags\t\t: {}\n"
    return {"proc/cpuinfo": "\n".join(block.format(i, model, flags) for i in range(count))}


def cache(cpu: int, index: int, level: int, kind: str, size: str, ways: int, shared: str):
    folder = f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
    return {
        f"{folder}/level": str(level),
        f"{folder}/type": kind,
        f"{folder}/size": size,
        f"{folder}/coherency_line_size": "64",
        f"{folder}/ways_of_associativity": str(ways),
        f"{folder}/shared_cpu_list": shared,
    }


def siblings(*groups: str) -> dict[str, str]:
    files = {}
    for group in groups:
        for cpu in group.split(","):
            files[f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"] = group
    return files


def facts_of(root: Path, machine: str = "x86_64", cpus: int = 4, sysconf=no_sysconf) -> SystemFacts:
    return read_system(root, machine=machine, affinity=range(cpus), sysconf=sysconf)


def test_whole_tree(tmp_path: Path) -> None:
    write(tmp_path, cpuinfo(4, AVX512))
    write(tmp_path, {"proc/meminfo": "MemFree: 1 kB\nMemTotal:       16384 kB"})
    write(tmp_path, cache(0, 0, 1, "Data", "32K", 8, "0"))
    write(tmp_path, cache(0, 1, 1, "Instruction", "64K", 8, "0"))
    write(tmp_path, cache(0, 2, 2, "Unified", "1M", 16, "0"))
    write(tmp_path, cache(0, 3, 3, "Unified", "32768K", 11, "0-7"))
    facts = facts_of(tmp_path)
    assert (facts.architecture, facts.model_name, facts.cores) == ("x86_64", "Test CPU", 4)
    assert facts.memory_bytes == 16 << 20
    assert [
        (c.name, c.capacity_bytes, c.associativity, c.shared_by_cores) for c in facts.caches
    ] == [("L1", 32 << 10, 8, 1), ("L2", 1 << 20, 16, 1), ("L3", 32 << 20, 11, 4)]
    assert {c.line_bytes for c in facts.caches} == {64}
    assert {c.provenance for c in facts.caches} == {"system"}
    assert isas_of(facts) == ("sse2", "avx2", "avx512")
    assert set(facts.provenance.values()) == {"system"}


def test_smt_siblings_are_one_core(tmp_path: Path) -> None:
    write(tmp_path, siblings("0,4", "1,5", "2,6", "3,7"))
    write(tmp_path, cache(0, 0, 1, "Data", "48K", 12, "0,4"))
    write(tmp_path, cache(0, 3, 3, "Unified", "30M", 12, "0-7"))
    facts = facts_of(tmp_path, cpus=8)
    assert facts.cores == 4
    assert [c.shared_by_cores for c in facts.caches] == [1, 4]


def test_affinity_smaller_than_the_machine(tmp_path: Path) -> None:
    write(tmp_path, cpuinfo(8, AVX2))
    write(tmp_path, cache(2, 0, 1, "Data", "32K", 8, "2"))
    write(tmp_path, cache(2, 3, 3, "Unified", "16M", 16, "0-7"))
    facts = read_system(tmp_path, machine="x86_64", affinity={2, 3, 5}, sysconf=no_sysconf)
    assert facts.cores == 3
    assert facts.caches[-1].shared_by_cores == 3


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"sys/fs/cgroup/cpu.max": "max 100000"}, 4),
        ({"sys/fs/cgroup/cpu.max": "150000 100000"}, 2),
        ({"sys/fs/cgroup/cpu.max": "1000 100000"}, 1),
        ({"sys/fs/cgroup/cpu.max": "900000 100000"}, 4),
        ({"sys/fs/cgroup/cpu.max": "nonsense"}, 4),
        (
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/cpu.max": "200000 100000",
                "sys/fs/cgroup/a/b/cpu.max": "300000 100000",
            },
            2,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/docker/x\n3:memory:/",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "250000",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
            },
            3,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu:/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            4,
        ),
    ],
)
def test_cgroup_quota(tmp_path: Path, files: dict[str, str], cores: int) -> None:
    write(tmp_path, files)
    assert facts_of(tmp_path).cores == cores


def test_cgroup_memory_limit(tmp_path: Path) -> None:
    write(tmp_path, {"proc/meminfo": "MemTotal: 8388608 kB", "sys/fs/cgroup/memory.max": "1048576"})
    assert facts_of(tmp_path).memory_bytes == 1 << 20
    write(tmp_path, {"sys/fs/cgroup/memory.max": "max"})
    assert facts_of(tmp_path).memory_bytes == 8 << 30


def test_hidden_caches_are_assumed(tmp_path: Path) -> None:
    write(tmp_path, cpuinfo(4, AVX2))
    caches = facts_of(tmp_path).caches
    assert [c.name for c in caches] == ["L1", "L2", "L3"]
    assert {c.provenance for c in caches} == {"assumed"}
    assert caches[0].capacity_bytes < caches[1].capacity_bytes < caches[2].capacity_bytes
    assert [c.shared_by_cores for c in caches] == [1, 1, 4]


def test_hidden_caches_from_the_c_library(tmp_path: Path) -> None:
    table = {188: 48 << 10, 189: 12, 190: 64, 191: 2 << 20, 192: 16, 193: 64, 194: 512 << 20}
    caches = facts_of(tmp_path, sysconf=lambda n: table.get(n, 64)).caches
    assert [(c.capacity_bytes, c.associativity) for c in caches[:2]] == [
        (48 << 10, 12),
        (2 << 20, 16),
    ]
    assert caches[0].provenance == "system"
    # The package's whole L3 is not to be believed for four cores.
    assert caches[2].capacity_bytes == 8 << 20
    assert caches[2].provenance == "assumed"


def test_c_library_without_answers(tmp_path: Path) -> None:
    assert {c.provenance for c in facts_of(tmp_path, sysconf=lambda n: 0).caches} == {"assumed"}


def test_damaged_cache_files_fall_back(tmp_path: Path) -> None:
    write(tmp_path, cache(0, 0, 1, "Data", "many", 8, "0"))
    assert facts_of(tmp_path).caches[0].provenance == "assumed"


def test_hidden_cpuinfo(tmp_path: Path) -> None:
    facts = facts_of(tmp_path)
    assert facts.features == frozenset()
    assert facts.provenance["features"] == "assumed"
    assert isas_of(facts) == ("sse2",)


def test_features_are_those_of_every_core(tmp_path: Path) -> None:
    wide = "processor: 0\nflags: " + AVX512
    write(tmp_path, {"proc/cpuinfo": wide + "\n\nprocessor: 1\nflags: " + AVX2})
    assert isas_of(facts_of(tmp_path)) == ("sse2", "avx2")


@pytest.mark.parametrize("permits", [False, True])
def test_a_matrix_unit_needs_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, permits: bool
) -> None:
    monkeypatch.setattr(system, "permits_matrix_unit", lambda: permits)
    write(tmp_path, {"proc/cpuinfo": f"processor: 0\nflags: {AVX512} amx_tile amx_int8"})
    features = facts_of(tmp_path).features
    assert ("amx_int8" in features, "avx512f" in features) == (permits, True)


@pytest.mark.parametrize(
    ("part", "name"), [("0xd0c", "Neoverse N1"), ("0xfff", "implementer 0x41 part 0xfff")]
)
def test_aarch64(tmp_path: Path, part: str, name: str) -> None:
    block = f"processor\t: 0\nFeatures\t: fp asimd aes\nCPU implementer\t: 0x41\nCPU part\t: {part}"
    write(tmp_path, {"proc/cpuinfo": block})
    facts = facts_of(tmp_path, machine="aarch64")
    assert facts.model_name == name
    assert "asimd" in facts.features
    assert isas_of(facts) == ("neon",)


def test_system_without_proc_and_sys(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, machine="arm64", cpus=8)
    assert (facts.architecture, facts.cores) == ("aarch64", 8)
    assert isas_of(facts) == ("neon",)
    assert facts.memory_bytes > 0
    assert facts.page_bytes >= 4096
    assert facts.provenance["memory_bytes"] == "assumed"


def test_unknown_architecture(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, machine="riscv64")
    with pytest.raises(HardwareError, match=r"riscv64.*aarch64, x86_64"):
        isas_of(facts)


def test_this_machine() -> None:
    facts = read_system()
    assert facts.cores >= 1
    assert facts.caches[0].name == "L1"
    assert facts == read_system()
