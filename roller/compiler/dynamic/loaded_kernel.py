"""LoadedRangeKernel: a saved kernel for ranges of sizes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

from roller.errors import ArtifactError
from roller_runtime.core.display import one_line_repr
from roller_runtime.core.unpicklable import Unpicklable
from roller_runtime.session.cpu_session import Session
from roller_runtime.session.load_model import load_model
from roller_runtime.session.range_session import PROOFS, RangeSession

#: Key of an operator's kernels in its plan; models have other keys.
KEY = "operator"


class LoadedRangeKernel(Unpicklable):
    """A saved kernel for ranges of sizes, which needs neither a compiler nor proofs.

    Parameters
    ----------
    session
        Session that runs the kernel: it also has inputs by name, profiles and metrics.
    """

    other_way: ClassVar[str] = "Load it with roller.load where it is needed; threads may share it."

    def __init__(self, session: RangeSession) -> None:
        self.session = session

    @property
    def name(self) -> str:
        """Name of the expression."""
        return self.session.name

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """Smallest and largest value of each size by name.

        A size is an axis that a dimension of an input equals. For any other axis (the height of a convolution's
        result), the size is the dimension of an input that follows it, named ``<input>_<dimension>``.
        """
        return self.session.ranges

    @property
    def doubt(self) -> str:
        """Reason why the choice of kernels may be wrong, if the timing was disturbed; otherwise empty."""
        return self.session.doubt

    def __call__(self, *arrays: Any, out: Any = None) -> Any:
        """Run the kernel for the arrays' sizes.

        Parameters
        ----------
        *arrays
            One array per non-constant input, in call order: NumPy arrays or anything that supports DLPack.
        out
            Output array, or a tuple of them; allocated by default.

        Returns
        -------
        The output array, or a tuple of them.

        Raises
        ------
        LaunchError
            If a size is outside its range or an array does not fit.
        NoCandidateError
            If no kernel is proven correct at these sizes.
        """
        return self.session.run(*arrays, out=out)

    def at(self, *values: int, **sizes: int) -> Session:
        """Return the session for fixed sizes, which is called like the kernel.

        See :meth:`roller_runtime.session.range_session.RangeSession.at`.
        """
        return self.session.at(*values, **sizes)

    def save(self, path: str | os.PathLike[str], *, sources: bool = True, proofs: int | None = PROOFS) -> Path:
        """Write the kernel again, with the proofs that it has.

        See :meth:`roller_runtime.session.range_session.RangeSession.save`.
        """
        return self.session.save(path, sources=sources, proofs=proofs)

    def __repr__(self) -> str:
        return one_line_repr("LoadedRangeKernel", repr(self.session)[1:-1].partition(" ")[2])


def load_range_kernel(path: str | os.PathLike[str], threads: int | None) -> LoadedRangeKernel:
    """Load the folder of a kernel for ranges; raise ``ArtifactError`` if it contains anything else."""
    session = load_model(path, threads=threads)
    if not isinstance(session, RangeSession) or list(session.plan.kernels) != [KEY]:
        raise ArtifactError(f"{path}: expected a kernel, got a saved model. Load it with roller.load_model.")
    return LoadedRangeKernel(session)
