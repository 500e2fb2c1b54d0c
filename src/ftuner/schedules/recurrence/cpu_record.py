"""The layout of what the kernel of a recurrent layer reads, besides addresses."""

from __future__ import annotations

from ftuner.codegen.llvm.native.records import TeamState


class Recurrence:
    """Parameters of the recurrence kernel besides addresses; distances in bytes."""

    STEPS = 0
    ROWS = 1
    """Sequences of the batch."""
    HIDDEN = 2
    BLOCK = 3
    """Sequences of a task; the last one may have fewer."""
    X_STEP, X_ROW, Y_STEP, Y_ROW = range(4, 8)
    H_ROW, C_ROW = range(8, 10)
    """Of the states after the last step."""
    PANEL = 10
    """Columns of a full panel."""
    WEIGHT = 11
    """Address of the weight in panels, unless it is packed at run time."""
    PACK = 12
    """Address of the packing function."""
    TAIL = 13
    """Columns of the last packed panel, if it is not full."""
    TEAM = 14
    """Tasks that share each step, by columns; 1 if a task is a block of sequences."""
    GATE_PANELS = 15
    """Panels of a gate if a team shares each gate by panels; 0 if gates begin within panels or have
    fewer, and all panels of a stage are shared."""
    COVERS = 16
    """Addresses of `AllCovers`, for full panels and for the last one."""
    TAIL_COVERS = 17
    TEAM_STATE = 18
    SIZE = TEAM_STATE + TeamState.SIZE
