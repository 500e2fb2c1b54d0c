"""Python embedded in a program: it compiles in its process, whatever `sys.executable` is."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from tests.conftest import HOST_ISAS

from ftuner.runtime.cache import CACHE_VARIABLE

COMPILER = shutil.which("cc")
LIBRARY = Path(sysconfig.get_config_var("LIBDIR") or "") / (
    sysconfig.get_config_var("INSTSONAME") or ""
)
HEADERS = Path(sysconfig.get_path("include"))
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        COMPILER is None or ".so" not in LIBRARY.name or not LIBRARY.is_file()
        or not (HEADERS / "Python.h").is_file(),
        reason="no C compiler, or no shared library of Python and its headers",
    ),
]  # fmt: skip
HOST = """
#include <Python.h>
#include <stdio.h>
int main(int argc, char **argv) {
    PyConfig config;
    FILE *starts = fopen("starts", "a");
    fputs("start\\n", starts);
    fclose(starts);
    PyConfig_InitPythonConfig(&config);
    if (argc > 2)
        PyConfig_SetBytesString(&config, &config.executable, argv[2]);
    if (PyStatus_Exception(Py_InitializeFromConfig(&config)))
        return 3;
    return PyRun_SimpleFileEx(fopen(argv[1], "r"), argv[1], 1) ? 1 : Py_FinalizeEx() ? 4 : 0;
}
"""
SCRIPT = f"""
import sys
sys.path[:] = {sys.path!r}
from tests.runtime.test_cache import small_bundles
from ftuner.codegen.llvm.objects.jit import host_target
from ftuner.runtime.cache import default_cache
from ftuner.runtime.cpu.compilation import Compiler
compiler = Compiler(host_target({HOST_ISAS[0]!r}), default_cache(), 1)
found = compiler.compile_missing(small_bundles(), None)
print(sys.executable, len(found) == len(small_bundles()))
"""


@pytest.mark.parametrize("executable", [None, "host", "python3", ""])
def test_an_embedded_python(tmp_path: Path, executable: str | None) -> None:
    (tmp_path / "host.c").write_text(HOST)
    (tmp_path / "script.py").write_text(SCRIPT)
    library = [str(LIBRARY), f"-Wl,-rpath,{LIBRARY.parent}"]
    assert COMPILER is not None
    command = [COMPILER, "host.c", "-o", "host", f"-I{HEADERS}", *library]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=60)
    program = tmp_path / "host"
    # A program that has the name of an interpreter is none of this installation.
    named = program
    if executable == "python3":
        named = Path(shutil.copy(program, tmp_path / executable))
    given = [str(named)] if executable else [] if executable is None else [""]
    environment = {**os.environ, CACHE_VARIABLE: str(tmp_path / "cache")}
    environment |= {"PYTHONHOME": os.pathsep.join((sys.base_prefix, sys.base_exec_prefix))}
    ran = subprocess.run(
        [program, "script.py", *given], cwd=tmp_path, env=environment, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split()[-1] == "True"
    assert (tmp_path / "starts").read_text().split() == ["start"]
