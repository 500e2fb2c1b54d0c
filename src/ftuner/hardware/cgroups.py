"""Limits of the control groups that this process is in, of versions 1 and 2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ftuner.hardware.system_files import read_int, read_text

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
