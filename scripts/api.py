#!/usr/bin/env python3
"""The reference of the Python packages, as pages, by pdoc: api.py OUT (`make docs`)."""

import re
import sys
from pathlib import Path

import pdoc
from pdoc import docstrings, render

MODULES = ("opd", "opd.aio", "opd.stubs", "opd.torch")


def to_markdown(text):
    """Lists of arguments, as our docstrings have them ("name    what it is"), made lists of Markdown."""
    lines, inside = [], False
    for line in text.split("\n"):
        match = re.match(r"(\w+)  +(\S.*)", line)
        if match:
            lines += [""] * (not inside) + [f"- **{match[1]}**: {match[2]}"]
        elif inside and line.startswith("  "):
            lines.append(f"  {line.strip()}")
        else:
            lines += [""] * inside + [line]
        inside = bool(match) or (inside and line.startswith("  "))
    return "\n".join(lines)


def main():
    plain = docstrings.convert
    docstrings.convert = lambda text, form, source: plain(to_markdown(text), form, source)
    render.configure(docformat="markdown", show_source=False, footer_text="opd")
    pdoc.pdoc(*MODULES, output_directory=Path(sys.argv[1]))


if __name__ == "__main__":
    main()
