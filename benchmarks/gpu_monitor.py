"""Clocks, power and temperature of an NVIDIA GPU while it is measured, as its driver's own tool
reports them."""

import subprocess
import threading
import time
from contextlib import suppress
from statistics import median
from typing import Any

COLUMNS = (
    "clocks.sm",
    "clocks.mem",
    "power.draw",
    "temperature.gpu",
    "clocks_throttle_reasons.active",
)
PERIOD_MS = 100


class Monitor:
    """Samples of a device until it is closed; none where the tool cannot be started."""

    def __init__(self, device: str) -> None:
        """`device`: its UUID, as the tool takes it."""
        self._samples: list[tuple[float, list[str]]] = []
        self._child = None
        command = [
            "nvidia-smi", f"--id={device}", f"--query-gpu={','.join(COLUMNS)}",
            "--format=csv,noheader,nounits", f"--loop-ms={PERIOD_MS}",
        ]  # fmt: skip
        with suppress(OSError):
            self._child = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._child is not None
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self._samples.append((time.perf_counter(), line.strip().split(", ")))

    def since(self, began: float) -> dict[str, Any]:
        """The state since a time of `time.perf_counter`; empty if there is no sample."""
        rows = [row for at, row in self._samples if at >= began and len(row) == len(COLUMNS)]
        *columns, reasons = list(zip(*rows, strict=True)) or [()] * len(COLUMNS)
        found: dict[str, Any] = {}
        for name, pick, column in zip(
            ("sm_mhz", "memory_mhz", "power_w", "celsius"), (median, median, max, max), columns,
            strict=True,
        ):  # fmt: skip
            values = []
            for text in column:
                with suppress(ValueError):
                    values.append(float(text))
            if values:
                found[name] = pick(values)
        return {**found, "throttled_by": sorted(set(reasons))} if found else {}

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
