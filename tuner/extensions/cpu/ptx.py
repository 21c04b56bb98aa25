"""Inline PTX read: the instructions of one `asm` statement, written as C++ for the CPU."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from tuner.extensions.cpu.ptx_instructions import (
    NUMBERS,
    Operand,
    PtxInstruction,
    UnknownInstructionError,
)
from tuner.extensions.cpu.ptx_memory import MEMORY, special_register

_TOKEN = re.compile(
    r"(?P<blank>\s+|//[^\n]*|/\*.*?\*/)|%(?P<operand>\d+)|(?P<directive>\.[a-z]\w*)"
    r"|(?P<number>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?"
    r"|\d+\.\d*(?:[eE][+-]?\d+)?|\d+U?)(?!\w)"
    r"|(?P<word>(?:%%?)?[A-Za-z_$][\w$]*(?:(?:\.|::)[\w$]+)*)|(?P<mark>[][{}<>(),;:@!|+\-])",
    re.DOTALL,
)
# A register's bits in C++, by the type of its declaration.
_WIDTHS = {"8": "b8", "16": "b16", "32": "b32", "64": "b64", "16x2": "b32", "128": "b128"}
_REGISTERS = {
    **{f".{kind}{bits}": _WIDTHS[bits] for kind in "bsu" for bits in ("8", "16", "32", "64")},
    **{".f16": "b16", ".bf16": "b16", ".f32": "b32", ".f64": "b64", ".f32x2": "b64"},
    **{".f16x2": "b32", ".bf16x2": "b32", ".b128": "b128", ".pred": "pred"},
}
_CONSTRAINT = re.compile(r"(?P<out>[=+]?)&?(?P<letter>[hrlqfdn]|\d+)")
_LETTER_TYPES = {"h": "b16", "r": "b32", "l": "b64", "q": "b128", "f": "b32", "d": "b64"}


_HANDLERS = {**NUMBERS, **MEMORY}


@dataclass(frozen=True, slots=True)
class AsmOperand:
    """An operand of the statement: its constraint and the C++ expression."""

    constraint: str
    expression: str


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int


@dataclass(slots=True)
class _Scope:
    registers: dict[str, str] = field(default_factory=dict)
    labels: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def text(self) -> str:
        labels = f"__label__ {', '.join(self.labels)};" if self.labels else ""
        declared = (
            f"::on_host_ptx::{kind} {name} = {{}};" for name, kind in self.registers.items()
        )
        return "{" + " ".join([labels, *declared, *self.lines]) + "}"


def statement(template: str, outputs: Sequence[AsmOperand], inputs: Sequence[AsmOperand]) -> str:
    """Write an `asm` statement's instructions as one C++ statement.

    `template` is the text of the string, without escapes. Raises `UnknownInstructionError` with the
    instruction that is not known, as it is written.
    """
    body = _PtxReader(template, len(outputs) + len(inputs)).read()
    if not body:
        return "(void)0"
    taken = [
        _bind_operand(i, operand, len(outputs)) for i, operand in enumerate([*outputs, *inputs])
    ]
    given = [
        f"::on_host_ptx::give({operand.expression}, on_host_{i});"
        for i, operand in enumerate(outputs)
    ]
    return f"do {{ {' '.join([*taken, body, *given])} }} while (0)"


def _bind_operand(index: int, operand: AsmOperand, outputs: int) -> str:
    match = _CONSTRAINT.fullmatch(operand.constraint)
    if match is None:
        raise UnknownInstructionError(f'an operand "{operand.constraint}"')
    letter, name = match["letter"], f"on_host_{index}"
    if letter.isdigit():  # the register of that output, set before
        if int(letter) >= outputs:
            raise UnknownInstructionError(f'an operand "{operand.constraint}"')
        same = f"auto& {name} = on_host_{letter};"
        return f"{same} ::on_host_ptx::give({name}, {operand.expression});"
    if match["out"] == "=":
        return f"::on_host_ptx::{_LETTER_TYPES[letter]} {name} = {{}};"
    return f"auto {name} = ::on_host_ptx::taken<'{letter}'>({operand.expression});"


class _PtxReader:
    """Reads a template; `read` returns its C++, which is empty where nothing is left to do."""

    def __init__(self, template: str, operands: int) -> None:
        self._template, self._operands = template, operands
        self._tokens = self._split_tokens(template)
        self._at = 0
        self._scopes: list[_Scope] = []

    @staticmethod
    def _split_tokens(template: str) -> list[_Token]:
        tokens: list[_Token] = []
        at = 0
        while at < len(template):
            match = _TOKEN.match(template, at)
            if match is None or match.lastgroup is None:
                start = max(template.rfind(";", 0, at), template.rfind("\n", 0, at)) + 1
                raise UnknownInstructionError(
                    " ".join(template[start:].partition(";")[0].split())[:60]
                )
            if match.lastgroup != "blank":
                tokens.append(_Token(match.lastgroup, match[match.lastgroup], at))
            at = match.end()
        return tokens

    def read(self) -> str:
        scope = self._scope(until="")
        return scope.text() if scope.lines else ""

    def _peek(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._tokens[at].text if at < len(self._tokens) else ""

    def _taken_if(self, text: str) -> bool:
        if self._at < len(self._tokens) and self._peek() == text:
            self._at += 1
            return True
        return False

    def _scope(self, until: str) -> _Scope:
        scope = _Scope()
        self._scopes.append(scope)
        while self._at < len(self._tokens) and not (until and self._peek() == until):
            self._statement(scope)
        if until and not self._taken_if(until):
            raise UnknownInstructionError("{ without }")
        self._scopes.pop()
        return scope

    def _statement(self, scope: _Scope) -> None:
        token = self._tokens[self._at]
        if token.text == ";":
            self._at += 1
        elif token.text == "{":
            self._at += 1
            inner = self._scope("}")
            scope.lines += [inner.text()] if inner.lines else []
        elif token.text == ".reg":
            start = self._tokens[self._at]
            kind = _REGISTERS.get(self._peek(1))
            if kind is None:
                raise UnknownInstructionError(self._rest(start))
            self._at += 2
            while self._at < len(self._tokens) and not self._taken_if(";"):
                name = self._tokens[self._at]
                self._at += 1
                if name.kind == "word":
                    count, first = self._count(), name.text
                    names = [first] if count is None else [f"{first}{i}" for i in range(count)]
                    scope.registers.update({_local(one): kind for one in names})
                elif name.text != ",":
                    raise UnknownInstructionError(self._rest(start))
        elif token.kind == "word" and self._peek(1) == ":":
            self._at += 2
            scope.labels.append(_label(token.text))
            scope.lines.append(f"{_label(token.text)}:;")
        else:
            scope.lines += self._instruction()

    def _rest(self, start: _Token) -> str:
        end = self._template.find(";", start.start)
        return " ".join(self._template[start.start : end if end >= 0 else None].split())

    def _count(self) -> int | None:
        # of `.reg .b32 r<4>;`, which are r0 to r3
        if not self._taken_if("<"):
            return None
        count = self._peek()
        self._at += 1
        if not count.isdecimal() or int(count) > 1024 or not self._taken_if(">"):
            raise UnknownInstructionError(f".reg <{count}>")
        return int(count)

    def _instruction(self) -> list[str]:
        start = self._tokens[self._at]
        written = self._rest(start)
        try:
            condition = self._predicate()
            name = self._tokens[self._at]
            self._at += 1
            if name.kind != "word" or name.text.startswith("%"):
                raise UnknownInstructionError(written)
            operands = [] if self._peek() in ("", ";", "}") else self._list((";", "}"))
            self._taken_if(";")
            base, *modifiers = name.text.split(".")
            if base == "bra":
                to = operands[0]
                there = rf"(?<![\w$]){re.escape(to.text)}\s*:(?!:)"
                if to.kind != "name" or not re.search(there, self._template):
                    raise UnknownInstructionError(to.text)
                code = f"goto {_label(to.text)};"
            else:
                code = _in_cpp(PtxInstruction(base, tuple(modifiers), tuple(operands)))
        except (UnknownInstructionError, IndexError, ValueError):
            raise UnknownInstructionError(written) from None
        return [f"if ({condition}) {{ {code} }}" if condition else f"{{ {code} }}"] if code else []

    def _predicate(self) -> str:
        if not self._taken_if("@"):
            return ""
        operand = self._operand()
        if operand.kind != "register":
            raise UnknownInstructionError(operand.kind)
        return operand.text

    def _list(self, ends: tuple[str, ...]) -> list[Operand]:
        operands = [self._operand()]
        while self._taken_if(","):
            operands.append(self._operand())
        if self._peek() not in (*ends, ""):
            raise UnknownInstructionError(self._peek())
        return operands

    def _operand(self) -> Operand:
        if self._taken_if("{"):
            parts = self._list(("}",))
            self._at += 1
            return Operand("vector", parts=tuple(parts))
        if self._taken_if("["):
            return self._address()
        if self._taken_if("!"):
            return Operand("register", f"!{self._operand().text}")
        sign = "-" if self._taken_if("-") else ""
        token = self._tokens[self._at]
        self._at += 1
        if token.kind == "number":
            return Operand("number", sign + token.text)
        operand = self._parse_operand(token)
        if sign:
            raise UnknownInstructionError(token.text)
        if self._taken_if("|"):
            return Operand("pair", parts=(operand, self._operand()))
        return operand

    def _parse_operand(self, token: _Token) -> Operand:
        if token.kind == "operand":
            if int(token.text) >= self._operands:
                raise UnknownInstructionError(f"%{token.text}")
            return Operand("register", f"on_host_{token.text}")
        if token.kind != "word":
            raise UnknownInstructionError(token.text)
        if token.text == "_":
            return Operand("none")
        if any(_local(token.text) in scope.registers for scope in self._scopes):
            return Operand("register", _local(token.text))
        special = special_register(token.text.lstrip("%"))
        if special is not None:
            return Operand("special", special)
        return Operand("name", token.text)  # known to `bra` alone

    def _address(self) -> Operand:
        coordinates: tuple[Operand, ...] = ()
        terms, sign = [], "+"
        while not self._taken_if("]"):
            if self._taken_if(","):
                coordinates = (self._operand(),)
                continue
            operand = self._operand()
            if operand.kind not in ("register", "number"):
                raise UnknownInstructionError("[ ]")
            terms.append(f"{sign} static_cast<::on_host_ptx::u64>({operand.text})")
            sign = "-" if self._taken_if("-") else "+"
            self._taken_if("+")
        if not terms:
            raise UnknownInstructionError("[ ]")
        return Operand("address", " ".join(terms), coordinates)


def _local(name: str) -> str:
    return f"on_host_r_{name.lstrip('%').replace('.', '_')}"


def _label(name: str) -> str:
    return f"on_host_l_{name.lstrip('%$')}"


def _in_cpp(instruction: PtxInstruction) -> str:
    handler = _HANDLERS.get(instruction.base)
    if handler is None:
        raise UnknownInstructionError(instruction.base)
    try:
        return handler(instruction)
    except (KeyError, IndexError, ValueError):
        raise UnknownInstructionError(instruction.base) from None
