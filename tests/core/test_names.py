"""Names that model files give to extents become symbols, each its own."""

import time

from ftuner.core.dim import MAX_NAME, Names


def test_each_text_has_a_symbol_of_its_own() -> None:
    names = Names()
    texts = ["a b", "a_b", "a/b", "a_b_2", "a_b_2_2", "2", "_2", "", "dim", "x" * 1000, "x" * 1001]
    symbols = [names.named(text) for text in texts]
    assert len({str(s) for s in symbols}) == len(texts)
    assert [names.named(text) for text in texts] == symbols
    assert max(len(str(s)) for s in symbols) <= MAX_NAME + 2


def test_texts_that_read_alike_are_counted_not_tried() -> None:
    names = Names()
    began = time.process_time()
    symbols = {str(names.named(chr(0x4E00 + i))) for i in range(20_000)}
    assert len(symbols) == 20_000
    # Tried one after the other, they would take minutes.
    assert time.process_time() - began < 30
