r"""Java's regular expressions for PyPI's `regex` (java.util.regex.Pattern, Java 17).

Filter lists are written for Java. `regex` has Java's look-behind of different lengths, possessive quantifiers, scripts and
blocks. It also has a time limit for a match, and does not hold the interpreter lock during one, which `re` does: a pattern that
backtracks for hours would stop the whole process. What remains is syntax: `\Q…\E`, POSIX classes, nested and intersected character
classes, quantifiers of nothing, the scope of flags, line terminators. The ASCII meaning of `\w \d \s \b` is Java's default too.
Syntax that cannot be expressed (flags u and U, `\b{g}`) raises PatternError, because a filter must not silently change its meaning.
"""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from typing import Final

import regex

MATCH_LIMIT_S: Final = 2.0
"""Time limit of one match of a user's pattern."""
_PROBE_LIMIT_S: Final = 1.0
_PROBES: Final = ("a" * 249, "0" * 249, "a.b-c_d" * 35, f"{'a' * 248}!", f"{'a.' * 124}!")
"""Names of the greatest length: a pattern that backtracks exponentially exceeds the limit with one of them."""

_BLANKS: Final = " \t\n\x0b\f\r"
_LINE_ENDS: Final = "\n\r\x85\u2028\u2029"
_HORIZONTAL: Final = r" \t\xa0\u1680\u180e\u2000-\u200a\u202f\u205f\u3000"
_VERTICAL: Final = r"\n\x0b\f\r\x85\u2028\u2029"
# Python ends a line at \n only. `.` and anchors by whether the flag s or m is set.
_ANY: Final = {True: r"[\s\S]", False: r"[^\n\r\x85\u2028\u2029]"}
_LINE_END: Final = {
    True: r"(?=\r\n|(?<!\r)\n|[\r\x85\u2028\u2029]|\Z)",
    False: r"(?=(?:\r\n|(?<!\r)\n|[\r\x85\u2028\u2029])?\Z)",
}
_LINE_START: Final = {True: r"(?:\A(?!\Z)|(?<=[\n\x85\u2028\u2029])(?!\Z)|(?<=\r)(?!\n|\Z))", False: r"\A"}
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
_SCRIPT_OR_BLOCK: Final = re.compile(r"(?:(In)|Is|(?:(blk|block)|sc|script)=)(\w+)")
_FLAGS: Final = re.compile(r"\(\?([a-zA-Z]*)(-[a-zA-Z]*)?([:)])")
_NAMED_GROUP: Final = re.compile(r"\(\?<([a-zA-Z][a-zA-Z0-9]*)>")
_REPETITION: Final = re.compile(r"\{([0-9]+)(?:(,)([0-9]*))?\}")
_UNBOUNDED: Final = 2**31 - 1
_KNOWN_FLAGS: Final = "imsdx"


class PatternError(ValueError):
    """The pattern is not a valid Java pattern, or Python cannot express it."""


class PatternTooSlow(PatternError):
    """A match takes longer than the limit."""


class JavaPattern:
    """A compiled pattern. Each match has a time limit, and other threads run meanwhile. Raises PatternTooSlow."""

    def __init__(self, pattern: str, compiled: regex.Pattern[str]) -> None:
        self.pattern: Final = pattern
        self._compiled = compiled

    @property
    def groups(self) -> int:
        """Number of groups."""
        return int(self._compiled.groups)

    @property
    def groupindex(self) -> dict[str, int]:
        """Numbers of named groups."""
        return dict(self._compiled.groupindex)

    def fullmatch(self, text: str, limit_s: float = MATCH_LIMIT_S) -> regex.Match[str] | None:
        """Java's ``matches``."""
        try:
            return self._compiled.fullmatch(text, concurrent=True, timeout=limit_s)
        except TimeoutError:
            raise self._too_slow(text, limit_s) from None

    def search(self, text: str) -> regex.Match[str] | None:
        """Java's ``find``."""
        try:
            return self._compiled.search(text, concurrent=True, timeout=MATCH_LIMIT_S)
        except TimeoutError:
            raise self._too_slow(text, MATCH_LIMIT_S) from None

    def _too_slow(self, text: str, limit_s: float) -> PatternTooSlow:
        return PatternTooSlow(f"the pattern {self.pattern!r} takes more than {limit_s:g} s to match {text[:40]!r}")


@functools.lru_cache(maxsize=256)
def compile_java(pattern: str) -> JavaPattern:
    """Compile a Java pattern. Raises PatternError with position and reason, PatternTooSlow if it backtracks without end."""
    try:
        compiled = regex.compile(translate(pattern), regex.ASCII | regex.VERSION0)
    except regex.error as exc:
        raise PatternError(f"{exc.msg} in the pattern {pattern!r}") from exc
    found = JavaPattern(pattern, compiled)
    for name in _PROBES:
        found.fullmatch(name, _PROBE_LIMIT_S)
    return found


def translate(pattern: str) -> str:
    """The same pattern in the syntax of `regex`."""
    return _Translator(_without_quotations(pattern)).alternatives(top=True)


def _without_quotations(pattern: str) -> str:
    r"""`\\Q…\\E` as escaped characters (Java's RemoveQEQuoting), so that a quantifier applies to the last one."""
    out, at = [], 0
    for found in re.finditer(r"\\Q(.*?)(?:\\E|\Z)|\\.", pattern, re.DOTALL):
        if found[1] is not None:
            quoted = (f"\\{char}" if char.isascii() and not char.isalnum() else char for char in found[1])
            out += [pattern[at : found.start()], *quoted]
            at = found.end()
    return "".join([*out, pattern[at:]])


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


@functools.lru_cache(maxsize=32)
def _property_class(kind: str, name: str) -> str:
    """Ranges of all code points of a script or block, as the content of a class; empty if there is no such property."""
    try:
        found = regex.finditer(rf"\p{{{kind}={name}}}+", _all_characters())
        return "".join(f"\\U{ord(one[0][0]):08x}-\\U{ord(one[0][-1]):08x}" for one in found)
    except regex.error:
        return ""


@functools.lru_cache(maxsize=1)
def _all_characters() -> str:
    return "".join(map(chr, range(sys.maxunicode + 1)))


class _Translator:
    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._flags: frozenset[str] = frozenset()  # those that are set at this place
        self._groups = 0  # opened so far
        self._names: set[str] = set()
        self._unbounded = 0  # parts of no obvious maximum length

    def _fail(self, reason: str) -> PatternError:
        return PatternError(f"{reason} at position {self._at} in the pattern {self._text!r}")

    def _peek(self, size: int = 1) -> str:
        return self._text[self._at : self._at + size]

    def alternatives(self, *, top: bool = False) -> str:
        """Translate up to the `)` that closes the current group, or to the end."""
        out: list[str] = []
        before = self._flags
        flags: list[str] = []  # flags set by `(?i)` in this group: each opens a `(?i:` that extends to its end
        is_atom = False  # whether a quantifier would apply to something
        while self._at < len(self._text):
            char = self._peek()
            if char == ")":
                if top:
                    raise self._fail("unmatched ')'")
                break
            if "x" in self._flags and (char in _BLANKS or char == "#"):
                self._skip_comment()
                continue
            if char in "*+?{":
                quantifier = self._quantifier()
                if char != "{" and not is_atom:
                    raise self._fail(f"dangling meta character '{char}'")
                # Java applies {n} behind a quantifier, or at the beginning, to nothing.
                if char == "{" and is_atom and out[-1].startswith("(") and "|" in out[-1]:
                    self._unbounded += 1  # Java does not compute the length of a repeated group of alternatives
                if is_atom and quantifier.endswith("+") and quantifier != "+":
                    out[-1] = f"(?>{out[-1]}{quantifier[:-1]})"  # the library ignores the sign of {1}+
                elif is_atom:
                    out.append(quantifier)
                is_atom = False
                continue
            is_atom = char != "|"
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
                else:
                    is_atom = False
                    if flag != "(?:":
                        out.append(flag)
                        flags.append(flag)
            elif char == "(":
                out.append(self._group())
            elif char == "[":
                out.append(self._class())
            elif char == "\\":
                out.append(self._escape())
            else:
                out.append(self._anchor_or_any(char))
                self._at += 1
        self._flags = before
        return "".join(out) + ")" * len(flags)

    def _anchor_or_any(self, char: str) -> str:
        unix = "d" in self._flags  # lines end at \n only
        match char:
            case ".":
                return _ANY[True] if "s" in self._flags else r"[^\n]" if unix else _ANY[False]
            case "$":
                if unix:
                    return r"(?=\n|\Z)" if "m" in self._flags else r"(?=\n?\Z)"
                return _LINE_END["m" in self._flags]
            case "^":
                if unix and "m" in self._flags:
                    return r"(?:\A(?!\Z)|(?<=\n)(?!\Z))"
                return _LINE_START["m" in self._flags]
        return regex.escape(char) if char in "&~-#]}" or char.isspace() else char

    def _skip_comment(self) -> None:
        """Skip blanks, or a comment up to the end of its line (flag x)."""
        if self._peek() == "#":
            while self._at < len(self._text) and self._peek() not in _LINE_ENDS:
                self._at += 1
        else:
            self._at += 1

    def _quantifier(self) -> str:
        """`*`, `+`, `?` or one in braces, and the sign that makes it lazy or possessive. {,n} is an error in Java."""
        if self._peek() != "{":
            text = self._peek()
            self._unbounded += text != "?"
            self._at += 1
        else:
            found = _REPETITION.match(self._text, self._at)
            if found is None:
                raise self._fail("illegal repetition")
            least, most = int(found[1]), int(found[3]) if found[3] else 0
            if max(least, most) >= _UNBOUNDED or (found[3] and most < least):
                raise self._fail("illegal repetition range")
            self._unbounded += bool(found[2]) and not found[3]
            self._at = found.end()
            text = found[0]
        if "x" in self._flags:
            while self._peek() and (self._peek() in _BLANKS or self._peek() == "#"):
                self._skip_comment()
        if self._peek() and self._peek() in "?+":
            text += self._peek()
            self._at += 1
        return text

    def _flag_group(self, found: re.Match[str]) -> str:
        on, off = found[1], (found[2] or "")[1:]
        for flag in on + off:
            if flag not in _KNOWN_FLAGS:
                raise self._fail(f"flag '{flag}' is not supported")
        self._at = found.end()
        self._flags = self._flags.union(on).difference(off)
        # Only i is left to the library: all else that depends on a flag has been translated.
        return "(?i:" if "i" in on and "i" not in off else "(?-i:" if "i" in off else "(?:"

    def _group(self) -> str:
        if named := _NAMED_GROUP.match(self._text, self._at):
            if named[1] in self._names:
                raise self._fail(f"there is a group '{named[1]}' already")
            self._names.add(named[1])
            self._at = named.end()
            self._groups += 1
            return f"(?P<{named[1]}>" + self._group_rest()
        for opening in ("(?<=", "(?<!", "(?:", "(?=", "(?!", "(?>"):
            if self._text.startswith(opening, self._at):
                self._at += len(opening)
                before = self._unbounded
                body = self._group_rest()
                if opening in {"(?<=", "(?<!"} and self._unbounded > before:
                    raise self._fail("look-behind group has no obvious maximum length")
                if opening in {"(?=", "(?!"}:
                    self._unbounded = before
                return opening + body
        if self._peek(2) == "(?":
            raise self._fail("unknown kind of group")
        self._at += 1
        self._groups += 1
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
        simple = {
            "z": r"\Z",
            "Z": _LINE_END[False],
            "R": rf"(?:\r\n|[{_VERTICAL}])",
            "A": r"\A",
            "G": r"\A",  # where the previous match ended, and there is none
            "b": r"\b",
            "B": r"\B",
        }
        if kind in simple:
            self._at += 2
            return simple[kind]
        if kind == "X":
            self._at += 2
            self._unbounded += 1
            return r"\X"
        if kind == "k":
            if not (found := re.compile(r"\\k<([a-zA-Z][a-zA-Z0-9]*)>").match(self._text, self._at)):
                raise self._fail(r"\k needs a group name as in \k<name>")
            if found[1] not in self._names:
                raise self._fail(f"there is no group '{found[1]}'")
            self._at = found.end()
            self._unbounded += 1
            return f"(?P={found[1]})"
        if kind and kind in "123456789":
            return self._back_reference()
        negated, inner = self._class_escape()
        return _complement(f"[{inner}]") if negated else f"[{inner}]"

    def _back_reference(self) -> str:
        """Java takes as many digits as there are groups before it. A group that does not exist never matches."""
        number = int(self._peek(2)[1])
        self._at += 2
        while self._peek().isdigit() and self._peek().isascii() and number * 10 + int(self._peek()) <= self._groups:
            number = number * 10 + int(self._peek())
            self._at += 1
        self._unbounded += 1
        return f"(?:\\g<{number}>)" if number <= self._groups else "(?!)"

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
        elif script := _SCRIPT_OR_BLOCK.fullmatch(name):
            inner = _property_class("Block" if script[1] or script[2] else "Script", script[3])
        else:
            inner = ""
        if not inner:
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

    def _class(self, *, is_bracketed: bool = True) -> str:
        """A class as a one-character pattern: the algorithm of Java's Pattern.clazz, with its unions and intersections.

        Without a bracket: the right side of `&&` up to the `]` that closes the class around it.
        """
        negated = False
        if is_bracketed:
            self._at += 1
            negated = self._peek() == "^"
            self._at += negated
        whole: str | None = None
        last: str | None = None
        plain: list[str] = []
        only_characters = True  # whether `plain` has no ranges and escapes
        while True:
            self._skip_in_class()
            char = self._peek()
            if char == "[":
                last = self._class()
                whole = _union(whole, last)
            elif self._peek(2) == "&&":
                self._at += 2
                right = self._right_side()
                if plain:
                    own = f"[{''.join(plain)}]"
                    if whole is None and only_characters:
                        last = own
                    whole, plain, only_characters = _union(whole, own), [], True
                last = last if right is None else right
                if last is None:
                    raise self._fail("bad class syntax")
                whole = last if whole is None else f"(?:(?={whole}){last})"
            elif char == "]" and (whole is not None or plain):
                self._at += is_bracketed
                whole = _union(whole, f"[{''.join(plain)}]" if plain else None)
                return _complement(whole) if negated else whole
            else:
                last = self._class_item(plain)
                if last is not None and not last.startswith("["):
                    whole = _union(whole, last)
                only_characters = only_characters and last is None

    def _right_side(self) -> str | None:
        """What stands between `&&` and the next `&&` or the end of the class; None for nothing."""
        right: str | None = None
        while True:
            self._skip_in_class()
            if self._peek() in {"]", "&"}:
                return right
            right = _union(right, self._class(is_bracketed=self._peek() == "["))

    def _skip_in_class(self) -> None:
        while "x" in self._flags and self._peek() and (self._peek() in _BLANKS or self._peek() == "#"):
            self._skip_comment()
        if self._at >= len(self._text):
            raise self._fail("unclosed character class")

    def _class_item(self, plain: list[str]) -> str | None:
        """Read a character, range or escape, and add it to `plain` unless it is a complement. None for a character."""
        # As the start of a range, \v is the vertical tab.
        is_set = self._peek(2)[1:] in set("dwsDWShHvVpP") and self._peek(3) != "\\v-"
        if self._peek() == "\\" and is_set:
            negated, inner = self._class_escape()
            if negated:
                return _complement(f"[{inner}]")
        else:
            low = "\v" if self._peek(2) == "\\v" else ""
            self._at += 2 * len(low)
            low = low or self._class_char()
            inner = _class_literal(low)
            if self._peek() != "-" or self._peek(2)[1:] in {"]", "[", ""}:
                plain.append(inner)
                return None
            self._at += 1
            high = self._class_char()
            if high < low:
                raise self._fail("illegal character range")
            inner += f"-{_class_literal(high)}"
        plain.append(inner)
        return f"[{inner}]"

    def _class_char(self) -> str:
        if self._peek() == "\\":
            return self._escaped_char()
        self._at += 1
        return self._text[self._at - 1]


def _class_literal(char: str) -> str:
    return char if char.isalnum() or char == "_" else f"\\U{ord(char):08x}"


def _union(one: str | None, other: str | None) -> str:
    return "|".join(filter(None, (one, other))) if one is None or other is None else f"(?:{one}|{other})"


def _complement(single: str) -> str:
    # Not [^…]: the library joins alternatives of one character to one set, and is wrong about complements: (?:[^a]|[^b]) matches neither.
    return rf"(?:(?!{single})[\s\S])"
