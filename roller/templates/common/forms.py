"""Forms of an expression for which programs are constructed: fused, grouped, or with blocked channels joined."""

from __future__ import annotations

from roller.expr import TensorExpr
from roller.expr.canonical import fuse_axes, group_axes
from roller.expr.join_split_channel_axes import join_channel_digits
from roller.expr.split_commonly_divided_axes import rename_reserved_axes
from roller.hardware import DeviceSpec
from roller.templates.common.options import ConstructOptions


def canonical_forms(expr: TensorExpr, options: ConstructOptions) -> tuple[TensorExpr, ...]:
    """Return the forms for which programs are constructed: fused (unless switched off) and, if it exists, grouped."""
    key = f"forms/{options.axis_fusion}/{options.axis_grouping}"
    if key not in expr._memo:
        plain = fuse_axes(expr) if options.axis_fusion else rename_reserved_axes(expr)
        grouped = group_axes(plain) if options.axis_grouping else None
        expr._memo[key] = (plain,) if grouped is None else (plain, grouped)
    forms: tuple[TensorExpr, ...] = expr._memo[key]
    return forms


def forms_for_matrix_units(expr: TensorExpr, spec: DeviceSpec, options: ConstructOptions) -> tuple[TensorExpr, ...]:
    """Return the forms to try on matrix units: the canonical ones, and sometimes one with fewer axes merged."""
    if not spec.fragments:
        return ()
    forms = canonical_forms(expr, options)
    if _is_vector_matrix_product(expr):  # fragments overhang an axis of extent 1, which other forms omit
        return (*forms, rename_reserved_axes(expr))
    if "forms/stepped" not in expr._memo:
        stepped = group_axes(forms[0], reductions=False)
        expr._memo["forms/stepped"] = () if stepped is None or stepped in forms else (stepped,)
    extra: tuple[TensorExpr, ...] = expr._memo["forms/stepped"] if len(forms) > 1 else ()
    return (*forms, *extra)


def _is_vector_matrix_product(expr: TensorExpr) -> bool:
    """Return whether the expression is the product of a vector and a matrix."""
    s = expr.anchor
    wide = {a.name for a in s.spatial_axes if a.extent > 1}
    if len(wide) == len(s.spatial_axes) or len(s.reduction_axes) != 1 or len(s.loads) != 2:
        return False
    one, other = ({n for i in x.index for n in i.axes} & wide for x in s.loads)
    # All wide axes of one operand are also axes of the other one.
    return one <= other or other <= one


def joined_channel_forms(expr: TensorExpr, options: ConstructOptions) -> tuple[TensorExpr, ...]:
    """Return the form with blocked channels joined into one axis, as Winograd's algorithm needs, or none."""
    whole = join_channel_digits(canonical_forms(expr, options)[0]) if options.winograd else None
    return () if whole is None else (whole,)
