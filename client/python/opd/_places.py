"""What was built or installed along with this package, and where."""

import os
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def look_beside(folder: str, name: str) -> tuple[Path, Path, Path]:
    """Where a file is in a checkout (client/python/opd); in `folder`, of an installation's prefix
    (share/opd/python/opd, lib/python3/site-packages/opd), and beside the package (pip install --target).
    Above the root is the root."""
    places = ("../../../build", f"../../../../{folder}", f"../{folder}")
    first, *rest = (Path(os.path.normpath(_HERE / place / name)) for place in places)
    return (first, rest[0], rest[1])
