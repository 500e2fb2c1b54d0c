from ftuner.codegen.triton.functions import Functions
from ftuner.core.dtype import DType


def rsqrt(functions: Functions, dtype: DType) -> str:
    return "return tl.rsqrt(x)"
