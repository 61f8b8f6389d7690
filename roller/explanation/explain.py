"""``roller.explain`` and ``roller.why_not``, which compile nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from roller.compile_arguments import parse_expression, resolve_options, spec_and_local_device
from roller.construction.constructor import construct_candidates, spec_of_device_share
from roller.explanation import explanation
from roller.explanation.explanation import Explanation
from roller.explanation.why_not import WhyNot
from roller.explanation.why_not import compare_with_chosen as held_against
from roller.hardware import DeviceSpec
from roller.templates.common.options import ConstructOptions
from roller.tile.program import RProgram

if TYPE_CHECKING:
    from roller.construction.explicit_tiles import Tile


def explain(
    expr: Any,
    device: str | DeviceSpec,
    program: str | RProgram | None = None,
    options: ConstructOptions | None = None,
) -> Explanation:
    """Explain how a program was constructed, what its predicted time consists of, what limits it, and what would help.

    Parameters
    ----------
    expr, device
        See :func:`roller.construct`.
    program
        The program, or its name as ``construct`` prints it; by default the first candidate.
    options
        See :func:`roller.construct`.

    Returns
    -------
    Explanation
        ``print`` shows it as text, a notebook as a table, and ``to_dict()`` returns every number in full precision.

    Raises
    ------
    NoCandidateError
        If no program fits the device.
    TileError
        If the named program does not belong to the expression or does not fit the device.

    Examples
    --------
    >>> import roller
    >>> why = roller.explain(roller.ops.matmul(512, 512, 512), "v100")
    >>> why.rank, why.roof.bound, why.time.value == why.estimate.seconds
    (1, 'arithmetic', True)
    """
    from roller.construction.parse_program_names import name_of_program_or_text, program_from_name

    spec, chosen = spec_and_local_device(device)[0], resolve_options(options, None)
    expression = chosen.meant(parse_expression(expr))
    named = (
        None
        if program is None
        else program_from_name(expression, spec_of_device_share(spec, chosen), name_of_program_or_text(program))
    )
    return explanation.explain_program(expression, spec, chosen, named)


def why_not(
    expr: Any,
    device: str | DeviceSpec,
    tiles: Mapping[str, Tile] | str | RProgram,
    *,
    fragment: str | None = None,
    stages: int = 1,
    split_k: int = 1,
    raster: int = 1,
    options: ConstructOptions | None = None,
) -> WhyNot:
    """Explain why tiles or a program are worse than the first candidate of :func:`roller.construct`.

    The reason is the capacity that the program exceeds, or the term that makes it slower.

    Parameters
    ----------
    expr, device, tiles, fragment, stages, split_k, raster
        See :func:`roller.predict`.
    options
        See :func:`roller.construct`.

    Examples
    --------
    >>> import roller
    >>> tiles = {"shared": {"i": 32, "j": 32, "k": 8}, "register": {"i": 2, "j": 2}}
    >>> found = roller.why_not(roller.ops.matmul(4096, 4096, 4096), "v100", tiles)
    >>> found.verdict, found.percent > 50
    ('slower', True)
    """
    from roller.construction.explicit_tiles import ProgramMechanisms

    spec, chosen = spec_and_local_device(device)[0], resolve_options(options, None)
    expression = chosen.meant(parse_expression(expr))
    how = ProgramMechanisms(stages, split_k, raster)
    best = construct_candidates(expression, spec, chosen)[0].program
    return held_against(expression, spec_of_device_share(spec, chosen), best, tiles, fragment, how)
