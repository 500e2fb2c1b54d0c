"""Convolutions in groups on a GPU: one launch for all groups."""

from __future__ import annotations

from ftuner.schedules.convolution.gpu_binding import ConvolutionKind

KIND = ConvolutionKind()
