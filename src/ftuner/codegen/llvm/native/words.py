"""Emits functions on Python's strings, which Python calls with its lock held.

`i64 are_texts(items, count, type)` returns whether `count` objects have one type, that of strings.
`items` is the place of their address.

`i64 find(words, items, count, out, most)` reads `count` strings; `items` and `out` are the places
of the addresses of both arrays. It writes the number of words of each string to `out`, then their
values one string after the other, but for those after the first `most`; returns how many there are.
A word is a string, or a run of bytes of some classes in its UTF-8. It returns -1 with Python's
error set for a string that has no UTF-8.
"""

from __future__ import annotations

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I1, I8, I64, PTR, begun, const
from ftuner.codegen.llvm.native.binding_records import WordEntry, WordTable
from ftuner.codegen.llvm.native.records import SLOT_BYTES
from ftuner.codegen.llvm.native.symbols import TEXTS_SYMBOL, WORDS_SYMBOL


def emit_words(module: ir.Module, header_bytes: int) -> None:
    """Add the functions to a module. `header_bytes`: the size of the header of a Python object,
    which ends with its type."""
    _emit_are_texts(module, header_bytes - SLOT_BYTES)
    kind = ir.FunctionType(I64, [PTR, PTR, I64, PTR, I64])
    b, (words, items, count, out, most) = begun(module, kind, WORDS_SYMBOL)
    value_of = _emit_look_up(module)
    utf8_kind = ir.FunctionType(PTR, [PTR, PTR])
    utf8, classes = b.pointer_slots(words, WordTable.UTF8, WordTable.CLASSES)
    least, longest = b.slots(words, WordTable.LEAST, WordTable.MOST)
    whole = b.icmp_signed("==", b.slot(words, WordTable.CLASSES), 0)
    items, lengths = (b.load(place, typ=PTR) for place in (items, out))
    values = b.slot_address(lengths, count)
    size, place, digest, letters = (b.reserve(I64, SLOT_BYTES) for _ in range(4))
    total = b.variable(0)

    def number(cell: ir.Value) -> ir.Value:
        return b.load(cell, typ=I64)

    def grow(cell: ir.Value, by: ir.Value) -> None:
        b.store(b.add(number(cell), by), cell)

    with b.counted_loop(0, count) as i:
        item = b.pointer_slot(items, i)
        text = b.call_address(utf8_kind, utf8, [item, size])
        with b.if_then(b.icmp_unsigned("==", b.ptrtoint(text, I64), 0), likely=False):
            b.ret(const(-1))
        before, length = number(total), number(size)
        b.store(0, place)

        def byte() -> ir.Value:
            # At the end is a zero.
            return b.load(b.at(text, number(place)), typ=I8)

        def is_in_word() -> ir.Value:
            of_class = b.load(b.at(classes, b.zext(byte(), I64)), typ=I8)
            return b.icmp_unsigned("!=", of_class, ir.Constant(I8, 0))

        def goes_on() -> ir.Value:
            """Whether a byte belongs to the word that those before it are of."""
            more = b.icmp_signed("<", number(letters), longest)
            more = b.or_(more, b.not_(is_first(b.zext(byte(), I64))))
            return b.and_(b.and_(is_inside(), is_in_word()), more)

        def is_inside() -> ir.Value:
            return b.icmp_signed("<", number(place), length)

        def is_first(code: ir.Value) -> ir.Value:
            """Whether a byte is the first one of a character: others begin with the bits 10."""
            return b.icmp_unsigned("!=", b.and_(code, 0xC0), 0x80)

        def read_letter() -> None:
            code = b.zext(byte(), I64)
            b.store(b.mul(b.xor(number(digest), code), WordTable.HASH_FACTOR), digest)
            grow(letters, b.zext(is_first(code), I64))
            grow(place, const(1))

        def look_up(begin: ir.Value) -> None:
            with b.if_then(b.icmp_signed("<", number(total), most), likely=True):
                word, bytes_ = b.at(text, begin), b.sub(number(place), begin)
                found = b.call(value_of, [words, number(digest), word, bytes_])
                b.set_slot(values, number(total), found)
            grow(total, const(1))

        def begin_word() -> ir.Value:
            b.store(WordTable.HASH_BASIS, digest)
            b.store(0, letters)
            return number(place)

        with b.if_else(whole) as (one, several):
            with one:
                begin = begin_word()
                with b.while_holds(is_inside):
                    read_letter()
                look_up(begin)
            with several, b.while_holds(is_inside):
                with b.while_holds(lambda: b.and_(is_inside(), b.not_(is_in_word()))):
                    grow(place, const(1))
                begin = begin_word()
                with b.while_holds(goes_on):
                    read_letter()
                some = b.icmp_signed(">", number(letters), 0)
                enough = b.icmp_signed(">=", number(letters), least)
                with b.if_then(b.and_(some, enough)):
                    look_up(begin)
        b.set_slot(lengths, i, b.sub(number(total), before))
    b.ret(number(total))


def _emit_are_texts(module: ir.Module, type_word: int) -> None:
    b, (items, count, kind) = begun(module, ir.FunctionType(I64, [PTR, I64, I64]), TEXTS_SYMBOL)
    items = b.load(items, typ=PTR)
    with b.counted_loop(0, count) as i:
        item = b.pointer_slot(items, i)
        # NumPy may leave places empty, and shows None there.
        with b.if_then(b.icmp_unsigned("==", b.ptrtoint(item, I64), 0), likely=False):
            b.ret(const(0))
        own = b.load(b.at(item, type_word), typ=I64)
        with b.if_then(b.icmp_unsigned("!=", own, kind), likely=False):
            b.ret(const(0))
    b.ret(const(1))


def _emit_look_up(module: ir.Module) -> ir.Function:
    """`i64 look_up(words, digest, word, bytes)`: the value of a word in a table, in which the
    places after that of its digest are looked at until one is free."""
    kind = ir.FunctionType(I64, [PTR, I64, PTR, I64])
    b, (words, digest, word, length) = begun(module, kind, "ftuner_look_up_word", internal=True)
    table, texts = b.pointer_slots(words, WordTable.ENTRIES, WordTable.TEXTS)
    mask, same = b.slot(words, WordTable.MASK), b.reserve(I64)
    place = b.variable(digest)
    always = ir.Constant(I1, 1)
    with b.while_holds(lambda: always):
        number = b.and_(b.load(place, typ=I64), mask)
        entry = b.record_at(table, number, WordEntry.SIZE)
        own, begin, value = b.slots(entry, WordEntry.BYTES, WordEntry.BEGIN, WordEntry.VALUE)
        with b.if_then(b.icmp_signed("<", own, 0)):
            b.ret(b.slot(words, WordTable.OTHER))
        equal = b.icmp_unsigned("==", b.slot(entry, WordEntry.DIGEST), digest)
        with b.if_then(b.and_(equal, b.icmp_unsigned("==", own, length))):
            known = b.at(texts, begin)
            b.store(0, same)

            def agrees() -> ir.Value:
                # Both have a byte there: a text ends with a zero.
                i = b.load(same, typ=I64)
                x, y = (b.load(b.at(text, i), typ=I8) for text in (known, word))
                return b.and_(b.icmp_signed("<", i, length), b.icmp_unsigned("==", x, y))

            with b.while_holds(agrees):
                b.store(b.add(b.load(same, typ=I64), 1), same)
            with b.if_then(b.icmp_unsigned("==", b.load(same, typ=I64), length)):
                b.ret(value)
        b.store(b.add(number, 1), place)
    b.unreachable()
    return b.function
