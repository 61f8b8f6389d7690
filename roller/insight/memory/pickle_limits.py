"""Check of the sizes that a pickle claims, before any memory is allocated for them."""

from __future__ import annotations

import pickletools

#: Size in bytes of each opcode's argument; negative if the argument begins with its size or ends with the line.
_ARGUMENTS = {ord(op.code): 0 if op.arg is None else op.arg.n for op in pickletools.opcodes}
_LINE = pickletools.UP_TO_NEWLINE
#: Number of bytes that give the size of an argument, before it.
_COUNTS = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1, pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4, pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}  # fmt: skip
_STOP, _PUT, _LONG_BINPUT = b".pr"
#: Opcodes that name a class or a function, on two lines.
_NAMES = b"ci"


def check_pickle_sizes(data: bytes) -> None:
    r"""Raise an error for a pickle that claims more bytes than it contains.

    Examples
    --------
    >>> check_pickle_sizes(b"\x80\x04}r\xff\xff\xff\xff.")
    Traceback (most recent call last):
    ValueError: value 4294967295 is remembered, of 3
    """
    # Python allocates memory for a text of the claimed length and for a memo up to the largest index: up to 64 GiB for
    # a file of ten bytes.
    at, steps, end = 0, 0, len(data)
    while at < end:
        code, steps = data[at], steps + 1
        size = _ARGUMENTS.get(code)
        if size is None:
            raise ValueError(f"byte {at} is no opcode")
        if code == _STOP or code in _NAMES:  # the reader refuses the name and reads no further
            return
        first, at = at + 1, at + 1
        if size == _LINE:
            at = data.index(b"\n", first) + 1
        elif size < 0:
            at = first + _COUNTS[size]
            at += int.from_bytes(data[first:at], "little", signed=False)
        else:
            at += size
        if at > end:
            raise ValueError(f"it is cut off behind byte {first}")
        number = int(data[first:at] or 0) if code == _PUT else 0
        number = int.from_bytes(data[first:at], "little") if code == _LONG_BINPUT else number
        if not 0 <= number <= steps:
            raise ValueError(f"value {number} is remembered, of {steps}")
    raise ValueError("it is cut off")
