"""Writes the text of a module.

llvmlite writes one too, in four times the time, which was a tenth of what a first load takes: it
formats each instruction through several methods. Instructions that are frequent are written here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import llvmlite.ir as ir
from llvmlite.ir import instructions


class _Texts(dict[int, str]):
    """The texts of types and constants by their identity: comparing them takes longer than writing
    them."""

    def of(self, value: Any) -> str:
        """The type of a value."""
        kind = value.type
        text = self.get(id(kind))
        if text is None:
            text = self[id(kind)] = str(kind)
        return text

    def name(self, value: Any) -> str:
        """How an operand is referred to. Names of instructions need no escapes."""
        if isinstance(value, instructions.Instruction):
            return f'%"{value._name}"'
        text = self.get(id(value))
        if text is None:
            text = self[id(value)] = _reference(value)
        return text

    def typed(self, value: Any) -> str:
        """An operand with its type."""
        return f"{self.of(value)} {self.name(value)}"


def _reference(value: Any) -> str:
    text = str(value.get_reference())
    if isinstance(value.type, ir.VectorType) and text.startswith("<"):
        # LLVM reads one element in less time than one for each lane.
        first, *others = text[1:-1].split(", ")
        if all(other == first for other in others):
            return "undef" if first.endswith(" undef") else f"splat ({first})"
    return text


_Write = Callable[[Any, _Texts], str]


def module_text(module: ir.Module) -> str:
    """The text of a module, as LLVM parses it."""
    lines = [f'target triple = "{module.triple}"']
    for value in module.global_values:
        if isinstance(value, ir.Function) and value.blocks:
            _write_function(value, lines)
        else:
            lines.append(str(value))
    lines += [str(data) for data in module.metadata]
    return "\n".join(lines)


def _write_function(function: ir.Function, lines: list[str]) -> None:
    head: list[str] = []
    function.descr_prototype(head)
    lines += [*head, "{"]
    texts = _Texts()
    for block in function.blocks:
        lines.append(f'"{block.name}":')
        for instruction in block.instructions:
            write = None if instruction.metadata else _WRITERS.get(type(instruction))
            lines.append(str(instruction) if write is None else write(instruction, texts))
    lines.append("}")


def _operation(value: Any, texts: _Texts) -> str:
    first, *others = value.operands
    name = " ".join([value.opname, *value.flags])
    text = f"{texts.name(value)} = {name} {texts.typed(first)}"
    return ", ".join([text, *(texts.name(other) for other in others)])


def _comparison(value: Any, texts: _Texts) -> str:
    x, y = value.operands
    name = " ".join([value.opname, *value.flags])
    result = texts.name(value)
    return f"{result} = {name} {value.op} {texts.typed(x)}, {texts.name(y)}"


def _of_operands(value: Any, texts: _Texts) -> str:
    operands = ", ".join([texts.typed(operand) for operand in value.operands])
    return f"{texts.name(value)} = {' '.join([value.opname, *value.flags])} {operands}"


def _load(value: Any, texts: _Texts) -> str:
    align = "" if value.align is None else f", align {value.align}"
    (address,) = value.operands
    return f"{texts.name(value)} = load {texts.of(value)}, {texts.typed(address)}{align}"


def _address(value: Any, texts: _Texts) -> str:
    name = "getelementptr inbounds" if value.inbounds else "getelementptr"
    operands = ", ".join([texts.typed(operand) for operand in value.operands])
    return f"{texts.name(value)} = {name} {value.source_etype}, {operands}"


def _phi(value: Any, texts: _Texts) -> str:
    pairs = [f'[{texts.name(x)}, %"{block.name}"]' for x, block in value.incomings]
    name = " ".join(["phi", *value.flags])
    return f"{texts.name(value)} = {name} {texts.of(value)} {', '.join(pairs)}"


def _call(value: Any, texts: _Texts) -> str:
    callee, *arguments = value.operands
    kind = callee.function_type
    options = value.tail, value.fastmath, value.cconv, value.attributes, value.arg_attributes
    if any(options) or kind.var_arg:
        return str(value)
    given = ", ".join([texts.typed(argument) for argument in arguments])
    result = "" if isinstance(kind.return_type, ir.VoidType) else f"{texts.name(value)} = "
    return f"{result}call {kind.return_type} {callee.get_reference()}({given})"


_WRITERS: Mapping[type, _Write] = {
    instructions.Instruction: _operation,
    instructions.ICMPInstr: _comparison,
    instructions.FCMPInstr: _comparison,
    instructions.SelectInstr: _of_operands,
    instructions.InsertElement: _of_operands,
    instructions.ExtractElement: _of_operands,
    instructions.ShuffleVector: _of_operands,
    instructions.LoadInstr: _load,
    instructions.GEPInstr: _address,
    instructions.PhiInstr: _phi,
    instructions.CallInstr: _call,
}
"""By class, for instructions without metadata."""
