"""The symbols of native functions: what defines one and what calls it agree on its name."""

from __future__ import annotations

from ftuner.core.cpu.tile import UKernel, epilogue_digest
from ftuner.core.dtype import DType
from ftuner.core.product import ProductTypes

POOL_WORKER_SYMBOL = "ftuner_pool_worker"
POOL_RUN_SYMBOL = "ftuner_pool_run"
POOL_BARRIER_SYMBOL = "ftuner_pool_barrier"
PROGRAM_SYMBOL = "ftuner_run_program"
TASKS_SYMBOL = "ftuner_run_tasks"
DECIDE_SYMBOL = "ftuner_decide"
FILL_SYMBOL = "ftuner_fill_records"
COPY_SYMBOL = "ftuner_copy_programs"
JOIN_SYMBOL = "ftuner_join_steps"
WORDS_SYMBOL = "ftuner_find_words"
TEXTS_SYMBOL = "ftuner_are_texts"
TAKE_WORKSPACE_SYMBOL = "ftuner_take_workspace"
GIVE_WORKSPACE_SYMBOL = "ftuner_give_workspace"


def call_symbol(dtype: DType) -> str:
    """The symbol of the entry point of matrix products."""
    return f"ftuner_call_{dtype}"


KNOWN_CALL_INPUTS = (1, 2)
"""Numbers of input arrays of the native functions that Python calls: layers, matrix products."""


KNOWN_PROGRAM_SYMBOL = "ftuner_known_program"
"""The function that Python calls with the inputs of a program, of any number."""


def known_call_symbol(inputs: int) -> str:
    """The symbol of the function that Python calls with `inputs` arrays to read."""
    return f"ftuner_known_call_{inputs}"


def job_symbol(dtype: DType) -> str:
    """The symbol of the job that every worker of a matrix product runs."""
    return f"ftuner_gemm_{dtype}"


def alone_symbol(dtype: DType) -> str:
    """The symbol of a matrix product by one thread, for any number of planned workers."""
    return f"ftuner_alone_{dtype}"


def chunk_symbol(dtype: DType) -> str:
    """The symbol of a chunk of a matrix product."""
    return f"ftuner_chunk_{dtype}"


def panels_symbol(dtype: DType) -> str:
    """The symbol of some panels of a matrix product."""
    return f"ftuner_panels_{dtype}"


def pack_symbol(dtype: DType) -> str:
    return f"ftuner_pack_{dtype}"


def widen_symbol(types: ProductTypes) -> str:
    """The symbol of the function that widens panels of B to the elements of A."""
    return f"ftuner_widen_{types.b}_to_{types.a}"


def finish_symbol(like: UKernel) -> str:
    """The symbol of the function that applies the epilogue of a uKernel to stored tiles."""
    return f"finish_{like.types.c}_{like.isa}_{epilogue_digest(like.epilogue)}"


def reduce_symbol(like: UKernel) -> str:
    """The symbol of the reduction of partial products for a uKernel's dtypes, ISA and epilogue."""
    return f"reduce_{like.types}_{like.isa}_{epilogue_digest(like.epilogue)}"
