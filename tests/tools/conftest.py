"""Tests of the tools use the command line as those of `tests/cli` do."""

from tests.cli.conftest import _own_session, interruptible, warm_folder

__all__ = ["_own_session", "interruptible", "warm_folder"]
