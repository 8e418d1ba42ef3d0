r"""Java's regular expressions for Python's `re` (java.util.regex.Pattern, Java 17).

Filter lists are written for Java. Python's `re` has possessive quantifiers and atomic groups since 3.11, so only syntax
has to be translated: `\Q…\E`, `\p{…}` (POSIX and Unicode categories), nested and intersected character classes, named
groups, flags inside a pattern, `\z \Z \h \H \R \x{…} \e \a \0n \cX`. The ASCII meaning of `\w \d \s \b` is Java's
default too. The third-party `regex` module would still need most of these translations (`\Q`, POSIX classes, the scope
of flags), and would add a compiled dependency. Syntax that `re` cannot express (`\G`, `\X`, scripts and blocks,
`\N{…}`, flags d, u, x, U) raises PatternError, because a filter must not silently change its meaning.
"""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from typing import Final

_HORIZONTAL: Final = r" \t\xa0\u1680\u180e\u2000-\u200a\u202f\u205f\u3000"
_VERTICAL: Final = r"\n\x0b\f\r\x85\u2028\u2029"
# Python ends a line at \n only. `.` and anchors by whether the flag s or m is set.
_ANY: Final = {True: ".", False: r"[^\n\r\x85\u2028\u2029]"}
_LINE_END: Final = {
    True: r"(?=\r\n|(?<!\r)\n|[\r\x85\u2028\u2029]|\Z)",
    False: r"(?=(?:\r\n|(?<!\r)\n|[\r\x85\u2028\u2029])?\Z)",
}
_LINE_START: Final = {True: r"(?:\A|(?<=[\n\x85\u2028\u2029])(?!\Z)|(?<=\r)(?!\n|\Z))", False: r"\A"}
_PUNCTUATION: Final = r"!-/:-@\[-`{-~"

# Content of a bracketed class; POSIX classes are ASCII in Java.
_PROPERTIES: Final = {
    "Lower": "a-z",
    "Upper": "A-Z",
    "ASCII": r"\x00-\x7f",
    "Alpha": "a-zA-Z",
    "Digit": "0-9",
    "Alnum": "a-zA-Z0-9",
    "Punct": _PUNCTUATION,
    "Graph": r"!-~",
    "Print": r" -~",
    "Blank": r" \t",
    "Cntrl": r"\x00-\x1f\x7f",
    "XDigit": "0-9a-fA-F",
    "Space": r" \t\n\x0b\f\r",
}
# Predicates of java.lang.Character and binary Unicode properties that unicodedata's categories can express.
_CATEGORIES_BY_NAME: Final = {
    "javaLowerCase": ("Ll",),
    "javaUpperCase": ("Lu",),
    "javaLetter": ("L",),
    "javaDigit": ("Nd",),
    "javaLetterOrDigit": ("L", "Nd"),
    "IsAlphabetic": ("L", "Nl"),
    "IsLetter": ("L",),
    "IsDigit": ("Nd",),
    "IsLowercase": ("Ll",),
    "IsUppercase": ("Lu",),
    "IsPunctuation": ("P",),
}
_CATEGORY: Final = re.compile(
    r"(?:Is|general_category=|gc=)?(L[ultmo]?|M[nce]?|N[dlo]?|P[cdseifo]?|S[mcko]?|Z[slp]?|C[cfson]?)"
)
_FLAGS: Final = re.compile(r"\(\?([a-zA-Z]*)(-[a-zA-Z]*)?([:)])")
_NAMED_GROUP: Final = re.compile(r"\(\?<([a-zA-Z][a-zA-Z0-9]*)>")
_REPETITION: Final = re.compile(r"\{[0-9]+(?:,[0-9]*)?\}")
_PYTHON_FLAGS: Final = "ims"


class PatternError(ValueError):
    """The pattern is not a valid Java pattern, or Python cannot express it."""


@functools.lru_cache(maxsize=256)
def compile_java(pattern: str) -> re.Pattern[str]:
    """Compile a Java pattern; use `fullmatch` for Java's `matches`. Raises PatternError with position and reason."""
    try:
        return re.compile(translate(pattern), re.ASCII)
    except re.error as exc:
        raise PatternError(f"{exc.msg} in the pattern {pattern!r}") from exc


def translate(pattern: str) -> str:
    """The same pattern in the syntax of `re`."""
    return _Translator(pattern).alternatives(top=True)


@functools.lru_cache(maxsize=32)
def _category_class(prefixes: tuple[str, ...]) -> str:
    """Ranges of all code points whose general category starts with one of `prefixes`, as the content of a class."""
    ranges: list[list[int]] = []
    for point in range(sys.maxunicode + 1):
        if unicodedata.category(chr(point)).startswith(prefixes):
            if ranges and ranges[-1][1] == point - 1:
                ranges[-1][1] = point
            else:
                ranges.append([point, point])
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges)


class _Translator:
    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._flags: frozenset[str] = frozenset()  # those that are set at this place

    def _fail(self, reason: str) -> PatternError:
        return PatternError(f"{reason} at position {self._at} in the pattern {self._text!r}")

    def _peek(self, size: int = 1) -> str:
        return self._text[self._at : self._at + size]

    def alternatives(self, *, top: bool = False) -> str:
        """Translate up to the `)` that closes the current group, or to the end."""
        out: list[str] = []
        before = self._flags
        flags: list[str] = []  # flags set by `(?i)` in this group: each opens a `(?i:` that extends to its end
        while self._at < len(self._text):
            char = self._peek()
            if char == ")":
                if top:
                    raise self._fail("unmatched ')'")
                break
            if char == "|":
                # In Java a flag set in the middle also applies to the later alternatives of the group.
                out.append(")" * len(flags) + "|" + "".join(flags))
                self._at += 1
            elif found := _FLAGS.match(self._text, self._at):
                outside = self._flags
                flag = self._flag_group(found)
                if found[3] == ":":
                    out.append(flag + self._group_rest())
                    self._flags = outside
                elif flag != "(?:":
                    out.append(flag)
                    flags.append(flag)
            elif char == "(":
                out.append(self._group())
            elif char == "[":
                out.append(self._class())
            elif char == "\\":
                out.append(self._escape())
            elif char == "{":
                out.append(self._repetition())
            else:
                out.append(self._anchor_or_any(char))
                self._at += 1
        self._flags = before
        return "".join(out) + ")" * len(flags)

    def _anchor_or_any(self, char: str) -> str:
        meanings = {
            ".": _ANY["s" in self._flags],
            "$": _LINE_END["m" in self._flags],
            "^": _LINE_START["m" in self._flags],
        }
        return meanings.get(char, char)

    def _repetition(self) -> str:
        """A quantifier in braces. Invalid quantifiers, which Python treats as text, and {,n} are errors in Java."""
        found = _REPETITION.match(self._text, self._at)
        if found is None:
            raise self._fail("illegal repetition")
        self._at = found.end()
        return found[0]

    def _flag_group(self, found: re.Match[str]) -> str:
        on, off = found[1], (found[2] or "")[1:]
        for flag in on + off:
            if flag not in _PYTHON_FLAGS:
                raise self._fail(f"flag '{flag}' is not supported")
        self._at = found.end()
        self._flags = self._flags.union(on).difference(off)
        on = "".join(flag for flag in on if flag not in off)
        return f"(?{on}{'-' + off if off else ''}:"

    def _group(self) -> str:
        if named := _NAMED_GROUP.match(self._text, self._at):
            self._at = named.end()
            return f"(?P<{named[1]}>" + self._group_rest()
        for opening in ("(?<=", "(?<!", "(?:", "(?=", "(?!", "(?>"):
            if self._text.startswith(opening, self._at):
                self._at += len(opening)
                return opening + self._group_rest()
        if self._peek(2) == "(?":
            raise self._fail("unknown kind of group")
        self._at += 1
        return "(" + self._group_rest()

    def _group_rest(self) -> str:
        body = self.alternatives()
        if self._peek() != ")":
            raise self._fail("missing ')'")
        self._at += 1
        return body + ")"

    def _escape(self) -> str:
        """One escape outside of a class."""
        kind = self._peek(2)[1:]
        if kind == "Q":
            return re.escape(self._quotation())
        simple = {
            "z": r"\Z",
            "Z": _LINE_END[False],
            "R": rf"(?:\r\n|[{_VERTICAL}])",
            "A": r"\A",
            "b": r"\b",
            "B": r"\B",
        }
        if kind in simple:
            self._at += 2
            return simple[kind]
        if kind == "k":
            if not (found := re.compile(r"\\k<([a-zA-Z][a-zA-Z0-9]*)>").match(self._text, self._at)):
                raise self._fail(r"\k needs a group name as in \k<name>")
            self._at = found.end()
            return f"(?P={found[1]})"
        if kind and kind in "123456789":
            self._at += 2
            return f"(?:\\{kind})"
        negated, inner = self._class_escape()
        return f"[{'^' if negated else ''}{inner}]"

    def _quotation(self) -> str:
        end = self._text.find("\\E", self._at)
        text = self._text[self._at + 2 : end if end >= 0 else None]
        self._at = len(self._text) if end < 0 else end + 2
        return text

    def _class_escape(self) -> tuple[bool, str]:
        """One escape for a set of characters: (complement?, content for a class of `re`)."""
        kind = self._peek(2)[1:]
        start = self._at + 2
        if not kind:
            raise self._fail("nothing after '\\'")
        if kind in "dwsDWS":
            self._at = start
            return False, f"\\{kind}"
        if kind in "hHvV":
            self._at = start
            return kind.isupper(), _HORIZONTAL if kind in "hH" else _VERTICAL
        if kind in "pP":
            return self._property(negated=kind == "P")
        return False, _class_literal(self._escaped_char())

    def _property(self, *, negated: bool) -> tuple[bool, str]:
        found = re.compile(r"\\[pP](?:\{(\^?)([^}]+)\}|([A-Z]))").match(self._text, self._at)
        if not found:
            raise self._fail(r"malformed \p")
        name = found[2] or found[3]
        if name in _PROPERTIES:
            inner = _PROPERTIES[name]
        elif name in _CATEGORIES_BY_NAME:
            inner = _category_class(_CATEGORIES_BY_NAME[name])
        elif category := _CATEGORY.fullmatch(name):
            inner = _category_class((category[1],))
        else:
            raise self._fail(f"property '{name}' is not supported")
        self._at = found.end()
        return negated != bool(found[1]), inner

    def _escaped_char(self) -> str:
        """An escape for exactly one character; advances past it."""
        rest = self._text[self._at :]
        if found := re.match(r"\\x\{([0-9a-fA-F]+)\}|\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})", rest):
            point = int(found[1] or found[2] or found[3], 16)
            size = found.end()
        elif found := re.match(r"\\0([0-3]?[0-7]{1,2})", rest):
            point, size = int(found[1], 8), found.end()
        elif found := re.match(r"\\c(.)", rest, re.DOTALL):
            point, size = ord(found[1]) ^ 64, found.end()
        else:
            kind = rest[1:2]
            controls = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
            if not kind or (kind not in controls and kind.isascii() and kind.isalnum()):
                raise self._fail(f"'\\{kind}' is not supported" if kind else "nothing after '\\'")
            point, size = ord(controls.get(kind, kind)), 2
        if point > sys.maxunicode:
            raise self._fail("code point out of range")
        self._at += size
        return chr(point)

    def _class(self) -> str:
        """A bracketed class as a one-character pattern.

        Supports Java's unions `[a[bc]]` and intersections `[a-z&&[^b]]`.
        """
        self._at += 1
        negated = self._peek() == "^"
        self._at += negated
        operands: list[str] = []
        plain: list[str] = []
        nested: list[str] = []
        first = True
        while True:
            if self._at >= len(self._text):
                raise self._fail("unclosed character class")
            char = self._peek()
            if char == "]" and not first:
                self._at += 1
                break
            if self._peek(2) == "&&":
                while self._peek() == "&":
                    self._at += 1
                operands.append(_union(plain, nested))
                plain, nested = [], []
            elif char == "[":
                nested.append(self._class())
            elif self._peek(2) == "\\Q":
                plain.extend(_class_literal(quoted) for quoted in self._quotation())
            else:
                self._class_item(plain, nested)
            first = False
        if plain or nested or not operands:
            operands.append(_union(plain, nested))
        if len(operands) == 1 and not nested:
            return f"[^{''.join(plain)}]" if negated and plain else _complement(operands[0]) if negated else operands[0]
        both = "".join(f"(?={operand})" for operand in operands[:-1]) + operands[-1]
        return _complement(both) if negated else f"(?:{both})"

    def _class_item(self, plain: list[str], nested: list[str]) -> None:
        if self._peek() == "\\" and self._peek(2)[1:] in set("dwsDWShHvVpP"):
            negated, inner = self._class_escape()
            (nested if negated else plain).append(f"[^{inner}]" if negated else inner)
            return
        low = self._class_char()
        if self._peek() == "-" and self._peek(2)[1:] not in {"]", "[", ""} and self._peek(3)[1:] != "&&":
            self._at += 1
            high = self._class_char()
            if high < low:
                raise self._fail("illegal character range")
            plain.append(f"{_class_literal(low)}-{_class_literal(high)}")
        else:
            plain.append(_class_literal(low))

    def _class_char(self) -> str:
        if self._peek() == "\\":
            return self._escaped_char()
        self._at += 1
        return self._text[self._at - 1]


def _class_literal(char: str) -> str:
    return char if char.isalnum() or char == "_" else f"\\U{ord(char):08x}"


def _union(plain: list[str], nested: list[str]) -> str:
    parts = ([f"[{''.join(plain)}]"] if plain else []) + nested
    return parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"


def _complement(single: str) -> str:
    return rf"(?:(?!{single})[\s\S])"
