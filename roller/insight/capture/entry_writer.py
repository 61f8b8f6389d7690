"""``roller init``: writes an entry file for a model class and runs its step once on shapes."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from roller.errors import ModelError, RollerError, did_you_mean, shown
from roller.insight.capture.model_class_finder import ModelClass, find_model_class
from roller.insight.project_tracer import ProjectTracer
from roller.insight.trace.project_folder import import_root_and_module
from roller.insight.traced_step import TracedStep
from roller_runtime.core.files import write_atomically

#: Dtype of an input -> expression that makes a tensor from a shape. Integers are 0 or 1, which are valid indices for
#: every table.
_MAKERS = {
    **dict.fromkeys(("float32", "float64", "float16", "bfloat16"), "torch.randn({shape}, dtype=torch.{dtype})"),
    **dict.fromkeys(("int64", "int32"), "torch.randint(2, {shape}, dtype=torch.{dtype})"),
    "bool": "torch.rand({shape}) < 0.5",
}
_TEXT = '''"""Providers of {name}, written by `roller init`; profile them: roller profile {out}.

The loss and the optimizer are stand-ins: put your own into `iteration_provider`.
"""

import torch
{imports}


def model_provider():
    """Return the model."""
    return {name}({arguments})


def input_provider(batch_size=16):
    """Return the inputs of one step."""
    return (
{inputs}
    )


def loss_of(output):
    """Return a stand-in for a loss: the mean of all outputs, or the model's own loss."""
    if isinstance(output, torch.Tensor):
        return output.float().mean()
    if getattr(output, "loss", None) is not None:
        return output.loss
    parts = output.values() if isinstance(output, dict) else output
    return sum(loss_of(part) for part in parts if part is not None)


def iteration_provider(model):
    """Return a function that trains one step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(*inputs):
        optimizer.zero_grad()
        loss = loss_of(model(*inputs))
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
'''


@dataclass(frozen=True)
class InputShape:
    """Shape and dtype of an input for one sample.

    Parameters
    ----------
    sizes
        Shape without the batch axis.
    dtype
        PyTorch's name for the dtype.
    """

    sizes: tuple[int, ...]
    dtype: str = "float32"

    @classmethod
    def parse(cls, text: str) -> InputShape:
        """Parse a text such as ``"3x224x224:float32"``; for ``":float32"``, a sample is one number.

        Examples
        --------
        >>> InputShape.parse("3x32x32"), InputShape.parse("50:int64")
        (InputShape(sizes=(3, 32, 32), dtype='float32'), InputShape(sizes=(50,), dtype='int64'))
        """
        shape, _, dtype = text.partition(":")
        dtype = dtype or "float32"
        if dtype not in _MAKERS:
            raise ModelError(
                f"--input {text}: expected a dtype of {', '.join(_MAKERS)}, got {shown(dtype)}"
                f"{did_you_mean(dtype, _MAKERS)}. Write e.g. 3x224x224:float32."
            )
        parts = shape.split("x") if shape else []
        if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
            raise ModelError(
                f"--input {text}: expected sizes of one sample joined by x, got {shown(shape)}. "
                f"Write e.g. 3x224x224:float32."
            )
        return cls(tuple(map(int, parts)), dtype)

    def batch_tensor_code(self) -> str:
        """Return the Python expression for a batch of such inputs."""
        shape = ", ".join(["batch_size", *map(str, self.sizes)]) if self.sizes else "batch_size,"
        return _MAKERS[self.dtype].format(shape=f"({shape})", dtype=self.dtype)


def write_entry(
    model: str | Path,
    class_name: str | None = None,
    inputs: Sequence[str | InputShape] = (),
    arguments: str = "",
    out: str | Path | None = None,
) -> tuple[Path, TracedStep]:
    """Write the entry file for a model class, trace its step, and return the file's path and the traced step.

    Parameters
    ----------
    model
        Python file that contains the class.
    class_name
        Name of the class; by default, the only class with a ``forward`` that no other class in the file uses.
    inputs
        One shape for each argument of ``forward`` without a default, in the format of :meth:`InputShape.parse`.
    arguments
        Constructor arguments in Python syntax: ``"width=64, depth=2"``.
    out
        Path of the entry file; by default, next to the model's file with ``_entry`` appended to the name.

    Raises
    ------
    ModelError
        If the class, its arguments or the inputs do not fit, the file exists, or its step does not run; no file is then
        written.
    """
    path = Path(model)
    found = find_model_class(path, class_name)
    shapes = [one if isinstance(one, InputShape) else InputShape.parse(one) for one in inputs]
    _check_constructor_arguments(path, found, arguments)
    _check_input_shape_count(path, found, shapes)
    root, module = import_root_and_module(path)
    root = path.parent if root == path.absolute().parent else root  # relative if the path was
    target = Path(out) if out is not None else root / f"{path.stem}_entry.py"
    if target.absolute().parent != root.absolute():
        raise ModelError(f"{target}: expected a file in {root}, from where it imports the model. Leave --out a name.")
    if target.exists():
        raise ModelError(f"{target}: expected no such file yet, got one. Remove it, or name another: --out FILE.")
    text = _TEXT.format(
        name=found.name, out=target.name, arguments=arguments.strip(), imports=_import_lines(module, found.name),
        inputs="\n".join(f"        {shape.batch_tensor_code()}," for shape in shapes),
    )  # fmt: skip
    with write_atomically(target) as file:
        file.write(text.encode())
    try:
        with ProjectTracer(target) as project:
            return target, project.step()
    except RollerError as error:
        target.unlink(missing_ok=True)
        said = str(error).replace(str(target), target.name)
        raise ModelError(
            f"{path}: expected a step of {found.name} that runs on {_shapes_text(shapes)}, got this: {said} "
            f"Correct --input or --arguments."
        ) from error
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def _shapes_text(shapes: Sequence[InputShape]) -> str:
    return " and ".join(f"{'x'.join(map(str, ('batch', *one.sizes)))} of {one.dtype}" for one in shapes)


def _check_constructor_arguments(path: Path, found: ModelClass, arguments: str) -> None:
    try:
        call = ast.parse(f"f({arguments})", mode="eval").body
    except (SyntaxError, ValueError):
        call = None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ModelError(
            f"--arguments {shown(arguments)}: expected arguments as Python has them, got what is none. "
            f"Write e.g. 'width=64, depth=2'."
        )
    named = {keyword.arg for keyword in call.keywords}
    missing = [name for name in found.needed[len(call.args) :] if name not in named]
    if missing and None not in named and not any(isinstance(one, ast.Starred) for one in call.args):
        raise ModelError(
            f"{path}:{found.line}: expected arguments of {found.name}, got none for {', '.join(missing)}. "
            f"Pass e.g. --arguments '{missing[0]}=64'."
        )


def _check_input_shape_count(path: Path, found: ModelClass, shapes: Sequence[InputShape]) -> None:
    if len(shapes) < max(1, len(found.inputs)):
        raise ModelError(
            f"{path}:{found.line}: expected an --input for each of {', '.join(found.inputs) or 'the inputs'} of "
            f"{found.name}, got {len(shapes)}. Pass sizes of one sample, in order, e.g. --input 3x224x224:float32."
        )


def _import_lines(module: str, name: str) -> str:
    if all(part.isidentifier() for part in module.split(".")):
        return f"\nfrom {module} import {name}"
    return f'\nimport importlib\n\n{name} = importlib.import_module("{module}").{name}'
