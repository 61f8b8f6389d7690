"""What became of a case, and which exceptions are a user's answer and which are ours to mend."""

from __future__ import annotations

import re
import traceback
from dataclasses import asdict, dataclass

from roller.errors import RollerError

#: Fine: right, or refused in a sentence.
OK, REFUSED, SKIPPED = "ok", "refused", "skipped"
#: A number that drew no case of its own.
NOT_DRAWN = "not drawn"
#: Findings.
WRONG, BOUNDS, CRASH, FOREIGN = "wrong result", "out of bounds", "crash", "foreign exception"
NO_KERNEL, RIGHT_REFUSED, UNCLEAR, HANG = "no kernel", "right kernel refused", "unclear refusal", "hang"
#: A kernel whose check caught it: the user is not deceived, but a template is wrong.
CAUGHT = "wrong kernel caught"
FINE = (OK, REFUSED, SKIPPED)

_MOST_CHARACTERS = 3000
#: Texts of TVM, NumPy or compilers that no refusal should consist of.
_FOREIGN_TEXT = re.compile(
    r"Traceback|InternalError|TVMError|Check failed|\.cc:\d+|\.cpp:\d+|undeclared|unresolved|core dumped"
    r"|AttributeError|TypeError|KeyError|IndexError|ValueError|ZeroDivisionError|OverflowError|RecursionError"
    r"|AssertionError|not find intrinsic|Cannot find|intrinsic|LLVM ERROR|^\s*File "
)


@dataclass(frozen=True)
class Verdict:
    """What became of a case: one of the kinds above, and why."""

    kind: str
    message: str = ""

    @property
    def fine(self) -> bool:
        """Whether nothing is to be mended."""
        return self.kind in FINE

    @property
    def signature(self) -> str:
        """What findings of one cause have in common: the kind and the message without names and numbers."""
        text = re.sub(r"'[^']*'|\"[^\"]*\"|\[[^\]]*\]|\([^)]*\)", "_", self.message)
        text = re.sub(r"-?\d[\d.e+-]*|\b(nan|inf)\b|(np\.)?\w*int64_?", "N", text)
        text = re.sub(r"\b[A-Z]\w?\d*\b|\bT\w*\b", "X", text)
        return f"{self.kind}: {text[:90]}"

    def to_dict(self) -> dict[str, str]:
        """Return the verdict as plain data."""
        return asdict(self)


def refusal(error: BaseException, stage: str) -> Verdict:
    """Judge an exception: a refusal in roller's own words, or a finding."""
    text = f"{stage}: {type(error).__name__}: {error}"
    if not isinstance(error, RollerError):
        place = traceback.extract_tb(error.__traceback__)
        own = [f for f in place if "/roller/" in f.filename and "/site-packages/" not in f.filename]
        at = (own or place)[-1:]
        where = f"{at[0].filename.rpartition('/roller/')[2]}:{at[0].name}" if at else ""
        return Verdict(FOREIGN, f"{stage}: {type(error).__name__} in {where}: {str(error)[:300]}")
    if len(str(error)) > _MOST_CHARACTERS:
        return Verdict(UNCLEAR, f"{stage}: {len(str(error))} characters: {str(error)[:200]}")
    found = _FOREIGN_TEXT.search(str(error))
    if found:
        return Verdict(UNCLEAR, f"{stage}: says '{found.group().strip()}': {str(error)[:600]}")
    if ":" not in str(error) or not str(error).rstrip().endswith((".", "?", ")")):
        return Verdict(UNCLEAR, f"{stage}: not 'where: expected, got. Remedy.': {str(error)[:300]}")
    return Verdict(REFUSED, text[:600])
