"""The one kernel that serves a model's shapes: its source to read, and how it is launched."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from tuner.analysis.sass import disassemble, read
from tuner.compiler.base import Compiler, CompileRequest
from tuner.extensions.export.cpp import ARRAY_TYPES, SCALAR_TYPES, cpp_name
from tuner.extensions.export.pull_request.readable import readable
from tuner.extensions.export.variants import caller_scalars
from tuner.extensions.export.winners import Winners
from tuner.model.errors import InputError
from tuner.model.expressions import Expression, Value, map_expressions, substitute, unshare_parts
from tuner.model.kernel import LaunchSpec

# The most lines of kernel that a reviewer is given.
MOST_LINES = 250
_INCLUDE = re.compile(r"^#include (\S+).*\n", re.MULTILINE)
# How SGLang calls what our templates write out.
IDIOM: Mapping[str, str] = {
    r"\bwait_for_launches_before\(\);": "device::PDLWaitPrimary<true>();",
    r"\blet_next_launch_begin\(\);": "device::PDLTriggerSecondary<true>();",
    r"__device__ __forceinline__": "SGL_DEVICE",
    r"\b__nv_bfloat162\b": "bf16x2_t",
    r"\b__nv_bfloat16\b": "bf16_t",
    r"\b__half2\b": "fp16x2_t",
    r"\b__half\b": "fp16_t",
    r"\b__nv_fp8_e4m3\b": "fp8_e4m3_t",
}
# What that stands for, to compile a kernel without SGLang's headers.
STAND_INS = """\
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
using bf16_t = __nv_bfloat16; using bf16x2_t = __nv_bfloat162;
using fp16_t = __half; using fp16x2_t = __half2; using fp8_e4m3_t = __nv_fp8_e4m3;
#define SGL_DEVICE __forceinline__ __device__
namespace device {
template <bool> SGL_DEVICE void PDLWaitPrimary() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
template <bool> SGL_DEVICE void PDLTriggerSecondary() {
  asm volatile("griddepcontrol.launch_dependents;" :::);
}
}  // namespace device
"""


@dataclass(frozen=True, slots=True)
class ShownLaunch:
    """A launch in C++; `when`, `cluster` and `shared` are empty where there is none."""

    kernel: str
    grid: str
    block: str
    cluster: str
    shared: str
    when: str
    pdl: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShownKernel:
    """A variant as a reviewer reads it: its text, headers, launches, and the measured source."""

    title: str
    text: str
    includes: tuple[str, ...]
    launches: tuple[ShownLaunch, ...]
    measured_source: str

    @property
    def sha(self) -> str:
        return sha256(self.measured_source.encode()).hexdigest()

    @property
    def lines(self) -> int:
        return self.text.count("\n")


def shown_kernel(
    winners: Winners, sizes: Mapping[str, int], compiler: Compiler, idiom: Mapping[str, str]
) -> ShownKernel:
    """Write a session's only variant for one model's sizes.

    Its machine code is that of the source that was measured, instruction for instruction. Raises
    `InputError` where it is not, nothing is proved faster, the launch takes what no caller of this
    kind has, or what is left is longer than anybody reads.
    """
    spec, measured, dispatch = winners.spec, winners.measured, winners.dispatch
    if not dispatch.table.kernels:
        raise InputError(
            f"nothing is proved faster than what serves {spec.name} at these shapes today",
            path=spec.path,
            remedy="there is nothing to ask a maintainer for; tune further, or name another model",
        )
    (kernel,) = dispatch.table.kernels
    reach = dispatch.applicability(kernel)
    launches = [_with_sizes(launch, sizes) for launch in reach.launches]
    launches = [launch for launch in launches if launch.when is None or cpp(launch.when) != "false"]
    taken = [
        argument.name
        for argument in spec.arguments
        if argument.role == "scratch" and not argument.is_scalar
    ]
    if taken or any(launch.maps for launch in launches):
        what = f"scratch ({', '.join(taken)})" if taken else "tensor maps"
        raise InputError(
            f"{spec.name} takes {what}, which no wrapper of this format makes",
            path=spec.path,
            remedy="--format cpp or torch has it",
        )
    source = kernel.source
    text = in_idiom(readable(source, measured.operators), idiom)
    text = readable(text, {}) if idiom else text
    includes = tuple(dict.fromkeys(_INCLUDE.findall(text)))
    text = _INCLUDE.sub("", text).replace('extern "C" ', "").lstrip()
    text = re.sub(r"^}\n(?=[^\n}])", "}\n\n", text, flags=re.MULTILINE)
    text = _join_signatures(text) if idiom else text
    if text.count("\n") > MOST_LINES:
        raise InputError(
            f"the kernel has {text.count(chr(10))} lines without its dead branches, and a reviewer "
            f"is given {MOST_LINES} at most",
            path=spec.path,
            remedy="tune with fewer choices in the template, or use --format torch",
        )
    names = tuple(dict.fromkeys(launch.kernel for launch in launches))
    macros = tuple(f"-D{name}={value}" for name, value in measured.operators.items())
    options = (*spec.compile_options, *macros)
    heads = "".join(f"#include {include}\n" for include in includes)
    shown = f"{STAND_INS if idiom else ''}{heads}{text}"
    texts = (source, shown)
    requests = [CompileRequest(one, names, measured.architecture, options) for one in texts]
    results = [one.result() for one in [compiler.submit(request) for request in requests]]
    for result in results:
        if not result.ok:
            raise InputError(f"the kernel does not compile: {result.error}", path=spec.path)
    if list_code(results[0].cubin) != list_code(results[1].cubin):
        raise InputError(
            f"{spec.name} without its dead branches is other machine code than what was measured",
            path=spec.path,
            remedy="--format torch or cpp exports what was measured, line by line",
        )
    passed = _passed(winners, sizes, idiom)
    return ShownKernel(
        title=str(kernel.variant),
        text=text,
        includes=includes,
        launches=tuple(_shown(launch, passed) for launch in launches),
        measured_source=source,
    )


def _with_sizes(launch: LaunchSpec, sizes: Mapping[str, Value]) -> LaunchSpec:
    return map_expressions(launch, lambda expression: substitute(expression, sizes))


def list_code(cubin: bytes) -> list[list[tuple[str, str, str]]]:
    """List the instructions of a cubin's kernels, which may have other names."""
    functions = read(disassemble(cubin)).values()
    return [
        [
            (instruction.predicate, instruction.opcode, instruction.operands)
            for instruction in function.instructions
        ]
        for function in functions
    ]


def _join_signatures(text: str) -> str:
    """Write what a function takes in one line where that has SGLang's 120 columns."""

    def joined(match: re.Match[str]) -> str:
        one = re.sub(r",\n\s+", ", ", match[0])
        return one if len(one) <= 120 else match[0]

    return re.sub(r"^[\w ]+[ *&]+\w+\([^(){};]*\) \{$", joined, text, flags=re.MULTILINE)


def in_idiom(text: str, idiom: Mapping[str, str]) -> str:
    """Write an engine's names for things in a text."""
    for pattern, name in idiom.items():
        text = re.sub(pattern, name, text)
    return text


def _passed(winners: Winners, sizes: Mapping[str, int], idiom: Mapping[str, str]) -> dict[str, str]:
    """Write each of the kernel's arguments in C++, by its name."""
    spec, passed = winners.spec, {}
    own = {scalar.position: scalar for scalar in caller_scalars(spec)}
    for place, argument in enumerate(spec.arguments):
        if argument.value is None:
            constant = "const " if argument.role == "input" else ""
            kind = f"{constant}{in_idiom(ARRAY_TYPES[argument.dtype], idiom)}*"
            passed[argument.name] = f"static_cast<{kind}>({cpp_name(argument.name)}.data_ptr())"
        elif place in own:
            passed[argument.name] = own[place].name
        else:
            value = cpp(substitute(argument.value, sizes))
            passed[argument.name] = f"static_cast<{SCALAR_TYPES[argument.dtype]}>({value})"
    return passed


def _shown(launch_spec: LaunchSpec, passed: Mapping[str, str]) -> ShownLaunch:
    def listed(sizes: Sequence[Expression]) -> str:
        return ", ".join(cpp(size) for size in sizes)

    shared = cpp(launch_spec.shared_memory) if launch_spec.shared_memory is not None else "0"
    cluster = listed(launch_spec.cluster)
    return ShownLaunch(
        kernel=launch_spec.kernel,
        grid=listed(launch_spec.grid),
        block=listed(launch_spec.block),
        cluster="" if set(cluster) <= set("1, ") else cluster,
        shared="" if shared == "0" else shared,
        when=""
        if launch_spec.when is None or cpp(launch_spec.when) == "true"
        else cpp(launch_spec.when),
        pdl=cpp(launch_spec.pdl) if launch_spec.pdl is not None else "false",
        arguments=tuple(passed[name] for name in (launch_spec.arguments or passed)),
    )


_OPERATORS: Mapping[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "/",
    ast.Mod: "%",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.And: "&&",
    ast.Or: "||",
}


def cpp(expression: Expression) -> str:
    """Write an expression of sizes, none of which is negative, as plain C++."""

    def operand(node: ast.expr) -> str:
        text = write(node)
        return text if re.fullmatch(r"\w+", text) else f"({text})"

    def write(node: ast.expr) -> str:
        match node:
            case ast.Constant(value=bool(value)):
                return str(value).lower()
            case ast.Constant(value=int(value)):
                return str(value)
            case ast.Name(id=name):
                return cpp_name(name) if name != "multiprocessors" else name
            case ast.IfExp(test=ast.Constant(value=bool(known)), body=body, orelse=orelse):
                return write(body if known else orelse)
            case ast.BinOp(left=left, op=ast.Mult(), right=ast.Constant(value=1)):
                return write(left)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return f"{operand(left)} {_OPERATORS[type(op)]} {operand(right)}"
            case ast.BoolOp(op=op, values=values):
                return f" {_OPERATORS[type(op)]} ".join(map(operand, values))
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPERATORS:
                return f"{operand(left)} {_OPERATORS[type(op)]} {operand(right)}"
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return f"{operand(test)} ? {operand(body)} : {operand(orelse)}"
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                return f"!{operand(inner)}"
            case ast.Call(func=ast.Name(id="ceil_div"), args=[left, ast.Constant(value=int(by))]):
                return f"({operand(left)} + {by - 1}) / {by}"
            case ast.Call(func=ast.Name(id="ceil_div"), args=[left, right]):
                return f"({operand(left)} + {operand(right)} - 1) / {operand(right)}"
            case ast.Call(func=ast.Name(id="min" | "max" as name), args=[left, right]):
                sign = "<" if name == "min" else ">"
                a, b = operand(left), operand(right)
                return f"({a} {sign} {b} ? {a} : {b})"
        raise InputError(
            f"`{ast.unparse(node)}` has no plain form in C++",
            path=expression.path,
            line=expression.line,
            remedy="--format cpp has it",
        )

    return write(unshare_parts(expression.tree))
