"""Descriptors from registers that nothing writes: what a compiler's slip looks like."""

from __future__ import annotations

import pytest

from tuner.analysis.sass import Function, Instruction, read
from tuner.analysis.unwritten import describe_unwritten, find_unwritten
from tuner.device.base import Program
from tuner.model.kernel import Launch, Workload
from tuner.model.trial import Status
from tuner.tuning import verification

# As NVRTC 13.0.88 made it of decode_attention, all but what matters left out.
LISTING = """
	.section	.text.attend,"ax",@progbits
        .global         attend
        .type           attend,@function
attend:
.text.attend:
        /*0000*/                   ULDC.64 UR6, c[0x0][0x208] ;
        /*0010*/                   LDG.E.128 R4, desc[UR6][R2.64] ;
        /*0020*/                   LDGSTS.E.BYPASS.128 [R47+UR0], desc[{descriptor}][R110.64], P1 ;
        /*0030*/                   EXIT ;
"""


def code(*instructions: tuple[str, str]) -> Function:
    made = [Instruction(16 * n, *one) for n, one in enumerate(instructions)]
    return Function("attend", entry=True, instructions=made)


def test_a_descriptor_that_nothing_writes_is_found_and_told() -> None:
    (wrong,) = find_unwritten(read(LISTING.format(descriptor="UR1"))["attend"])
    assert wrong.opcode == "LDGSTS.E.BYPASS.128"
    assert "LDGSTS.E.BYPASS.128 at 0x20" in describe_unwritten([wrong])
    assert find_unwritten(read(LISTING.format(descriptor="UR6"))["attend"]) == ()


@pytest.mark.parametrize(
    ("opcode", "operands"),
    [
        ("ULDC.64", "UR4, c[0x0][0x208]"),
        ("UIADD3", "UR5, UR9, 0x1, URZ"),
        ("R2UR", "UR4, R8"),
        ("UISETP.NE.AND", "UP0, UPT, UR4, URZ, UPT"),
        ("ULDC.128", "UR2, c[0x0][0x210]"),
        ("CALL.REL.NOINC", "`(slow)"),
    ],
)
def test_what_may_write_it_is_seen(opcode: str, operands: str) -> None:
    number = 5 if opcode == "ULDC.128" else int(operands[2]) if operands.startswith("UR") else 4
    read_from = ("LDG.E", f"R4, desc[UR{number}][R2.64]")
    assert find_unwritten(code((opcode, operands), read_from)) == ()
    assert len(find_unwritten(code(("MOV", "R1, R2"), read_from))) == 1


@pytest.mark.parametrize(("descriptor", "refused"), [("UR1", True), ("UR6", False)])
def test_a_finalist_with_one_is_wrong(
    monkeypatch: pytest.MonkeyPatch, descriptor: str, refused: bool
) -> None:
    text = LISTING.format(descriptor=descriptor)
    monkeypatch.setattr(verification, "disassemble", lambda _: text)
    monkeypatch.setattr(verification, "unread_because", lambda _: "")
    launches = (Launch("attend", (1, 1, 1), (32, 1, 1), pdl=True),)
    program = Program("key", Workload(()), launches, b"cubin", {"attend": "attend"})
    outcome = verification.judge_machine_code(program, ())
    assert outcome is not None
    assert ("register that nothing writes" in outcome.reason) == refused
    if refused:
        assert outcome.status is Status.INCORRECT
