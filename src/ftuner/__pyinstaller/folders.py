"""Where PyInstaller finds hooks: the entry point `pyinstaller40` names this function."""

from __future__ import annotations

from pathlib import Path


def get_hook_dirs() -> list[str]:
    """Returns the folders of hooks."""
    return [str(Path(__file__).parent)]
