"""Puts the package, and TVM's runtime libraries with their licences, into the wheel of roller-runtime."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path, PurePath
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: Packages and their libraries; roller depends on the same releases.
LIBRARIES = {"apache-tvm-ffi": "libtvm_ffi.so", "apache-tvm": "libtvm_runtime.so"}


class TvmLibraryHook(BuildHookInterface[Any]):
    """Copies the libraries from the packages of the environment that builds the wheel.

    Without these packages, it builds a wheel without the libraries, which needs apache-tvm where it is installed.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the libraries to a wheel, and the tag of the machines that can load them."""
        if version == "editable":
            return
        include, tags = build_data["force_include"], []
        package_folder = Path(self.root).resolve().parent / "roller_runtime"
        if not (package_folder / "__init__.py").is_file():
            raise FileNotFoundError(f"{package_folder}: expected the package, found none. Build in a clone of roller.")
        for path in package_folder.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                include[str(path)] = path.relative_to(package_folder.parent).as_posix()
        try:
            found = {package: metadata.distribution(package) for package in LIBRARIES}
        except metadata.PackageNotFoundError as err:
            self.app.display_warning(f"{err} is not installed: the wheel has no copy of TVM's runtime libraries")
            return
        for package, library in LIBRARIES.items():
            files = found[package].files or ()
            if not any(file.name == library for file in files):
                raise FileNotFoundError(f"{package}: expected {library}, found none. Build the wheel on Linux.")
            for file in files:
                if file.name == library:
                    include[str(file.locate())] = f"roller_runtime/lib/{library}"
                elif name := _name_of_licence(file):
                    include[str(file.locate())] = f"roller_runtime/lib/licenses/{package}/{name}"
            lines = (found[package].read_text("WHEEL") or "").splitlines()
            tags.append({line.rpartition("-")[2] for line in lines if line.startswith("Tag:")})
        platforms = set.intersection(*tags)
        if not platforms:
            raise ValueError(f"expected one platform for {' and '.join(LIBRARIES)}, got {tags}. Reinstall them.")
        platform = max(platforms)  # that both packages have
        build_data["pure_python"], build_data["tag"] = False, f"py3-none-{platform}"


def _name_of_licence(file: PurePath) -> str:
    """Return the name of a licence in the wheel; empty for any other file."""
    if "licenses" in file.parts:
        return file.name
    # Of code of others that a library contains, such as libbacktrace.
    return f"LICENSE.{file.parent.name}.txt" if file.name == "LICENSE" and "3rdparty" in file.parts else ""
