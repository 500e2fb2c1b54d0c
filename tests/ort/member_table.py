"""`python -m tests.ort.member_table`: writes the tables of docs/onnxruntime.md, which compare the
members of `onnxruntime` with those of `ftuner.ort`."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import onnxruntime

import ftuner.ort
from ftuner.ort.exceptions import REASONS

PATH = Path(__file__).parent.parent.parent / "docs" / "onnxruntime.md"
BEGIN = "<!-- Written by `python -m tests.ort.member_table`. -->"
THERE, REFUSED, ABSENT = "there", "refused", "absent"
INSIDE = frozenset(
    {"contextlib", "import_capi_exception", "package_name", "cuda_version", "version"}
)
"""Names of the module that are no part of its interface."""
_ONE_PLAN = "ftuner plans memory and the order of steps itself"
_OWN_PASSES = "all passes run always"
_LOGGING = "ftuner reports through `logging`; `set_default_logger_severity` sets its level"
WITHOUT_EFFECT = {
    "IOBinding.synchronize_inputs": "copies and runs are in the order of torch's stream",
    "IOBinding.synchronize_outputs": "copies and runs are in the order of torch's stream",
    "InferenceSession.get_tuning_results": "returns nothing: the cache folder has what is measured",
    "InferenceSession.release_captured_graph": "graphs are not captured under numbers",
    "InferenceSession.set_ep_dynamic_options": "there are no such options",
    "InferenceSession.set_tuning_results": "takes nothing, which `get_tuning_results` returns",
    "RunOptions.add_run_config_entry": "entries are kept and returned",
    "RunOptions.log_severity_level": _LOGGING,
    "RunOptions.log_verbosity_level": _LOGGING,
    "RunOptions.logid": _LOGGING,
    "RunOptions.only_execute_path_to_fetches": "a run computes all outputs",
    "SessionOptions.clear_ep_context_data_read_func": "there is no such function to forget",
    "SessionOptions.enable_cpu_mem_arena": _ONE_PLAN,
    "SessionOptions.enable_mem_pattern": _ONE_PLAN,
    "SessionOptions.enable_mem_reuse": _ONE_PLAN,
    "SessionOptions.execution_mode": _ONE_PLAN,
    "SessionOptions.execution_order": _ONE_PLAN,
    "SessionOptions.graph_optimization_level": _OWN_PASSES,
    "SessionOptions.inter_op_num_threads": "`intra_op_num_threads` are all threads of a run",
    "SessionOptions.log_severity_level": _LOGGING,
    "SessionOptions.log_verbosity_level": _LOGGING,
    "SessionOptions.logid": _LOGGING,
    "SessionOptions.optimized_model_filepath": "the file is a copy of the model as it was given, "
    "and a warning says so",
    "SessionOptions.use_deterministic_compute": "results have the same bits from run to run",
    "SessionOptions.use_per_session_threads": "sessions share the threads of the process",
    "disable_telemetry_events": "ftuner sends nothing",
    "enable_telemetry_events": "ftuner sends nothing",
    "preload_dlls": "torch loads the libraries of CUDA",
    "set_default_logger_verbosity": _LOGGING,
}
"""Members that take what onnxruntime takes and change nothing, and why."""


class Member(NamedTuple):
    """A name of the module, or a member of one of its classes, and whether it is here."""

    name: str
    status: str


def members() -> Iterator[Member]:
    """All public members of onnxruntime's module and of its classes, in alphabetical order."""
    for name in sorted(n for n in dir(onnxruntime) if not n.startswith("_") and n not in INSIDE):
        if isinstance(getattr(onnxruntime, name), ModuleType):
            continue
        if not hasattr(ftuner.ort, name):
            yield Member(name, ABSENT)
            continue
        yield Member(name, THERE)
        theirs = getattr(onnxruntime, name)
        if isinstance(theirs, type):
            yield from _parts(name, theirs, getattr(ftuner.ort, name))


def _parts(name: str, theirs: type, own: type) -> Iterator[Member]:
    parts = getattr(theirs, "__members__", None) or dir(theirs)
    for part in sorted(part for part in parts if not part.startswith("_")):
        there = hasattr(own, part) or part in getattr(own, "__annotations__", {})
        full = f"{name}.{part}"
        yield Member(full, ABSENT if not there else REFUSED if full in REASONS else THERE)


def tables() -> str:
    """The generated end of the page."""
    found = list(members())
    by_status = {s: [m.name for m in found if m.status == s] for s in (THERE, REFUSED, ABSENT)}
    silent = [name for name in by_status[THERE] if name in WITHOUT_EFFECT]
    there = [name for name in by_status[THERE] if name not in WITHOUT_EFFECT]
    return "\n".join(
        [
            f"## Members of onnxruntime {onnxruntime.__version__}",
            "",
            f"Of {len(found)} members, {len(there)} are there, {len(silent)} are there without an "
            f"effect, {len(by_status[REFUSED])} raise `NotImplemented`, and "
            f"{len(by_status[ABSENT])} are absent: their names raise `AttributeError` with the "
            "reason.",
            "",
            "| class or module | there |",
            "| --- | --- |",
            *(f"| {owner} | {' '.join(parts)} |" for owner, parts in _grouped(there).items()),
            "",
            "| there without an effect | why |",
            "| --- | --- |",
            *_rows(silent, WITHOUT_EFFECT),
            "",
            "| raises `NotImplemented` | why |",
            "| --- | --- |",
            *_rows(by_status[REFUSED], REASONS),
            "",
            "| absent | why |",
            "| --- | --- |",
            *_rows(by_status[ABSENT], REASONS),
            "",
        ]
    )


def _grouped(names: list[str]) -> dict[str, list[str]]:
    """Members by class, those of the module under its name."""
    found: dict[str, list[str]] = {}
    for name in names:
        owner, _, part = name.rpartition(".")
        found.setdefault(f"`{owner or 'onnxruntime'}`", []).append(f"`{part}`")
    return found


def _rows(names: list[str], reasons: dict[str, str]) -> Iterator[str]:
    """A row for each reason, with all names that have it."""
    grouped: dict[str, list[str]] = {}
    for name in names:
        grouped.setdefault(reasons[name], []).append(f"`{name}`")
    for reason, found in grouped.items():
        yield f"| {' '.join(found)} | {reason} |"


def page() -> str:
    """The whole page: its text as it is, and the tables made anew."""
    text = PATH.read_text(encoding="utf-8") if PATH.exists() else ""
    return f"{text.partition(BEGIN)[0]}{BEGIN}\n\n{tables()}"


if __name__ == "__main__":
    PATH.write_text(page(), encoding="utf-8")
