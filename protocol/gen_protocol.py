#!/usr/bin/env python3
"""Makes what follows from the tables protocol.def, errors.def and dtype.def:
client/python/opd/_protocol.py and the tables of protocol/README.md.

    gen_protocol.py            writes both
    gen_protocol.py --check    writes nothing; fails, naming the file, if one is stale
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTOCOL = ROOT / "protocol" / "protocol.def"
ERRORS = ROOT / "protocol" / "errors.def"
DTYPES = ROOT / "server" / "base" / "dtype.def"
MODULE = ROOT / "client" / "python" / "opd" / "_protocol.py"
README = ROOT / "protocol" / "README.md"

TEXT = r'"((?:[^"\\]|\\.)*)"'
ROWS = {
    PROTOCOL: rf"REQUEST\((\w+),\s*(\d+),\s*{TEXT},\s*{TEXT},\s*{TEXT}\)",
    ERRORS: rf"ERROR\((\w+),\s*(\d+),\s*(\w+),\s*{TEXT}\)",
    DTYPES: rf"DTYPE\((\w+),\s*(\d+),\s*(\d+),\s*{TEXT},\s*{TEXT}\)",
}
VERSION = r"#define OPD_PROTOCOL (\d+)"

LETTERS = {
    "s": "string", "S": "string?", "i": "integer", "b": "binary", "M": "map", "h": "id",
    "H": "id?", "a": "array", "A": "array?", "v": "any", "n": "nil", "m": "string", "f": "a descriptor",
}  # fmt: skip


def read_rows(path):
    """A table's rows as tuples of strings; what else is no comment or blank line stops."""
    rows = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("//") or re.fullmatch(VERSION, line):
            continue
        row = re.fullmatch(ROWS[path], line.strip())
        if not row:
            sys.exit(
                f"{path}:{number}: not a row of this table: {line.strip()}\n"
                f"expected: {ROWS[path]}"
            )
        rows.append(row.groups())
    return rows


def read_version():
    found = re.search(VERSION, PROTOCOL.read_text())
    if not found:
        sys.exit(f"{PROTOCOL}:1: no line `#define OPD_PROTOCOL NUMBER`")
    return int(found.group(1))


def find_accumulators(dtypes):
    """Of each dtype the one that it accumulates in."""
    of_type = {r[3]: r[0] for r in dtypes}
    return {r[0]: of_type[r[4]] for r in dtypes}


def make_module(requests, errors, dtypes):
    def table(name, kind, rows):
        lines = [f"    {key!r}: {value!r},".replace("'", '"') for key, value in rows]
        return "\n".join([f"{name}: dict[str, {kind}] = {{", *lines, "}"])

    return "\n".join(
        [
            '"""Made by protocol/gen_protocol.py from protocol.def, errors.def and dtype.def."""',
            "",
            "from __future__ import annotations",
            "",
            f"PROTOCOL = {read_version()}",
            "",
            "# name: (letters of the parameters, letter of the result)",
            table("REQUESTS", "tuple[str, str]", [(r[0], (r[2], r[3])) for r in requests]),
            "",
            "# name: (number, class in opd.errors)",
            table("ERRORS", "tuple[int, str]", [(r[0], (int(r[1]), r[2])) for r in errors]),
            "",
            "# name: size of an element in bytes",
            table("DTYPES", "int", [(r[0], int(r[2])) for r in dtypes]),
            "",
            "# name: what acc_t is, where that is scalar_t",
            table("ACCUMULATORS", "str", list(find_accumulators(dtypes).items())),
            "",
        ]
    )


def spell(letters):
    """ "hsa|SS" -> "id, string, array [, string?, string?]" """
    needed, _, optional = letters.partition("|")
    text = ", ".join(LETTERS[c] for c in needed)
    if optional:
        text += (" [, " if text else "[") + ", ".join(LETTERS[c] for c in optional) + "]"
    return text or "none"


def make_tables(requests, errors, dtypes):
    def table(head, rows):
        lines = [head, ["---"] * len(head), *rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    return {
        "version": f"Protocol {read_version()}.",
        "requests": table(
            ["request", "since", "parameters", "result", "what it does"],
            [[f"`{name}`", since, spell(params), spell(result), doc]
             for name, since, params, result, doc in requests]),
        "errors": table(
            ["code", "number", "Python", "what the caller should do"],
            [[f"`{name}`", number, f"`{cls}`", advice] for name, number, cls, advice in errors]),
        "dtypes": table(
            ["dtype", "number", "bytes", "`acc_t`"],
            [[f"`{name}`", number, size, f"`{find_accumulators(dtypes)[name]}`"]
             for name, number, size, _, _ in dtypes]),
    }  # fmt: skip


def fill_readme(text, tables):
    for name, table in tables.items():
        begin, end = f"<!-- generated: {name} -->", f"<!-- end: {name} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            sys.exit(f"{README}: expected one line `{begin}` and one `{end}`")
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{table}\n{end}{rest.split(end)[1]}"
    return text


def main():
    rows = [read_rows(path) for path in (PROTOCOL, ERRORS, DTYPES)]
    made = {
        MODULE: make_module(*rows),
        README: fill_readme(README.read_text(), make_tables(*rows)),
    }
    stale = [p for p, text in made.items() if not p.exists() or p.read_text() != text]
    if sys.argv[1:] == ["--check"]:
        if stale:
            sys.exit("stale: " + ", ".join(map(str, stale)) + "; run protocol/gen_protocol.py")
        return
    if sys.argv[1:]:
        sys.exit(__doc__)
    for path in stale:
        path.write_text(made[path])
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
