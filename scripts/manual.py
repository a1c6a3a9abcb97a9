#!/usr/bin/env python3
"""Man pages and completions, of what the programs say of themselves.

    manual.py BIN OUT    from BIN/opd --help, BIN/opctl [COMMAND] --help and kernels_src/*.md:
                         OUT/man/man1/opd.1, man1/opctl.1, man7/opd-kernel.7,
                         OUT/bash-completion/completions/{opd,opctl}, OUT/zsh/site-functions/_opd,
                         OUT/fish/vendor_completions.d/{opd,opctl}.fish
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Option(NamedTuple):
    name: str
    value: str  # "FILE"; "": it takes none
    help: str


class Command(NamedTuple):
    name: str
    args: str  # "FILE.cu"
    summary: str
    text: str  # what its own --help adds
    options: list[Option]


def run(*command: object) -> str:
    return subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True).stdout


def read_options(text: str) -> list[Option]:
    """Lines as "  --name VALUE   help", of which the next may go on."""
    options: list[Option] = []
    for line in text.splitlines():
        if match := re.match(r"  (--[\w-]+) ?(\S*)  +(\S.*)", line):
            options.append(Option(*match.groups()))
        elif options and line.startswith(" " * 16):
            options[-1] = options[-1]._replace(help=f"{options[-1].help} {line.strip()}")
        elif not line.strip() and options:
            break
    return options


def read_commands(opctl: Path) -> list[Command]:
    listed = run(opctl, "--help").split("Commands:\n")[1].split("\n\n")[0]
    commands = []
    for line in listed.splitlines():
        usage, summary = re.split(r"  +", line.strip(), maxsplit=1)
        name, _, args = usage.partition(" ")
        body, _, options = run(opctl, name, "--help").partition("\nOptions:\n")
        text = "\n".join(body.splitlines()[3:]).strip()
        commands.append(Command(name, args, summary, text, read_options(options)))
    return commands


# --- man pages


def escape(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = re.sub(r"[^\x00-\x7f]", lambda c: f"\\[u{ord(c[0]):04X}]", text)
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.M)


def inline(text: str) -> str:
    """Markdown within a line: code and what is stressed are bold; of a link its words."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("\\*", "*")
    parts = re.split(r"`+([^`]*)`+|\*\*([^*]*)\*\*", text)
    out = []
    for i, part in enumerate(parts):
        if part:
            out.append(escape(part) if i % 3 == 0 else f"\\fB{escape(part)}\\fR")
    return "".join(out)


def page(name: str, section: int, summary: str, version: str, body: list[str]) -> str:
    title = f'.TH {name.upper()} {section} "" "opd {version}"'
    return "\n".join([title, ".SH NAME", f"{name} \\- {escape(summary)}", *body]) + "\n"


def list_options(options: list[Option]) -> list[str]:
    out = []
    for o in options:
        out += [".TP", f"\\fB{escape(o.name)}\\fR" + (f" \\fI{escape(o.value)}\\fR" if o.value else ""), inline(o.help)]
    return out


def make_opd(help: str, version: str) -> str:
    intro, options, rest = help.split("\n\n")[1], help.split("\n\n")[2], help.split("\n\n")[3:]
    body = [".SH SYNOPSIS", ".B opd", "[\\fIOPTION\\fR]...", ".SH DESCRIPTION", escape(intro)]
    body += [".SH OPTIONS", *list_options(read_options(options)), ".SH FILES", *map(inline, rest)]
    body += [".SH SIGNALS", "SIGTERM and SIGINT end the daemon after the requests in flight;"]
    body += ["SIGHUP has it look at its kernels."]
    body += [".SH EXIT STATUS", "0 after an orderly end, 3 where another daemon serves on the socket, else 1."]
    body += [".SH SEE ALSO", ".BR opctl (1),", ".BR opd\\-kernel (7)"]
    return page("opd", 1, "serves differentiable operators", version, body)


def make_opctl(help: str, commands: list[Command], version: str) -> str:
    common = read_options(help.split("Options:\n")[1])
    names = {o.name for o in common}
    body = [".SH SYNOPSIS", ".B opctl", "[\\fIOPTION\\fR]... \\fICOMMAND\\fR", ".SH COMMANDS"]
    for c in commands:
        body += [".SS " + inline(f"{c.name} {c.args}".strip()), inline(c.summary.capitalize() + "."), ".PP", inline(c.text)]
        body += list_options([o for o in c.options if o.name not in names])
    body += [".SH OPTIONS", *list_options(common)]
    body += [".SH ENVIRONMENT", ".TP", ".B NO_COLOR", "No colours, where it is set."]
    body += [".TP", ".B TERM", "dumb: no colours, and top is not drawn in place."]
    body += [".SH EXIT STATUS", inline(help.split("Exit status:")[1].strip()).capitalize()]
    body += [".SH SEE ALSO", ".BR opd (1),", ".BR opd\\-kernel (7)"]
    return page("opctl", 1, "asks a running opd", version, [line for line in body if line])


def join_lines(lines: list[str]) -> list[str]:
    """Each paragraph, and each point of a list, on a line."""
    joined: list[str] = []
    code = False
    for line in lines:
        fence = line.startswith("```")
        code ^= fence
        goes_on = re.match(r"(  )?[^|#\s-]|  -?\S|-\S", line) and not line.startswith("    ")
        if goes_on and not code and not fence and joined and re.match(r"[^|#`\s]|`[^`]", joined[-1]):
            joined[-1] += " " + line.strip()
        else:
            joined.append(line)
    return joined


def make_kernel(markdown: str, version: str) -> str:
    """Of the manual's Markdown: headings, paragraphs, lists, tables of two columns and more, code."""
    out: list[str] = []
    code = False
    for line in join_lines(markdown.splitlines()[1:]):
        if line.startswith("```"):
            code = not code
            out += [".PP", ".nf", ".RS 4"] if code else [".RE", ".fi"]
        elif code:
            out.append(escape(line))
        elif line.startswith("    "):
            out += [".PP", ".nf", ".RS 4", escape(line[4:]), ".RE", ".fi"]
        elif line.startswith("#"):
            out += [(".SH " if line.startswith("## ") else ".SS ") + inline(line.lstrip("# "))]
        elif line.startswith("|"):
            cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            if not re.fullmatch(r"[-:| ]+", line.strip("|")) and any(cells):
                out += [".TP", inline(cells[0]) or "\\&", inline(" \u2014 ".join(c for c in cells[1:] if c)) or "\\&"]
        elif line.startswith("- "):
            out += [".IP \\(bu 2", inline(line[2:])]
        else:
            out.append(inline(line.strip()) if line.strip() else ".PP")
    joined = re.sub(r"\.RE\n\.fi\n\.PP\n\.nf\n\.RS 4\n", "", "\n".join(out))  # lines of one example
    return page("opd-kernel", 7, "the header language of opd's operators", version, [".SH DESCRIPTION", joined])


# --- completions


def is_file(value: str) -> bool:
    return value in ("PATH", "FILE", "FILE.cu", "DIR", "PROGRAM")


OPERATORS = 'opctl ops 2>/dev/null | sed "1d; s/ .*//"'
DEVICES = 'opctl status 2>/dev/null | grep -oE "^(cpu|cuda.[0-9]+)"'
# What a shell asks for the names that an argument may be.
LISTS = {"OP": OPERATORS, "[NAME]": OPERATORS, "DEVICE": DEVICES, "add": "echo add"}


def takes(c: Command) -> tuple[str, bool]:
    """What lists its arguments, and whether they may be files."""
    words = c.args.split()
    return LISTS.get(words[0], "") if words else "", any(is_file(word.strip("[]")) for word in words)


def bash(name: str, options: list[Option], commands: list[Command]) -> str:
    words, first = [o.name for o in options], "echo " * bool(commands) + " ".join(c.name for c in commands)
    files = "|".join(sorted({o.name for o in options if is_file(o.value)}))
    cases = "".join(
        f"        {c.name}) words='{' '.join(o.name for o in c.options)}' list='{takes(c)[0]}'"
        f" files={'yes' if takes(c)[1] else ''} ;;\n"
        for c in commands
    )
    return f"""# Completion of {name} for bash.
_{name}() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} word words="{" ".join(words)}"
    local list="{first}" files={"" if commands else "yes"}
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case $word in
{cases}        esac
    done
    case $prev in
        {files}) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    esac
    case $cur in
        -*) COMPREPLY=($(compgen -W "$words" -- "$cur")) ;;
        *)
            COMPREPLY=($(compgen -W "$(eval "$list")" -- "$cur"))
            [ -z "$files" ] || COMPREPLY+=($(compgen -f -- "$cur")) ;;
    esac
}}
complete -o filenames -F _{name} {name}
"""


def quote(text: str) -> str:
    return text.replace("'", "'\\''")


def zsh_option(o: Option) -> str:
    help = re.sub(r"([\[\]:])", r"\\\1", quote(o.help))
    value = "" if not o.value else ":" + o.value.replace(":", "\\:") + ":" + ("_files" if is_file(o.value) else " ")
    return f"        '{o.name}[{help}]{value}'"


def zsh_arguments(c: Command) -> str:
    list, files = takes(c)
    names = f" '*: :{{compadd -- $({list}){'; _files' * files}}}'"
    return names if list else " '*:file:_files'" * files


def zsh(opd: list[Option], opctl: list[Option], commands: list[Command]) -> str:
    described = "\n".join(f"        '{c.name}:{quote(c.summary)}'" for c in commands)
    cases = "\n".join(
        f"            {c.name}) _arguments \\\n"
        + " \\\n".join(zsh_option(o) for o in c.options)
        + zsh_arguments(c)
        + " ;;"
        for c in commands
    )
    return f"""#compdef opd opctl
# Completion of opd and opctl for zsh.
_opd_commands() {{
    local -a commands=(
{described}
    )
    _describe command commands
}}
if [[ $service == opd ]]; then
    _arguments \\
{(" " + chr(92) + chr(10)).join(map(zsh_option, opd))}
else
    local curcontext=$curcontext state line
    _arguments -C \\
{(" " + chr(92) + chr(10)).join(map(zsh_option, opctl))} \\
        '1: :_opd_commands' '*:: :->rest'
    if [[ $state == rest ]]; then
        case $line[1] in
{cases}
        esac
    fi
fi
"""


def fish(name: str, options: list[Option], commands: list[Command]) -> str:
    def row(condition: str, o: Option) -> str:
        takes = "" if not o.value else " -r" if is_file(o.value) else " -x"
        return f"complete -c {name}{condition} -l {o.name[2:]}{takes} -d '{quote(o.help)}'"

    names = {o.name for o in options}
    lines = [f"# Completion of {name} for fish.", *(row("", o) for o in options)]
    for c in commands:
        lines.append(f"complete -c {name} -n __fish_use_subcommand -a {c.name} -d '{quote(c.summary)}'")
        own = f" -n '__fish_seen_subcommand_from {c.name}'"
        lines += [row(own, o) for o in c.options if o.name not in names]
        list, files = takes(c)
        lines += [f"complete -c {name}{own}{'' if files else ' -f'}" + (f" -a '({list})'" if list else "")]
    return "\n".join(lines) + "\n"


def main(programs: Path, out: Path) -> None:
    opd_help, opctl_help = run(programs / "opd", "--help"), run(programs / "opctl", "--help")
    version = run(programs / "opd", "--version").split()[1]
    commands = read_commands(programs / "opctl")
    opd = read_options(opd_help.split("\n\n")[2])
    opctl = read_options(opctl_help.split("Options:\n")[1])
    pages = [(ROOT / "kernels_src" / name).read_text() for name in ("README.md", "GRAMMAR.md")]
    beside = "`GRAMMAR.md` beside this file is the whole grammar"
    assert beside in pages[0]
    pages[0] = pages[0].replace(beside, "The last section is the whole grammar")
    manual = pages[0] + pages[1].replace("# The grammar of a header", "## The grammar of a header", 1)
    files = {
        "man/man1/opd.1": make_opd(opd_help, version),
        "man/man1/opctl.1": make_opctl(opctl_help, commands, version),
        "man/man7/opd-kernel.7": make_kernel(manual, version),
        "bash-completion/completions/opd": bash("opd", opd, []),
        "bash-completion/completions/opctl": bash("opctl", opctl, commands),
        "zsh/site-functions/_opd": zsh(opd, opctl, commands),
        "fish/vendor_completions.d/opd.fish": fish("opd", opd, []),
        "fish/vendor_completions.d/opctl.fish": fish("opctl", opctl, commands),
    }
    for name, text in files.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
