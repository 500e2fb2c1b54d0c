"""Convolutions in groups on a GPU: one launch for all groups."""

from __future__ import annotations

from ftuner.runtime.gpu.steps.convolution import ConvolutionKind

KIND = ConvolutionKind()
