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

Document = dict[str, Any]
EXIT_INTERRUPTED = 130
"""As of a process that SIGINT ended: 128 + 2."""


def measured_in_child(module: str, request: Mapping[str, Any], threads: int) -> Document:
    """Returns the document that `python -m module REQUEST` prints. Its progress goes to stderr.

    Raises:
        FTunerError: the process raised it, or ended without a document.
    """
    count = str(threads)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
    }
    command = [sys.executable, "-m", module, json.dumps(request)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise errors.FTunerError(f"the measuring process ended with exit code {done.returncode}")
    document: Document = json.loads(done.stdout)
    if "error" in document:
        raise getattr(errors, document["error"])(document["message"])
    return document


def answer(measure: Callable[[Any], Document]) -> None:
    """Run in the measuring process: print one document, with the measurements or with the named
    error."""
    try:
        document = measure(json.loads(sys.argv[1]))
    except KeyboardInterrupt:
        # The command that waits for this process was interrupted, too, and says so.
        sys.exit(EXIT_INTERRUPTED)
    except errors.FTunerError as error:
        document = {"error": type(error).__name__, "message": str(error)}
    json.dump(document, sys.stdout)
