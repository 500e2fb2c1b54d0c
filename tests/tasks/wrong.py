"""Schedules that are wrong. A comment says which error the line has, and a part of its message."""

from ftuner.tasks import (
    Out,
    Tile,
    candidates,
    ceil_div,
    f32,
    f64,
    grid,
    lanes,
    pack,
    repeat,
    spatial,
    split,
    tile,
    worker,
    workers,
)

STATEMENTS = {
    'x: f32["n", 2], y: Out[f32["n", 2]]': """
        y[i, 0] = x[i, 0]  # CoverageError: a gap
    """,
    'x: f32["n"], y: Out[f32["2 * n"]]': """
        y[i] = x[i]  # CoverageError: a gap
        y[2 * i] = x[i]  # CoverageError: moves by 2
    """,
    'x: f32["n", "n"], y: Out[f32["n", "n"]]': """
        y[i, i] = x[i, i]  # CoverageError: several axes
    """,
    'x: f32["n"], y: Out[f32["n"]]': """
        y[n - 1 - i] = x[i]  # CoverageError: the first index is
        y[i % 4] = x[i]  # CoverageError: not linear in i
        y[i] = y[i] + x[i]  # RaceError: did not store before
        y[i] = x[i + 1]  # BoundsError: expected below n
        y[i] = x[i - 1]  # BoundsError: expected 0 or more
        y[i + 1] = x[i]  # BoundsError: expected below n
        y[i] = x[i] * scalle  # UndefinedNameError: 'scalle'
        y[i] = sigmoyd(x[i])  # UndefinedNameError: did you mean 'sigmoid'
        y[i] = TEXT  # UndefinedNameError: it is str
        y[i] = np.newaxis  # UndefinedNameError: no float
        return x[i]  # UnsupportedStatementError: `return x[i]`
        y[i] = x[0:i]  # UnsupportedStatementError: a slice
        y[i] = x  # UnsupportedStatementError: without an index
        y[i] = x[i * 0.5]  # UnsupportedStatementError: a number with a fraction
        y[i] = x[x[i]]  # UnsupportedStatementError: expected an index
        x[i] = 0.0  # UnsupportedStatementError: is an input
        y[i] += x[i]  # UnsupportedStatementError: not added to
    """,
    'x: f32["n", 4], y: Out[f32["n"]]': """
        y[i] = x[i, 4]  # BoundsError: expected below 4
    """,
    'x: f32["n", "k"], y: Out[f32["n"]]': """
        y[i] = x[i]  # UnsupportedStatementError: has 1 indices
    """,
}
"""Statements of the tasks of `split(n, workers)`, one in each line, by the parameters."""


def overlapping_tasks(x: f32["n"], y: Out[f32["n"]]):
    for i in split(ceil_div(n, 4), workers)(worker):
        for r in repeat(5):
            if i * 4 + r < n:
                y[i * 4 + r] = x[i * 4 + r]  # CoverageError: an overlap


def gap(x: f32["n"], y: Out[f32["n"]]):
    for i in split(ceil_div(n, 4), workers)(worker):
        for r in repeat(3):
            if i * 4 + r < n:
                y[i * 4 + r] = x[i * 4 + r]  # CoverageError: a gap


def gap_at_the_begin(x: f32["n"], y: Out[f32["n"]]):
    for i in split(n, workers)(worker):
        if i + 1 < n:
            y[i + 1] = x[i]  # CoverageError: the first index is 1


def gap_at_the_end(x: f32["n"], y: Out[f32["n"]]):
    for i in split(n, workers)(worker):
        if i < n - 1:
            y[i] = x[i]  # CoverageError: leaves out elements


def gap_in_one_column(x: f32["m", 2], y: Out[f32["m", 2]]):
    for i in split(m, workers)(worker):
        y[i, 0] = x[i, 0]
        if i < m - 1:
            y[i, 1] = x[i, 1]  # CoverageError: leaves out elements


def one_column_under_data(x: f32["m", 2], y: Out[f32["m", 2]]):
    for i in split(m, workers)(worker):
        y[i, 0] = x[i, 0]
        if x[i, 1] > 0:
            y[i, 1] = x[i, 1]  # CoverageError: a condition on elements


def gap_between_columns(x: f32["m", 3], y: Out[f32["m", 3]]):
    for i in split(m, workers)(worker):
        y[i, 0] = x[i, 0]  # CoverageError: moves by 2
        y[i, 2] = x[i, 2]


def triangle(x: f32["n", "n"], y: Out[f32["n", "n"]]):
    for i in split(n, workers)(worker):
        for j in range(i):
            y[i, j] = x[i, j]  # CoverageError: ends where another variable says


def under_data(x: f32["n"], y: Out[f32["n"]]):
    for i in split(n, workers)(worker):
        if x[i] > 0:
            y[i] = x[i]  # CoverageError: a condition on elements


def stored_for_each_step(a: f32["m", "k"], y: Out[f32["m"]]):
    for i in split(m, workers)(worker):
        s = 0.0
        for p in range(k):
            s += a[i, p]
            y[i] = s  # CoverageError: once for each p


def never_stored(x: f32["n"], y: Out[f32["n"]], z: Out[f32["n"]]):  # CoverageError: 'z'
    for i in split(n, workers)(worker):
        y[i] = x[i]


def race_of_rows(a: f32["m", "n"], y: Out[f32["n"]]):
    for i in split(m, workers)(worker):
        for j in lanes(n):
            y[j] = a[i, j]  # RaceError: does not depend on i


def race_of_columns(a: f32["m", "n"], y: Out[f32["m"]]):
    for i, j in grid((m, n), (workers, 1))(worker):
        y[i] = a[i, j]  # RaceError: does not depend on j


def race_of_statements(x: f32["n", "n"], y: Out[f32["n", "n"]]):
    for i in split(n, workers)(worker):
        for j in lanes(n):
            y[i, j] = x[i, j]
        for j in range(n):
            y[j, i] = x[j, i]  # RaceError: another task stores


def read_from_another_task(x: f32["n"], y: Out[f32["n"]], z: Out[f32["n"]]):
    for i in split(n, workers)(worker):
        y[i] = x[i]
        z[i] = y[n - 1]  # RaceError: did not store before


def read_from_the_step_before(x: f32["m", "t"], y: Out[f32["m", "t"]]):
    for i in split(m, workers)(worker):
        for s in range(t):
            y[i, s] = x[i, s] + (y[i, s - 1] if s > 0 else 0.0)  # RaceError: did not store


def guard_of_another_axis(x: f32["m", "n"], y: Out[f32["m", "n"]]):
    for i, j in grid((m, n), (workers, 1))(worker):
        y[i, j] = x[i, j + 1] if i + 1 < m else 0.0  # BoundsError: expected below n


def product_of_variables(x: f32["n"], y: Out[f32["m", "n"]]):  # UndefinedNameError: 'm'
    for i in split(n, workers)(worker):
        y[0, i] = x[i]


def not_decided(x: f32["n"], z: f32["n", "m"], y: Out[f32["n"]]):
    for i in split(n, workers)(worker):
        s = 0.0
        for p in range(m):
            s += x[i * p - p * p]  # BoundsError: cannot be decided
        y[i] = s


def tile_beyond(x: f32["n"], y: Out[f32["n"]]):
    for i in split(n, workers)(worker):
        t = tile(4)
        for r in repeat(5):
            t[r] = x[i]  # BoundsError: expected below 4
        y[i] = t[0]


def misspelt(x: f32["n"], y: Out[f32["n"]]):
    for i in split(n, workers)(worker):
        total = x[i]
        y[i] = totl  # UndefinedNameError: did you mean 'total'


def out_of_scope(x: f32["n"], y: Out[f32["n"]]):
    for i in split(n, workers)(worker):
        for p in range(n):
            last = x[p]
        y[i] = last  # UndefinedNameError: 'last'


def only_if(x: f32["n"], y: Out[f32["n"]]):
    for i in split(n, workers)(worker):
        if x[i] > 0:
            v = x[i]
        y[i] = v  # UndefinedNameError: 'v'


def while_loop(x: f32["n"], y: Out[f32["n"]]):
    for i in split(n, workers)(worker):
        while True:  # UnsupportedStatementError: `while True:`
            y[i] = x[i]


def otherwise(x: f32["n"], y: Out[f32["n"]]):
    for i in split(n, workers)(worker):
        v = 0.0
        if x[i] > 0:  # UnsupportedStatementError: another `if` for else
            v = 1.0
        else:
            v = 2.0
        y[i] = v


def call_of_python(x: f32["n"], y: Out[f32["n"]]):
    for i in split(n, workers)(worker):
        print(x[i])  # UnsupportedStatementError: `print(x[i])`
        y[i] = x[i]


def counter_that_changes(x: f32["n"], y: Out[f32["n"]]):
    for i in split(n, workers)(worker):
        count = 0
        for p in range(n):
            count += 1  # UnsupportedStatementError: begins as 0.0
        y[i] = x[i]


def order_of_lanes(x: f32["m", "n"], y: Out[f32["m", "n"]]):
    for i in split(m, workers)(worker):
        s = 0.0
        for j in lanes(n):
            s = 0.5 * s + x[i, j]  # UnsupportedStatementError: have no order
            y[i, j] = 0.0


def prefix_in_lanes(x: f32["m", "n"], y: Out[f32["m", "n"]]):
    for i in split(m, workers)(worker):
        s = 0.0
        for j in lanes(n):  # UnsupportedStatementError: s: read in the lanes loop
            s += x[i, j]
            y[i, j] = s


def range_of_a_lane(x: f32["m", "n"], y: Out[f32["m", "n"]]):
    for i in split(m, workers)(worker):
        for j in lanes(n):
            total = 0.0
            for p in range(j + 1):  # UnsupportedStatementError: differs between lanes
                total += x[i, p]
            y[i, j] = total


def repeat_of_a_lane(x: f32["m", "n"], y: Out[f32["m", "n"]]):
    for i in split(m, workers)(worker):
        for j in lanes(n):
            total = 0.0
            for p, _ in repeat(j, 2):  # UnsupportedStatementError: differs between lanes
                total += x[i, p]
            y[i, j] = total


def lanes_in_lanes(x: f32["m", "n"], y: Out[f32["m", "n"]]):
    for t in split(1, workers)(worker):
        for i in lanes(m):
            for j in lanes(n):  # UnsupportedStatementError: within another
                y[i, j] = x[i, j]


def tile_without_numbers(x: f32["n"], y: Out[f32["n"]]):
    for i in split(n, workers)(worker):
        t = tile(n)  # UnsupportedStatementError: expected positive numbers
        y[i] = x[i]


def tile_by_address(x: f32["n", 4], y: Out[f32["n"]]):
    for i in split(n, workers)(worker):
        t = tile(4)
        for r in range(4):
            t[r] = x[i, r]  # UnsupportedStatementError: registers have no addresses
        y[i] = t[0]


def tile_along_part_of_lanes(x: f32["n", 16], y: Out[f32["n", 16]]):
    for i in split(n, workers)(worker):
        t = tile(32)
        for j in lanes(16):
            t[j] = x[i, j]  # UnsupportedStatementError: along lanes the last index
            y[i, j] = t[j]


def one_of_two_axes(x: f32["m", "n"], y: Out[f32["m", "n"]]):
    for i in grid((m, n), (workers, 1))(worker):  # MappingError: 2 axes
        y[i, 0] = x[i, 0]


def composed_of_other_ranks(x: f32["m", "n"], y: Out[f32["m", "n"]]):
    for i, j in (split(m, workers) * repeat(4, n))(worker):  # MappingError: 1 and 2 axes
        y[i, j] = x[i, j]


def parts_of_another_rank(x: f32["m", "n"], y: Out[f32["m", "n"]]):
    for i, j in grid((m, n), (workers,))(worker):  # MappingError: 2 extents and 1 parts
        y[i, j] = x[i, j]


def no_parts(x: f32["n"], y: Out[f32["n"]]):
    for i in split(n, 0)(worker):  # MappingError: less than one part
        y[i] = x[i]


def ranks_that_are_none(x: f32["m", "n"], y: Out[f32["m", "n"]]):
    for i, j in spatial(m, n, ranks=(0, 2))(worker):  # MappingError: a permutation
        y[i, j] = x[i, j]


def mapping_without_worker(x: f32["n"], y: Out[f32["n"]]):
    for i in split(n, workers):  # MappingError: a mapping to workers is called
        y[i] = x[i]


def tasks_in_tasks(x: f32["m", "n"], y: Out[f32["m", "n"]]):
    for i in split(m, workers)(worker):
        for j in split(n, workers)(worker):  # MappingError: within its tasks
            y[i, j] = x[i, j]


def two_task_loops(x: f32["n"], y: Out[f32["n"]], z: Out[f32["n"]]):  # MappingError: 2 task loops
    for i in split(n, workers)(worker):
        y[i] = x[i]
    for i in split(n, workers)(worker):
        z[i] = x[i]


def two_dtypes(x: f64["n"], y: Out[f32["n"]]):  # UnsupportedStatementError: one dtype
    for i in split(n, workers)(worker):
        y[i] = x[i]


def no_output(x: f32["n"], y: f32["n"]):  # UnsupportedStatementError: one `Out`
    for i in split(n, workers)(worker):
        pass


def no_type(x, y: Out[f32["n"]]):  # UnsupportedStatementError: expected a type
    for i in split(n, workers)(worker):
        y[i] = 0.0


def default_that_is_none(x: f32["n"], t: Tile = 4):  # UnsupportedStatementError: candidates
    pass


def bad_candidates(t: Tile = candidates(0)):  # UnsupportedStatementError: positive
    pass


def extent_of_no_axis(x: f32["2 * n"], y: Out[f32["n"]]):  # ScheduleError: of no input's axis alone
    for i in split(n, workers)(worker):
        y[i] = x[i]


def name_is_taken(x: f32["n"], y: Out[f32["n"]]):
    for n in split(n, workers)(worker):  # UnsupportedStatementError: is taken
        y[n] = x[n]


def stored_panel(x: f32["m", "n"], y: Out[f32["m", "n"]]):
    for i in split(m, workers)(worker):
        row = pack(x[i, j] for j in lanes(n))
        for j in lanes(n):
            row[j] = 0.0  # UnsupportedStatementError: it is packed once


def panel_of_itself(x: f32["m", "n"], y: Out[f32["m", "n"]]):
    for i in split(m, workers)(worker):
        row = pack(row[n - 1 - j] for j in lanes(n))  # UnsupportedStatementError: before it is
        for j in lanes(n):
            y[i, j] = row[j]


def panel_beyond(x: f32["m", "n"], y: Out[f32["m", "n"]]):
    for i in split(m, workers)(worker):
        row = pack(x[i, j] for j in lanes(n))
        for j in lanes(n):
            y[i, j] = row[j + 1]  # BoundsError: 'row', axis 0


def packed_beyond(x: f32["m", "n"], y: Out[f32["m", "n"]]):
    for i in split(m, workers)(worker):
        row = pack(x[i, j + 1] for j in lanes(n))  # BoundsError: below n
        for j in lanes(n):
            y[i, j] = row[j]


def panel_of_another_task(x: f32["m", "n"], y: Out[f32["m", "n"]]):
    for i in split(m, workers)(worker):
        if i > 0:
            row = pack(x[i, j] for j in lanes(n))
        for j in lanes(n):
            y[i, j] = row[j]  # UndefinedNameError: 'row' is not defined here


def panel_of_task_extent(x: f32["m", "n"], y: Out[f32["m", "n"]]):
    for i in split(m, workers)(worker):
        row = pack(x[i, 0] for j in lanes(i))  # UnsupportedStatementError: extents of a panel
        for j in lanes(n):
            y[i, j] = row[j]


def panel_in_lanes(x: f32["m", "n"], y: Out[f32["m", "n"]]):
    for i in split(m, workers)(worker):
        for j in lanes(n):
            row = pack(x[i, p] for p in range(n))  # UnsupportedStatementError: outside of lanes
            y[i, j] = row[j]


def packed_number(x: f32["m", "n"], y: Out[f32["m", "n"]]):
    for i in split(m, workers)(worker):
        row = pack(n)  # UnsupportedStatementError: expected pack(
        for j in lanes(n):
            y[i, j] = row[j]


def panel_without_index(x: f32["m", "n"], y: Out[f32["m", "n"]]):
    for i in split(m, workers)(worker):
        row = pack(x[i, j] for j in lanes(n))
        for j in lanes(n):
            y[i, j] = row  # UnsupportedStatementError: without an index
