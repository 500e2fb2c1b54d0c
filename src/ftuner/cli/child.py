"""Measuring in a child process, because BLAS libraries size their thread pools by the environment
when they load. The request is its argument; it prints one JSON document."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ftuner import errors
from ftuner.core.child_processes import end_with_parent, python_child

Document = dict[str, Any]


def measured_in_child(module: str, request: Mapping[str, Any], threads: int) -> Document:
    """Returns the document that `python -m module REQUEST` prints. Its progress goes to stderr.

    Raises:
        ConfigurationError: there is no Python interpreter to start, as in a frozen program.
        FTunerError: the process raised it, or ended without a document.
    """
    count = str(threads)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
    }
    child = python_child("measure", environment)
    if child is None:
        raise errors.ConfigurationError(
            f"measuring needs a Python interpreter to start; sys.executable is {sys.executable!r}"
        )
    # A session of its own: Ctrl-C interrupts this process alone, which then ends the other one.
    done = subprocess.run(
        [*child.command, "-m", module, json.dumps(request)], env=child.environment,
        stdout=subprocess.PIPE, check=False, start_new_session=True,
    )  # fmt: skip
    if done.returncode:
        raise errors.FTunerError(f"the measuring process ended with exit code {done.returncode}")
    document: Document = json.loads(done.stdout)
    if "error" in document:
        raise getattr(errors, document["error"])(document["message"])
    return document


def answer(measure: Callable[[Any], Document]) -> None:
    """Run in the measuring process, which ends with its parent: print one document, with the
    measurements or with the named error."""
    end_with_parent()
    try:
        document = measure(json.loads(sys.argv[1]))
    except errors.FTunerError as error:
        document = {"error": type(error).__name__, "message": str(error)}
    json.dump(document, sys.stdout)
