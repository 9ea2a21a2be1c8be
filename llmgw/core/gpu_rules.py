"""What an error of a GPU means: how bad it is, what it says, what makes it go away.

The Xid numbers and what to do about them are NVIDIA's catalogue
(docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html); row remapping and the recovery action are
docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt.
"""

from enum import Enum

from attrs import frozen

from llmgw.core.gpus import Severity

NOTE, EXCLUDED = Severity.NOTE, Severity.EXCLUDED
DAY_S = 86_400.0
NOTE_LASTS_S = DAY_S  # since it was last seen
APART_S = 60.0  # errors of one kind that are closer than this are one incident
REPEATS, REPEATS_WITHIN_S = 3, 30 * DAY_S  # incidents after which somebody must look at the hardware
INSPECTION = "hardware inspection"
MISSING = "missing"
SILENT = "driver silent"


class Clearing(Enum):
    """The value is what people are told."""

    AGE = "a day without another"
    READING = "the driver no longer says so"
    RESET = "a reset of the GPU, a reboot of the node, or an operator"
    REBOOT = "a reboot of the node, or an operator"
    OPERATOR = "an operator, after it was looked at"
    LISTED = "the driver lists it again, or an operator forgets it"
    ANSWER = "the driver answers again"


@frozen
class Rule:
    severity: Severity
    says: str
    clearing: Clearing


def _note(says: str) -> Rule:
    return Rule(NOTE, says, Clearing.AGE)


def _reset(says: str) -> Rule:
    return Rule(EXCLUDED, says, Clearing.RESET)


def _reboot(says: str) -> Rule:
    return Rule(EXCLUDED, says, Clearing.REBOOT)


XIDS: dict[int, Rule] = {
    8: _note("a program's work timed out on the GPU"),
    11: _note("a program sent commands that are none"),
    13: _note("a program's fault in the compute engine"),
    31: _note("a program touched memory that is not its own"),
    32: _note("a program sent commands that are none"),
    43: _note("a program's work stopped"),
    45: _note("a program was ended and its work cleaned away"),
    46: _reset("the GPU stopped processing; reset required"),
    48: _reset("memory error of two bits, uncorrected"),
    61: _reset("its microcontroller has a breakpoint or warning; reset required"),
    62: _reset("its microcontroller halted; reset required"),
    63: _note("a bad memory row is noted, to be remapped at the next reset"),
    64: _reset("a bad memory row could not be remapped"),
    68: _note("a program's fault in the video decoder"),
    69: _note("a program's fault in the compute engine"),
    74: _reset("NVLink error"),
    79: _reboot("fallen off the bus"),
    92: _note("many corrected memory errors"),
    94: _note("uncorrected memory error, contained: it ended one program"),
    95: _reset("uncorrected memory error, not contained"),
    109: _reset("a switch between programs timed out; reset required"),
    110: _reboot("security fault"),
    119: _reset("its system processor does not answer; reset required"),
    120: _reset("its system processor failed; reset required"),
    121: _note("corrected error on the link to the CPU"),
    136: _note("a program's fault at the debugger's interface"),
    137: _note("a program touched memory of another GPU that is not its own"),
    140: _reset("uncorrected memory error, not recovered"),
    143: _reset("it could not be initialised"),
    145: _reset("NVLink error"),
    149: _reset("NVLink error"),
    # 154 says that the recovery action changed; the reading says which it is.
    154: _note("the driver asks for another action than before"),
    158: _reset("it timed out for good; reset required"),
    167: _reboot("its PCIe link timed out"),
}

SHOWN: dict[str, Rule] = {
    "ecc uncorrected": _reset("uncorrected memory errors since the last reset"),
    "ecc uncorrected, recovered": Rule(NOTE, "uncorrected memory errors, which the driver dealt with", Clearing.RESET),
    "row remap pending": Rule(NOTE, "a bad memory row is remapped at the next reset", Clearing.RESET),
    "row remap failed": Rule(EXCLUDED, "no spare memory rows are left: to be replaced", Clearing.OPERATOR),
    "recovery asked": _reset("the driver asks for"),
    "slowed": Rule(NOTE, "runs slower to protect itself", Clearing.READING),
    "untold": Rule(EXCLUDED, "the driver fails to tell", Clearing.READING),
}

OTHERS = {
    INSPECTION: Rule(EXCLUDED, f"the same error {REPEATS} times in 30 days", Clearing.OPERATOR),
    MISSING: Rule(EXCLUDED, "the driver does not list it", Clearing.LISTED),
    SILENT: Rule(EXCLUDED, "the driver does not answer", Clearing.ANSWER),
}

_UNKNOWN = _note("an error this version has no rule for; see NVIDIA's Xid catalogue")


def xid_cause(code: int) -> str:
    return f"xid {code}"


def rule_of(cause: str) -> Rule:
    kind, _, code = cause.partition(" ")
    if kind == "xid" and code.isdecimal():
        return XIDS.get(int(code), _UNKNOWN)
    return SHOWN.get(cause) or OTHERS[cause]
