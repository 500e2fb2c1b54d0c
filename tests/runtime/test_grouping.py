"""Which requests run together, by the order of their sums."""

from ftuner.runtime.grouping import NO_ORDER, Orders, groups


def test_equal_orders_have_equal_numbers() -> None:
    orders, asked = Orders(), list[int]()

    def number(rows: int) -> int:
        def found() -> tuple[int | None, ...]:
            asked.append(rows)
            return (None,) if rows > 9 else (rows // 4, 1)

        return orders(rows, found)

    assert number(1) == number(3) != number(4)
    assert number(10) == number(11) == NO_ORDER
    assert number(1) == number(2)
    assert asked == [1, 3, 4, 10, 11, 2]


def test_requests_of_one_order_run_together() -> None:
    def order(size: int) -> int:
        return NO_ORDER if size in (5, 6) else size // 100

    def grouped(sizes: list[int], room: int = 1000) -> list[list[int]]:
        return list(groups(sizes, 50, room, order))

    assert grouped([3, 0, 5, 60, 4, 2]) == [[1], [2], [3], [0, 4, 5]]
    assert grouped([40, 40, 10, 40], room=90) == [[0, 1, 2], [3]]
    # All together would be summed in another order: the last ones run alone.
    assert grouped([40, 40, 30]) == [[2], [0, 1]]
    assert grouped([1, 4, 2]) == [[0, 1, 2]]
    assert grouped([2, 4]) == [[1], [0]]
