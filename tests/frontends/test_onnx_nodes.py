"""The tests of operators that ONNX comes with, as they are and with a symbol for every extent."""

import pytest
from onnx import TensorProto
from tests.frontends.node_cases import (
    PASSED,
    UNSUPPORTED_DTYPE,
    UNSUPPORTED_OPERATOR,
    UNSUPPORTED_SHAPE,
    WRONG,
    Case,
    Outcome,
    cases,
    parameters,
    run,
    symbolic,
)
from tests.frontends.onnx_models import compiled
from tests.registered import operators_of

from ftuner.core.dtype import ELEMENT_DTYPES
from ftuner.frontends.onnx.importer import SUPPORTED
from ftuner.frontends.onnx.reading import domain_of, nodes_of
from ftuner.runtime.reference import run_reference

CASES = parameters(expanded=3)
DRAWN = {op for _, op in operators_of("random_numbers")} - {"Dropout"}
"""Operators whose results are random numbers, of which no case can be."""
OPEN_HEADS = "Attention whose number of heads is a symbol, written out: it repeats heads by a shape"
SHAPES_OF_DATA = {
    "test_attention_4d_": OPEN_HEADS,
    "test_attention_local_window_": OPEN_HEADS,
    "test_center_crop_pad_": "padding by differences that may be negative, rounded towards zero",
}
"""What begins the names of cases, with symbols, whose shapes only run time knows, and why."""


BROADCAST_OF_ONE = ("test_linear_attention_gated_per_head_decay",)
"""What begins the names of cases with symbols of which only run time knows that one is 1: they are
taken for equal, and refused."""


CORNERS_OF_FRACTIONS = (
    "test_resize_downsample_scales_linear_align_corners",
    "test_resize_downsample_scales_cubic_align_corners",
)
"""Cases whose scales give no whole extent: ONNX aligns the corners by the product, onnxruntime and
ftuner by the extent of the result."""


def _expect_right(case: Case, outcome: Outcome) -> None:
    if case.name in CORNERS_OF_FRACTIONS:
        assert outcome.why.startswith("Y is array")
    elif not case.name.startswith(BROADCAST_OF_ONE) or "ShapeError" not in outcome.why:
        assert outcome.kind != WRONG, outcome.why


def _expect_reason(case: Case, kind: str) -> None:
    """That what is not supported is so for the reason that is given."""
    model = case.model
    nodes = {(domain_of(n.domain), n.op_type) for n in nodes_of(model.graph.node)}
    if kind == UNSUPPORTED_OPERATOR:
        assert not nodes <= SUPPORTED
    elif kind == UNSUPPORTED_DTYPE:
        aliases = {"float": "float32", "double": "float64"}
        known = [
            number
            for name, number in TensorProto.DataType.items()
            if aliases.get(name.lower(), name.lower()) in ELEMENT_DTYPES
        ]
        used = [v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)]
        for node in model.graph.node:
            used += [a.t.data_type for a in node.attribute if a.HasField("t")]
            used += [a.i for a in node.attribute if a.name in ("to", "output_dtype", "precision")]
        assert not set(used) <= set(known)


AS_IT_COMES = {"test_causal_conv_with_state_": "ONNX defines it for extents that are known only"}
"""What begins the names of cases that are refused where all inputs stay inputs, and why."""


@pytest.mark.parametrize("case", CASES)
def test_by_references(case: Case) -> None:
    """With known extents and with symbols. Numbers that decide shapes or axes are constants, and
    come with the other inputs."""
    for changed, refused in ((case, {}), (symbolic(case), SHAPES_OF_DATA)):
        for as_it_comes in (False, True):
            outcome = run(changed, run_reference, as_it_comes)
            _expect_right(case, outcome)
            _expect_reason(case, outcome.kind)
            if outcome.kind == UNSUPPORTED_SHAPE:
                known = AS_IT_COMES if as_it_comes else refused
                assert case.name.startswith(tuple(known)), outcome.why


@pytest.mark.full
@pytest.mark.parametrize("case", parameters(every=8, expanded=24))
def test_compiled(case: Case) -> None:
    """Compiled code gives what the references give, where these are right. Known extents are
    symbols that are numbers: few cases show that."""
    if run(case).kind == PASSED:
        outcome = run(case, compiled)
        assert outcome.kind == PASSED, outcome.why


@pytest.mark.parametrize("case", parameters(every=2, expanded=6))
def test_compiled_with_symbols(case: Case) -> None:
    """As it comes, a case is the same graph if none of its inputs has to be a constant."""
    changed = symbolic(case)
    first = run(changed)
    ways = (False,) if first.kind == PASSED and not first.fixed else (False, True)
    for as_it_comes in ways:
        if run(changed, run_reference, as_it_comes).kind == PASSED:
            outcome = run(changed, compiled, as_it_comes)
            assert outcome.kind == PASSED, outcome.why


def test_all_operators_have_cases() -> None:
    """Every operator of ONNX that is supported passes at least one of its cases."""
    missing = {op for domain, op in SUPPORTED if domain == ""}
    for case in cases():
        ops = {node.op_type for node in case.model.graph.node}
        if missing & ops and run(case).kind == PASSED:
            missing -= ops
    # Two have no case; the third is onnxruntime's own, though in the domain of ONNX. Of the others
    # all cases have sequences or optionals as inputs or outputs, or none of random numbers are
    # there.
    assert missing - DRAWN == {
        "GlobalLpPool", "MaxRoiPool", "SimplifiedLayerNormalization", "ConcatFromSequence",
        "Optional", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase",
        "SequenceInsert", "SequenceLength", "SequenceMap", "SplitToSequence",
    }  # fmt: skip
