"""Files of `/proc` and `/sys`, any of which may be hidden.

Linux reports it in `/proc` and `/sys`; containers and virtual machines hide parts of both, and
other systems have neither. Whatever is missing is replaced by a conservative default, and
`provenance` says so.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import platform
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import field
from pathlib import Path

from ftuner.core.frozen import dataclass
from ftuner.core.operating_system import glibc_sysconf, own_affinity, permits_matrix_unit
from ftuner.errors import HardwareError
from ftuner.hardware.isa import MATRIX_UNIT, instruction_sets


def read_text(path: Path) -> str | None:
    """The text of a file without surrounding space; None if it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read().decode(errors="replace").strip()
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    """A number, `K`/`M`/`G` understood as the kernel writes cache sizes; None if it is not one."""
    text = read_text(path)
    if not text:
        return None
    scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1].upper(), 1)
    digits = text[:-1] if scale > 1 else text
    return int(digits) * scale if digits.isdecimal() else None


_UNLIMITED = 1 << 60
"""Version 1 says that there is no limit with a number near 2^63."""


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's cgroup and its ancestors, v2 (one hierarchy) and v1."""
    mount = root / "sys/fs/cgroup"
    for line in (read_text(root / "proc/self/cgroup") or "0::/").splitlines():
        fields = line.split(":", 2)
        if len(fields) != 3:
            continue
        _, controllers, group = fields
        if controllers == "":
            bases = [mount, mount / "unified"]
        elif controller in controllers.split(","):
            bases = [mount / controllers, mount / controller]
        else:
            continue
        path = Path(group.lstrip("/"))
        for base in bases:
            # Inside a container the path is the host's, and only the mount's top is there.
            yield from (base / p for p in (path, *path.parents))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """CPUs that the tightest cgroup grants, or None without a limit."""
    quotas = []
    for folder in _folders(root, "cpu"):
        limit, _, period = (read_text(folder / "cpu.max") or "").partition(" ")
        if not limit.isdecimal():
            limit = read_text(folder / "cpu.cfs_quota_us") or ""
            period = read_text(folder / "cpu.cfs_period_us") or ""
        if limit.isdecimal() and period.isdecimal() and int(period) > 0:
            quotas.append(int(limit) / int(period))
    return min(quotas, default=None)


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes that the tightest cgroup grants, or None without a limit."""
    limits = []
    for folder in _folders(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = read_int(folder / name)
            if limit and limit < _UNLIMITED:
                limits.append(limit)
    return min(limits, default=None)


ARCHITECTURES: Mapping[str, str] = {
    "x86_64": "x86_64",
    "amd64": "x86_64",
    "aarch64": "aarch64",
    "arm64": "aarch64",
}
"""`platform.machine()` in lower case -> the architecture's name here."""

_ARM_CORES: Mapping[tuple[str, str], str] = {
    ("0x41", "0xd03"): "Cortex-A53",
    ("0x41", "0xd08"): "Cortex-A72",
    ("0x41", "0xd0b"): "Cortex-A76",
    ("0x41", "0xd0c"): "Neoverse N1",
    ("0x41", "0xd40"): "Neoverse V1",
    ("0x41", "0xd49"): "Neoverse N2",
    ("0x41", "0xd4f"): "Neoverse V2",
    ("0xc0", "0xac3"): "Ampere-1",
}
"""(implementer, part) of MIDR_EL1 -> core; from the cores' technical reference manuals."""

_KIB = 1024
_MIB = 1024 * _KIB


@dataclass(frozen=True)
class CacheLevel:
    """One level of data cache."""

    name: str
    """`L1`, `L2` or `L3`."""
    capacity_bytes: int
    line_bytes: int
    associativity: int
    """Ways of a set; 0 where it is not known."""
    shared_by_cores: int
    """Usable cores that share one instance."""
    provenance: str
    """`system` or `assumed`."""


@dataclass(frozen=True)
class SystemFacts:
    """What the operating system reports about the CPU that this process runs on."""

    architecture: str
    """`x86_64` or `aarch64`; another machine's name as it stands, for the error message."""
    model_name: str
    cores: int
    """Cores that this process may use: affinity, less SMT siblings, within the cgroup's quota."""
    features: frozenset[str]
    """CPU feature flags as Linux spells them; empty where hidden."""
    caches: tuple[CacheLevel, ...]
    """Data caches, L1 first."""
    page_bytes: int
    memory_bytes: int
    """Memory of the machine, or the cgroup's limit where that is lower."""
    provenance: Mapping[str, str] = field(default_factory=dict, compare=False, hash=False)

    @property
    def fingerprint(self) -> str:
        """A short hash of what identifies the machine."""
        identity = (
            self.architecture,
            self.model_name,
            self.cores,
            sorted(self.features),
            [(c.name, c.capacity_bytes, c.line_bytes, c.associativity) for c in self.caches],
        )
        return hashlib.sha256(repr(identity).encode()).hexdigest()[:32]


_ASSUMED_CACHES = (("L1", 32 * _KIB, 64, 8), ("L2", 256 * _KIB, 64, 4), ("L3", 4 * _MIB, 64, 16))
"""(name, bytes, line, ways): the smallest among x86 cores since Haswell and Arm servers since
Neoverse N1, so that a tile sized by them fits everywhere; L3 is a dual-core's 2 MiB a core."""
_ASSUMED_L3_BYTES_PER_CORE = 2 * _MIB
_ASSUMED_MEMORY_BYTES = 4 * 1024 * _MIB

_GLIBC_CACHE_NAMES = (("L1", 188), ("L2", 191), ("L3", 194))
"""glibc's `_SC_LEVEL{1_D,2_,3_}CACHE_SIZE`; the next two numbers are its ways and its line. Python
has no names for them. Other C libraries answer with an error or with a value out of range."""


def read_system(
    root: Path = Path("/"),
    *,
    machine: str | None = None,
    affinity: Collection[int] | None = None,
    sysconf: Callable[[int], int] | None = None,
) -> SystemFacts:
    """Read the facts. `root` is the folder of `proc` and `sys`; `machine` stands for
    `platform.machine()`, `affinity` for the CPU numbers this process may run on, and `sysconf` for
    `os.sysconf` asked about caches. Never raises for what is hidden."""
    provenance = dict.fromkeys(
        ("architecture", "model_name", "cores", "features", "page_bytes", "memory_bytes"), "system"
    )
    architecture = machine if machine is not None else platform.machine()
    architecture = ARCHITECTURES.get(architecture.lower(), architecture)
    usable = sorted(own_affinity() if affinity is None else affinity) or [0]
    siblings = {cpu: _siblings(root, cpu) for cpu in usable}
    cores = len(set(siblings.values()))
    quota = cpu_quota(root)
    if quota is not None:
        cores = min(cores, max(1, math.ceil(quota)))
    sections = _cpuinfo(root)
    features = _features(sections, architecture)
    if not features:
        provenance["features"] = "assumed"
    memory = _memory_bytes(root)
    if memory is None:
        provenance["memory_bytes"] = "assumed"
        memory = _ASSUMED_MEMORY_BYTES
    return SystemFacts(
        architecture=architecture,
        model_name=_model_name(sections, architecture),
        cores=cores,
        features=_permitted(features),
        caches=(
            _caches_from_sys(root, siblings, cores)
            or _caches_from_sysconf(sysconf or glibc_sysconf, cores)
            or _caches_assumed(cores)
        ),
        page_bytes=mmap.PAGESIZE,
        memory_bytes=memory,
        provenance=provenance,
    )


def isas_of(facts: SystemFacts) -> tuple[str, ...]:
    """The vector instruction sets that the facts promise, narrow to wide.

    Raises HardwareError for an architecture that is not supported."""
    rows = instruction_sets(facts.architecture)
    if not rows:
        supported = ", ".join(sorted(set(ARCHITECTURES.values())))
        raise HardwareError(
            f"unsupported CPU architecture {facts.architecture!r}; supported are {supported}"
        )
    return tuple(row.name for row in rows if facts.features.issuperset(row.flags))


def promised_isas(facts: SystemFacts) -> tuple[str, ...]:
    """The instruction sets that the CPU may have by the facts: all of its architecture where the
    operating system hides its features. Raises as `isas_of`."""
    listed = isas_of(facts)
    if facts.features:
        return listed
    return tuple(row.name for row in instruction_sets(facts.architecture))


def _permitted(features: frozenset[str]) -> frozenset[str]:
    """Features without those of a matrix unit, if the system does not permit this process to use
    it."""
    of_unit = {name for name in features if name.startswith(MATRIX_UNIT)}
    return features if not of_unit or permits_matrix_unit() else features - of_unit


def _cpu_list(text: str | None) -> frozenset[int]:
    """`0-3,8` as a set; empty if it is hidden or not such a list."""
    cpus: set[int] = set()
    for part in (text or "").split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            return frozenset()
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def _cpu_folder(root: Path, cpu: int) -> Path:
    return root / f"sys/devices/system/cpu/cpu{cpu}"


def _siblings(root: Path, cpu: int) -> frozenset[int]:
    """The CPUs of the core that `cpu` is a thread of: they share its vector units."""
    text = read_text(_cpu_folder(root, cpu) / "topology/thread_siblings_list")
    return _cpu_list(text) | {cpu}


def _memory_bytes(root: Path) -> int | None:
    sizes = []
    for line in (read_text(root / "proc/meminfo") or "").splitlines():
        words = line.split()
        if words[:1] == ["MemTotal:"] and len(words) > 1 and words[1].isdecimal():
            sizes.append(int(words[1]) * _KIB)
    limit = memory_limit(root)
    if limit is not None:
        sizes.append(limit)
    return min(sizes, default=None)


def _cpuinfo(root: Path) -> list[dict[str, str]]:
    """`/proc/cpuinfo` as one mapping a processor; keys in lower case."""
    sections = []
    for block in (read_text(root / "proc/cpuinfo") or "").split("\n\n"):
        pairs = (line.partition(":") for line in block.splitlines() if ":" in line)
        section = {key.strip().lower(): value.strip() for key, _, value in pairs}
        if section:
            sections.append(section)
    return sections


def _features(sections: list[dict[str, str]], architecture: str) -> frozenset[str]:
    """The flags that all processors have (unequal cores exist); x86 says `flags`, Arm `Features`,
    and an emulator may show those of its host."""
    key = "features" if architecture == "aarch64" else "flags"
    flags = [frozenset(section[key].split()) for section in sections if key in section]
    return frozenset.intersection(*flags) if flags else frozenset()


def _model_name(sections: list[dict[str, str]], architecture: str) -> str:
    for section in sections:
        if "model name" in section:
            return section["model name"]
    for section in sections:
        implementer, part = section.get("cpu implementer"), section.get("cpu part")
        if implementer and part:
            unnamed = f"implementer {implementer} part {part}"
            return _ARM_CORES.get((implementer.lower(), part.lower()), unnamed)
    return f"unknown {architecture}"


def _caches_from_sys(
    root: Path, siblings: Mapping[int, frozenset[int]], cores: int
) -> tuple[CacheLevel, ...]:
    """The data caches of the first usable CPU; empty unless L1 is among them."""
    first = min(siblings)
    levels: dict[int, CacheLevel] = {}
    for folder in sorted((_cpu_folder(root, first) / "cache").glob("index*")):
        level, capacity = read_int(folder / "level"), read_int(folder / "size")
        line = read_int(folder / "coherency_line_size")
        if read_text(folder / "type") not in ("Data", "Unified") or not (
            level and capacity and line
        ):
            continue
        sharing = _cpu_list(read_text(folder / "shared_cpu_list"))
        sharers = len({s for cpu, s in siblings.items() if cpu in sharing}) or 1
        levels[level] = CacheLevel(
            f"L{level}",
            capacity,
            line,
            read_int(folder / "ways_of_associativity") or 0,
            min(sharers, cores),
            "system",
        )
    return tuple(levels[i] for i in sorted(levels)) if 1 in levels else ()


def _caches_from_sysconf(sysconf: Callable[[int], int], cores: int) -> tuple[CacheLevel, ...]:
    """What the C library knows (on x86 from CPUID); empty unless L1 is among it."""
    caches: list[CacheLevel] = []
    for name, number in _GLIBC_CACHE_NAMES:
        try:
            capacity, ways, line = (sysconf(number + i) for i in range(3))
        except (OSError, ValueError):
            break
        if capacity <= 0 or line <= 0:
            break
        shared, provenance = 1, "system"
        if name == "L3":
            # CPUID gives the whole package, of which this process may have a slice only.
            shared, provenance = cores, "assumed"
            capacity = min(capacity, _assumed_l3_bytes(cores))
        caches.append(CacheLevel(name, capacity, line, max(ways, 0), shared, provenance))
    return tuple(caches)


def _assumed_l3_bytes(cores: int) -> int:
    return max(_ASSUMED_CACHES[-1][1], cores * _ASSUMED_L3_BYTES_PER_CORE)


def _caches_assumed(cores: int) -> tuple[CacheLevel, ...]:
    (l1, l2, (name, _, line, ways)) = _ASSUMED_CACHES
    return (
        CacheLevel(*l1, 1, "assumed"),
        CacheLevel(*l2, 1, "assumed"),
        CacheLevel(name, _assumed_l3_bytes(cores), line, ways, cores, "assumed"),
    )
