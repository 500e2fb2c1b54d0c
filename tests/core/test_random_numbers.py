"""The generator gives the words of its authors, and numbers of the distributions that it names."""

import math

import numpy as np
import pytest
from tests.distributions import assert_independent, assert_normal, assert_uniform

from ftuner.core.dtype import FLOAT32, FLOAT64, DType
from ftuner.core.random_numbers import Words, drawn, normal, philox, philox4x32, uniform

KNOWN = (
    # Counter, key and words of the file `kat_vectors` of Random123 1.14.
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
)  # fmt: skip
COUNT = 1 << 18


def words_of(text: str) -> tuple[np.uint64, ...]:
    return tuple(np.uint64(int(word, 16)) for word in text.split())


def words(key: int, count: int = COUNT) -> np.ndarray:
    return philox(np.arange(count, dtype=np.uint64), np.uint64(key))


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize(("counter", "key", "wanted"), KNOWN)
def test_known_answers(counter: str, key: str, wanted: str) -> None:
    a, b, c, d = words_of(counter)
    k, m = words_of(key)
    assert philox4x32((a, b, c, d), (k, m)) == words_of(wanted)


def test_64_bits_are_the_first_two_words() -> None:
    counters = np.array([0, 1, 2**32 - 1, 2**32, 2**64 - 1], np.uint64)
    key = np.uint64(0x299F31D0A4093822)
    low, half, zero = np.uint64(0xFFFFFFFF), np.uint64(32), np.zeros(5, np.uint64)
    counter: Words = (counters & low, counters >> half, zero, zero)
    first, second, *_ = philox4x32(counter, (key & low, key >> half))
    np.testing.assert_array_equal(philox(counters, key), first + second * 2**32)
    assert len({int(w) for w in philox(counters, key)}) == 5


@pytest.mark.parametrize(("dtype", "digits"), [(FLOAT32, 8), (FLOAT32, 24), (FLOAT64, 53)])
def test_uniform_numbers(dtype: DType, digits: int) -> None:
    found = uniform(words(5), digits, dtype)
    assert found.dtype == dtype.name
    assert found.min() >= 0
    assert found.max() < 1
    np.testing.assert_array_equal(found * 2.0**digits, np.floor(found * 2.0**digits))
    assert_uniform(found + (0 if digits > 8 else 2.0 ** -(digits + 1)), 2.0**-digits)
    assert uniform(np.array([2**64 - 1], np.uint64), digits, dtype) == 1 - 2.0**-digits
    assert uniform(np.zeros(1, np.uint64), digits, dtype) == 0


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
def test_normal_numbers(dtype: DType) -> None:
    bits = words(6)
    others = bits if dtype == FLOAT32 else words(7)
    found = normal(bits, others, dtype)
    assert found.dtype == dtype.name
    assert_normal(found)
    u, v = drawn(bits, others, dtype)
    assert u.min() > 0
    assert u.max() <= 1
    assert np.abs(v).max() <= 1
    assert_uniform(u)
    assert_uniform((v + 1) / 2)


@pytest.mark.parametrize(
    ("dtype", "most"), [(FLOAT32, math.sqrt(2 * math.log(2**32))), (FLOAT64, 8.6)], ids=str
)
def test_the_ends_of_normal_numbers(dtype: DType, most: float) -> None:
    """The least u, at the largest cosine; and the largest, which is 1."""
    found = normal(np.zeros(1, np.uint64), np.zeros(1, np.uint64), dtype)
    assert found == pytest.approx(most, rel=1e-2)
    last = normal(np.array([2**64 - 1], np.uint64), np.zeros(1, np.uint64), dtype)
    assert 0 <= last < 1e-7


def test_streams_are_independent() -> None:
    """Of keys and of counters that differ in one bit."""
    for bit in (0, 31, 32, 63):
        assert_independent(
            normal(words(0), words(0), FLOAT32), normal(words(1 << bit), words(1 << bit), FLOAT32)
        )
    whole = normal(words(3), words(3), FLOAT32)
    for distance in (1, 2, 64, 4096):
        assert_independent(whole[:-distance], whole[distance:])
