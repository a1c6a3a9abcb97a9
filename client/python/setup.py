"""What pyproject.toml cannot say: the daemon, its operators and libraries go along, from where `make` or
`make install` has put them; they land in the environment's bin/, lib/, include/ and share/opd/, where
they find each other. Without them the package is the clients alone, and asks a daemon that serves."""

import os
import re
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel

HERE = Path(__file__).resolve().parent
CHECKOUT = {"bin": "build", "lib": "build", "include": "client/c", "share/opd/kernels_src": "kernels_src"}
FILES = {
    "bin": ["opd", "opctl"],
    "lib": ["libopd.so.0", "libopd_torch.so", "opd_native.so"],
    "include": ["opd.h"],
    "share/opd/kernels_src": ["**/*"],
}


def find_files() -> dict[str, list[Path]]:
    """By the folder that they land in; {}: nothing is built."""
    installed, checkout = HERE.parents[2], HERE.parents[1]
    if (installed / "bin" / "opd").exists():
        folders = {name: installed / name for name in FILES}
    elif (checkout / "build" / "opd").exists():
        folders = {name: checkout / CHECKOUT[name] for name in FILES}
    else:
        return {}
    found: dict[str, list[Path]] = {}
    for name, folder in folders.items():
        for path in sorted(path for pattern in FILES[name] for path in folder.glob(pattern) if path.is_file()):
            found.setdefault(os.path.join(name, path.parent.relative_to(folder)), []).append(path)
    return found


def find_glibc(programs: list[Path]) -> int:
    """The newest 2.N whose symbols they use."""
    return max(int(n) for path in programs for n in re.findall(rb"GLIBC_2\.(\d+)", path.read_bytes()))


files = find_files()


class Wheel(bdist_wheel):
    """Programs of this machine's kind, for any Python."""

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, platform = super().get_tag()
        if not files:
            return python, abi, platform
        glibc = find_glibc(files["bin/."] + files["lib/."])
        return "py3", "none", platform.replace("linux_", f"manylinux_2_{glibc}_", 1)


class WithPrograms(Distribution):
    def has_ext_modules(self) -> bool:
        return bool(files)


setup(
    cmdclass={"bdist_wheel": Wheel},
    distclass=WithPrograms,
    data_files=[(folder, [os.path.relpath(path, HERE) for path in paths]) for folder, paths in files.items()],
)
