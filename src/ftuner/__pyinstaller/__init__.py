"""PyInstaller asks here for what it cannot see: modules that are imported by name, and data."""

from __future__ import annotations

from pathlib import Path


def get_hook_dirs() -> list[str]:
    """The folders of hooks: this one."""
    return [str(Path(__file__).parent)]
