"""Batches: requests of unequal length, given one by one or padded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from ftuner.errors import FTunerError, InputError, ShapeError
from ftuner.graph.ir import Graph
from ftuner.graph.ragged import NOT_ASKED, Axes, Padding
from ftuner.graph.steps import Step
from ftuner.runtime.backend import Boundary, Executable, Options
from ftuner.runtime.chain import Chain
from ftuner.runtime.ops.operands import AnyTensor, Foreign
from ftuner.runtime.shapes.binding import Binding
from ftuner.runtime.variants import Variants


class Batches(ABC):
    """The runs of a model on several requests at once."""

    variants: Variants[Any] | None
    _boundary: Boundary
    _chain: Chain
    _draws: bool
    _graph: Graph
    _options: Options
    _padding: Padding | str

    @property
    @abstractmethod
    def steps(self) -> tuple[Step, ...]: ...
    @abstractmethod
    def _ran(self, feeds: Mapping[str, object]) -> list[Any]: ...
    @abstractmethod
    def _fitting(self, feeds: Mapping[str, object]) -> Any: ...

    @overload
    def run_batch(
        self, batch: Sequence[Mapping[str, Foreign]], *, exact: bool = True
    ) -> list[list[npt.NDArray[Any]]]: ...
    @overload
    def run_batch(
        self, batch: Sequence[Mapping[str, AnyTensor]], *, exact: bool = True
    ) -> list[list[AnyTensor]]: ...
    def run_batch(
        self, batch: Sequence[Mapping[str, object]], *, exact: bool = True
    ) -> list[list[Any]]:
        """Run several requests, whose extents may differ: nothing is padded. Steps that compute
        rows independently run once for all requests, where each then has the bits that it has
        alone; all others run for one request after the other, and on a CPU share the reading of
        large weights. `ragged` shows which.

        Args:
            batch: the `feeds` of each request, as `run` takes them.
            exact: whether each request has the bits that it has alone. Else its products may sum in
                another order, so that requests of few rows, such as the next tokens of several
                texts, run together, too.

        Returns:
            What `run` returns for each request, with the same bits if `exact`. Outputs of several
            requests may be views of one array.

        Raises:
            FTunerError: as `run`, for the first request that fails; the message begins with its
                number, from 0. No outputs are returned then. Nothing else has changed, unless
                requests run alone (`rows_together`) and write over rows of their inputs: those of
                the requests before have been used.
        """
        if isinstance(batch, Mapping) or not isinstance(batch, Sequence):
            given = type(batch).__name__
            raise InputError(f"expected a sequence, of the feeds of each request; got {given}")
        if len(batch) > 1:
            try:
                found = self._together(batch, exact)
            except FTunerError:
                # Which request it is shows when each runs alone.
                found = None
            if found is not None:
                return found
        results = []
        for number, feeds in enumerate(batch):
            try:
                results.append(self._ran(feeds))
            except FTunerError as error:
                error.args = (f"request {number}: {error}",)
                raise
        return results

    @property
    def _joining(self) -> Executable | None:
        """What runs requests of a batch together; None if nothing does."""
        alone = None if self._draws else self._chain.alone
        return None if alone is None or not alone.rows_together else alone

    @property
    def rows_together(self) -> int:
        """Rows of several requests that `run_batch` runs together at most: tokens, for an encoder.
        A larger batch is no faster. For requests that share only large weights, such as pictures,
        it counts the bytes of their largest results. 0 if each request runs alone."""
        return 0 if self._joining is None else self._joining.rows_together

    def rows(self, feeds: Mapping[str, object]) -> int:
        """What a request has of `rows_together`: rows, or bytes; 0 if it runs alone. Nothing is
        computed.

        Raises:
            InputError, ShapeError: as `run`.
        """
        joining = self._joining
        if joining is None or (
            self.variants and self.variants.used and self._fitting(feeds) is not self
        ):
            return 0
        operands = self._boundary.admitted(feeds)
        try:
            return joining.rows(operands)
        except ShapeError:
            # The run decides, if a variant may fit.
            if self.variants is None:
                raise
        return 0

    def _together(
        self, batch: Sequence[Mapping[str, object]], exact: bool = True
    ) -> list[list[Any]] | None:
        """Like `run_batch`, by one program; None where each request is better a run."""
        alone = self._joining
        if alone is None:
            return None
        varied = self.variants is not None and self.variants.used
        if varied and any(self._fitting(feeds) is not self for feeds in batch):
            return None
        results = alone.run_batch([self._boundary.admitted(feeds) for feeds in batch], exact)
        pairs = zip(results, batch, strict=True)
        return [self._boundary.delivered(outputs, feeds) for outputs, feeds in pairs]

    @property
    def ragged(self) -> list[tuple[str, str]]:
        """The operators of each of `steps`, and why `run_batch` runs the step for one request after
        the other; the reason is empty for what runs once for all of them."""
        alone = self._chain.alone
        found = None if alone is None or self._draws else alone.ragged
        if found is None:
            why = "no product computes the rows of requests independently"
            if alone is None:
                why = "the model runs in several parts"
            return [(step.title, why) for step in self.steps]
        return [(s.title, why) for s, why in zip(self.steps, found.reasons, strict=True)]

    @cached_property
    def _unpads(self) -> bool:
        return not self.padding_kept

    @property
    def padding_kept(self) -> str:
        """Why `run` computes the padding of a batch; empty if it is left out."""
        if not self._options.unpad:
            return NOT_ASKED
        if isinstance(self._padding, str):
            return self._padding
        if self._joining is None:
            return "requests of the model do not run together"
        return "" if self._joining.leaves_out_padding else "the mask is not in the host's memory"

    @cached_property
    def _check(self) -> Binding:
        return Binding(self._graph)

    def _without_padding(self, feeds: Mapping[str, object]) -> list[Any] | None:
        """Like `run`, for each request up to the last position that its mask has; None where there
        is nothing to leave out, or a request without positions."""
        padding, joining = self._padding, self._joining
        assert isinstance(padding, Padding)
        assert joining is not None
        arrays = self._boundary.admitted(feeds)
        self._check([x.shape for x in arrays])
        mask = arrays[padding.mask] != 0
        count, width = mask.shape
        axes = zip(arrays, padding.inputs, strict=True)
        if any(a.requests is not None and x.shape[a.requests] != count for x, a in axes):
            return None
        lengths = np.where(mask.any(axis=1), width - mask[:, ::-1].argmax(axis=1), 0)
        if not lengths.all() or lengths.sum() == mask.size:
            return None
        batch = [
            [_part(x, axes, i, n) for x, axes in zip(arrays, padding.inputs, strict=True)]
            for i, n in enumerate(lengths.tolist())
        ]
        results = [*zip(*joining.run_batch(batch, exact=True), strict=True)]
        found = [
            _whole(parts, axes, count, width)
            for parts, axes in zip(results, padding.outputs, strict=True)
        ]
        return self._boundary.delivered(found, feeds)


def _index(axes: Axes, rank: int, request: int, length: int) -> tuple[slice, ...]:
    """Where a request is in an array of all."""
    found = [slice(None)] * rank
    for axis in axes.lengths:
        found[axis] = slice(length)
    if axes.requests is not None:
        found[axes.requests] = slice(request, request + 1)
    return tuple(found)


def _part(x: npt.NDArray[Any], axes: Axes, request: int, length: int) -> npt.NDArray[Any]:
    """An input of one request."""
    return np.ascontiguousarray(x[_index(axes, x.ndim, request, length)])


def _whole(
    parts: Sequence[npt.NDArray[Any]], axes: Axes, count: int, width: int
) -> npt.NDArray[Any]:
    """An output of all requests: zero after the last position of each."""
    assert axes.requests is not None
    if not axes.lengths:
        return np.concatenate(parts, axes.requests)
    shape = [*parts[0].shape]
    shape[axes.requests] = count
    for axis in axes.lengths:
        shape[axis] = width
    found = np.zeros(shape, parts[0].dtype)
    for number, x in enumerate(parts):
        found[_index(axes, x.ndim, number, x.shape[axes.lengths[0]])] = x
    return found
