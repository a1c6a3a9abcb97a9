"""What pyproject.toml cannot say: libopd_torch.so goes along, from where `make` or `make install`
has put it. Without it the package is complete, and opd.torch runs all operators in the daemon."""

from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

NAME = "libopd_torch.so"
HERE = Path(__file__).resolve().parent
BUILT = [path for path in (HERE.parents[1] / "build" / NAME, HERE.parents[2] / "lib" / NAME) if path.exists()]


class BuildPy(build_py):
    def run(self) -> None:
        super().run()
        if BUILT and not self.editable_mode:  # an editable package finds it itself
            folder = Path(self.build_lib, "opd", "lib")
            self.mkpath(str(folder))
            self.copy_file(str(BUILT[0]), str(folder / NAME))


class ForThisMachine(Distribution):
    def has_ext_modules(self) -> bool:
        return bool(BUILT)


setup(cmdclass={"build_py": BuildPy}, distclass=ForThisMachine)
