"""Grammars as kernels_src/GRAMMAR.md is written, and whether something is a sentence of one."""

import re

RULE = re.compile(r'"[^"]*"|\w+|[][{}()|]')
TOKEN = re.compile(
    r"""(?P<NAME>[A-Za-z_]\w*)|(?P<FLOAT>\d+\.(?!\.)\d*(?:[eE][+-]?\d+)?|\d*\.?\d+[eE][+-]?\d+|\.\d+)|(?P<INT>\d+)
    |(?P<STRING>"[^"]*"|'[^']*')|(?P<PUNCT>\.\.\.|->|::|\.\.|\+=|\|\||&&|[=!<>]=|\S)""",
    re.X,
)


def directives(text):
    """The lines of a file's header, without what marks them; of a line of several a line for each."""
    text = re.sub(r"\\\n\s*//!", " ", text)
    found = []
    for line in re.findall(r"^\s*//![ \t]*(.*?)\s*$", text, re.M):
        word, _, rest = line.partition(" ")
        parts = [rest] if word in ("doc", "op") else re.findall(r"""(?:"[^"]*"|'[^']*'|[^;"'])+""", rest)
        found += [f"{word} {part.strip()}".strip() for part in parts or [""]]
    return [line for line in found if line]


def tokens_of(lines):
    found = []
    for line in lines:
        word, _, rest = line.partition(" ")
        if word == "doc":
            found += [("NAME", word), ("TEXT", rest)]
        else:
            found += [(m.lastgroup, m[0]) for m in TOKEN.finditer(line)]
        found.append(("NL", "\n"))
    return found


class Grammar:
    """Of rules `name = ...`, in which a line that begins with blanks goes on with the one before."""

    def __init__(self, text):
        self.rules = {}
        for name, body in re.findall(r"^(\w+) +=(.*(?:\n .*)*)", text, re.M):
            words = RULE.findall(body)[::-1]
            self.rules[name] = self._choice(words)
            assert not words, (name, words)

    def derives(self, lines, start="header"):
        """Are the lines a sentence? One that is no header ends where its last line does."""
        tokens = tokens_of(lines)
        ends = self._ends(self.rules[start], 0, tokens, {})
        return len(tokens) in ends or (start != "header" and len(tokens) - 1 in ends)

    def without(self, name):
        """The same, but for what this rule says."""
        other = Grammar("")
        other.rules = {**self.rules, name: ("choice", ())}
        return other

    def _choice(self, words):
        parts = [self._sequence(words)]
        while words and words[-1] == "|":
            words.pop()
            parts.append(self._sequence(words))
        return ("choice", tuple(parts))

    def _sequence(self, words):
        parts = []
        while words and words[-1] not in "|)]}":
            word = words.pop()
            if word in "([{":
                parts.append((word, self._choice(words)))
                assert words.pop() == {"(": ")", "[": "]", "{": "}"}[word]
            else:
                parts.append(("word", word))
        return ("sequence", tuple(parts))

    def _ends(self, node, at, tokens, known):
        """All places where the node may end that begins at this one."""
        key = (id(node), at)
        if key not in known:
            known[key] = self._find_ends(node, at, tokens, known)
        return known[key]

    def _find_ends(self, node, at, tokens, known):
        kind, of = node
        if kind == "word":
            if of in self.rules:
                return self._ends(self.rules[of], at, tokens, known)
            return {at + 1} if at < len(tokens) and fits(of, *tokens[at]) else set()
        if kind == "choice":
            return set().union(*(self._ends(part, at, tokens, known) for part in of))
        if kind == "sequence":
            places = {at}
            for part in of:
                places = set().union(*(self._ends(part, place, tokens, known) for place in places))
            return places
        places = self._ends(of, at, tokens, known)
        if kind == "(":
            return places
        new, found = places, {at} | places
        while kind == "{" and new:
            new = set().union(*(self._ends(of, place, tokens, known) for place in new)) - found
            found |= new
        return found


def fits(word, kind, text):
    if word.startswith('"'):
        return kind != "STRING" and word == f'"{text}"'
    return kind == (word if word in ("INT", "FLOAT", "STRING", "TEXT", "NL") else "NAME")
