"""The symbols of native functions: what defines one and what calls it agree on its name."""

from __future__ import annotations

from typing import Literal

from ftuner.core.cpu.tile import UKernel, epilogue_digest
from ftuner.core.dtype import DTYPES, DType
from ftuner.core.product import ProductTypes

POOL_WORKER_SYMBOL = "ftuner_pool_worker"
POOL_RUN_SYMBOL = "ftuner_pool_run"
POOL_BARRIER_SYMBOL = "ftuner_pool_barrier"
PROGRAM_SYMBOL = "ftuner_run_program"
TASKS_SYMBOL = "ftuner_run_tasks"
FIND_SYMBOL = "ftuner_find_decisions"
DECIDE_SYMBOL = "ftuner_decide"
FILL_SYMBOL = "ftuner_fill_records"
COPY_SYMBOL = "ftuner_copy_programs"
JOIN_SYMBOL = "ftuner_join_steps"
WORDS_SYMBOL = "ftuner_find_words"
TEXTS_SYMBOL = "ftuner_are_texts"
TAKE_WORKSPACE_SYMBOL = "ftuner_take_workspace"
GIVE_WORKSPACE_SYMBOL = "ftuner_give_workspace"
DriverFunction = Literal["call", "gemm", "alone", "chunk", "panels", "pack"]

KNOWN_CALL_INPUTS = (1, 2)
"""Numbers of input arrays of the native functions that Python calls: layers, matrix products."""


def known_call_symbol(inputs: int | None) -> str:
    """The symbol of the function that Python calls with `inputs` arrays to read; if that is None,
    with the inputs of a program, of any number."""
    return "ftuner_known_program" if inputs is None else f"ftuner_known_call_{inputs}"


def driver_symbol(function: DriverFunction, dtype: DType) -> str:
    """The symbol of a function of the driver of a dtype: `call` is the entry point of matrix
    products, `gemm` the job that every worker runs, `alone` a product by one thread, for any number
    of planned workers, `chunk` a chunk of it, `panels` some of its panels, and `pack` packs B."""
    return f"ftuner_{function}_{dtype}"


def runtime_symbols() -> tuple[str, ...]:
    """The symbols of the functions of the runtime that others may call."""
    drivers = [
        s for t in DTYPES.values() for s in (driver_symbol("call", t), driver_symbol("pack", t))
    ]
    calls = map(known_call_symbol, (None, *KNOWN_CALL_INPUTS))
    return (
        POOL_WORKER_SYMBOL, POOL_RUN_SYMBOL, PROGRAM_SYMBOL, TASKS_SYMBOL, FIND_SYMBOL,
        DECIDE_SYMBOL, FILL_SYMBOL, WORDS_SYMBOL, TEXTS_SYMBOL, COPY_SYMBOL, JOIN_SYMBOL,
        TAKE_WORKSPACE_SYMBOL, GIVE_WORKSPACE_SYMBOL, *drivers, *calls,
    )  # fmt: skip


def widen_symbol(types: ProductTypes) -> str:
    """The symbol of the function that widens panels of B to the elements of A."""
    return f"ftuner_widen_{types.b}_to_{types.a}"


def finish_symbol(like: UKernel) -> str:
    """The symbol of the function that applies the epilogue of a uKernel to stored tiles."""
    return f"finish_{like.types.c}_{like.isa}_{epilogue_digest(like.epilogue)}"


def reduce_symbol(like: UKernel) -> str:
    """The symbol of the reduction of partial products for a uKernel's dtypes, ISA and epilogue."""
    return f"reduce_{like.types}_{like.isa}_{epilogue_digest(like.epilogue)}"
