"""Einsum: sums of products, specified by labels of axes.

Operands are contracted in the order of the equation. Each contraction is a matrix product, whose
batch axes are the labels that both operands have and that are needed later, or an elementwise
product if nothing is summed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ftuner.core.dim import Dim, product
from ftuner.core.frozen import dataclass
from ftuner.graph.algebra import gather, iota
from ftuner.graph.checks import malformed, require
from ftuner.graph.ir import Value

BROADCAST = "0123456789"
"""Labels for the axes of an ellipsis, the last axis first."""


@dataclass(frozen=True)
class Term:
    """A tensor with a label for each axis."""

    labels: str
    value: Value


def einsum(equation: str, operands: Sequence[Value]) -> Value:
    """The result of an equation.

    Raises:
        GraphError: the equation is malformed or does not fit the operands.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    written = left.split(",")
    if len(written) != len(operands):
        raise malformed(f"{equation!r} has {len(written)} operands, not {len(operands)}")
    terms = [_labelled(text, v) for text, v in zip(written, operands, strict=True)]
    dots = max(
        (label for term in terms for label in term.labels if label in BROADCAST), default=None
    )
    ellipsis = "" if dots is None else BROADCAST[: int(dots) + 1][::-1]
    # An implicit result has the labels that occur once, in alphabetical order.
    once = sorted(c for c, n in Counter(left).items() if n == 1 and c.isalpha())
    result = right.replace("...", ellipsis) if arrow else ellipsis + "".join(once)
    used = set("".join(term.labels for term in terms))
    if len(set(result)) != len(result) or not used.issuperset(result):
        raise malformed(f"{equation!r} has the result {result!r}")
    terms = [_diagonal(term) for term in terms]
    needed = [set(result)]
    """The labels that are still needed: by the result, then also by the last term, and so on."""
    for term in reversed(terms[2:]):
        needed.append(needed[-1] | set(term.labels))
    total = terms[0]
    for term in terms[1:]:
        total = contract(total, term, needed.pop())
    return arranged(summed(total, set(result)), result)


def _labelled(text: str, value: Value) -> Term:
    before, dots, after = text.partition("...")
    named = before + after
    skipped = value.rank - len(named)
    letters = all(c.isascii() and c.isalpha() for c in named)
    if not letters or skipped < 0 or (skipped and not dots) or skipped > len(BROADCAST):
        raise malformed(f"labels {text!r} of {value.type}")
    return Term(before + BROADCAST[:skipped][::-1] + after, value)


def _diagonal(term: Term) -> Term:
    """The term with repeated labels replaced by their diagonal."""
    labels, value = term.labels, term.value
    while repeated := [c for c, n in Counter(labels).items() if n > 1]:
        label = repeated[0]
        i = labels.index(label)
        j = labels.index(label, i + 1)
        extent = value.shape[i]
        require(extent, value.shape[j], f"two axes {label!r} of {value.type}")
        others = [k for k in range(value.rank) if k not in (i, j)]
        value = value.transpose((i, j, *others))
        value = value.reshape((extent * extent, *value.shape[2:]))
        value = gather(value, iota(extent) * (extent + 1))
        labels = label + "".join(labels[k] for k in others)
    return Term(labels, value)


def summed(term: Term, needed: set[str]) -> Term:
    """The term summed over the labels that are not needed."""
    axes = [i for i, label in enumerate(term.labels) if label not in needed]
    labels = "".join(label for label in term.labels if label in needed)
    return Term(labels, term.value.reduce("sum", axes, keep=False))


def arranged(term: Term, labels: str) -> Value:
    """The tensor with its axes in the order of `labels`; axes that it lacks have extent 1."""
    order = [term.labels.index(label) for label in labels if label in term.labels]
    value = term.value.transpose(order)
    return value.unsqueeze([i for i, c in enumerate(labels) if c not in term.labels])


def contract(a: Term, b: Term, needed: set[str]) -> Term:
    """The product of two terms, summed over shared labels that are not needed later."""
    a = summed(a, needed | set(b.labels))
    b = summed(b, needed | set(a.labels))
    shared = [label for label in a.labels if label in b.labels]
    batch = "".join(label for label in shared if label in needed)
    over = "".join(label for label in shared if label not in needed)
    rows = "".join(label for label in a.labels if label not in b.labels)
    columns = "".join(label for label in b.labels if label not in a.labels)
    labels = batch + rows + columns
    if not over:
        return Term(labels, arranged(a, labels) * arranged(b, labels))
    for label in over:
        (x,), (y,) = _extents(a, label), _extents(b, label)
        require(x, y, f"extents of {label!r}")
    left = _matrices(a, batch, rows, over)
    right = _matrices(b, batch, over, columns)
    result = left @ right
    shape = (*result.shape[:-2], *_extents(a, rows), *_extents(b, columns))
    return Term(labels, result.reshape(shape))


def _extents(term: Term, labels: str) -> list[Dim]:
    return [term.value.shape[term.labels.index(label)] for label in labels]


def _matrices(term: Term, batch: str, rows: str, columns: str) -> Value:
    """The tensor as matrices: row labels merged into one axis, column labels into another."""
    value = arranged(term, batch + rows + columns)
    m, n = product(_extents(term, rows)), product(_extents(term, columns))
    return value.reshape((*value.shape[: len(batch)], m, n))
