"""Compares generated patterns with Java's: `python -m tests.tools.regex_check [NUMBER [SEED]]`, by default 100,000.

Prints each pattern that Java and this project judge differently, and each that only Java accepts. Exit code 1 for one of the first
kind: a pattern may be refused, with its reason, and never means something else.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mm2.config.definitions.java_regex import PatternError, compile_java
from tests.integration.java_source import run_source

_ORACLE: Final = Path(__file__).parents[1] / "integration" / "java" / "RegexOracle.java"
NAMES: Final = ("", "a", "b", "ab", "aab", "abab", "a.b", "A-b", "b1", "a_1", "aaaa", "abcab", "ab.1-", " a", "B")
"""Most names that are matched are names of topics: ASCII, without line ends."""
_REFUSED: Final = "ERR"
_ATOMS: Final = ("a", "b", "c", "A", "1", ".", "-", "_", " ", "ab", "}", "]", ",", "&&", "#", "~", ":")
_ESCAPES: Final = (
    *(
        r"\d",
        r"\D",
        r"\w",
        r"\W",
        r"\s",
        r"\S",
        r"\h",
        r"\H",
        r"\v",
        r"\V",
        r"\.",
        r"\-",
        r"\\",
        r"\*",
        r"\x61",
        r"\x{62}",
    ),
    *(
        r"\u0061",
        r"\0141",
        r"\t",
        r"\cA",
        r"\p{L}",
        r"\pL",
        r"\PL",
        r"\p{Lower}",
        r"\p{Alpha}",
        r"\P{Digit}",
        r"\p{IsLatin}",
    ),
    *(
        r"\p{InBasicLatin}",
        r"\p{javaLetter}",
        r"\p{IsAlphabetic}",
        r"\p{Punct}",
        r"\Qa.b\E",
        r"\Q\E",
        r"\_",
        r"\q",
        r"\y",
    ),
)
_OUTSIDE: Final = (r"\b", r"\B", r"\A", r"\z", r"\Z", r"\G", r"\R", r"\X", "^", "$", r"\1", r"\2", r"\11", r"\k<n>")
_QUANTIFIERS: Final = ("*", "+", "?", "{1}", "{0,2}", "{2,}", "{,2}", "{2,1}", "{a}", "{")
_OPENINGS: Final = (
    "(",
    "(?:",
    "(?=",
    "(?!",
    "(?<=",
    "(?<!",
    "(?>",
    "(?<n>",
    "(?i:",
    "(?s-i:",
    "(?-i:",
    "(?x:",
    "(?q:",
    "(?P<n>",
)


class Generator:
    """Patterns from Java's grammar, and some that are not."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def __iter__(self) -> Iterator[str]:
        while True:
            yield self._alternatives(3)

    def _alternatives(self, depth: int) -> str:
        return "|".join(self._sequence(depth) for _ in range(self._random.choice((1, 1, 1, 2, 3))))

    def _sequence(self, depth: int) -> str:
        parts = [self._quantified(depth) for _ in range(self._random.choice((0, 1, 1, 2, 3, 4)))]
        if self._random.random() < 0.05:
            parts.insert(0, self._random.choice(("(?i)", "(?s)", "(?m)", "(?x)", "(?-i)", "(?d)", "(?im-s)")))
        return "".join(parts)

    def _quantified(self, depth: int) -> str:
        text = self._atom(depth)
        if self._random.random() < 0.3:
            text += self._random.choice(_QUANTIFIERS)
            text += self._random.choice(("", "", "", "?", "+", "*", "{2}"))
        return text

    def _atom(self, depth: int) -> str:
        sort = self._random.random()
        if sort < 0.4 or depth == 0:
            return self._random.choice(_ATOMS)
        if sort < 0.55:
            return self._random.choice(_ESCAPES)
        if sort < 0.63:
            return self._random.choice(_OUTSIDE)
        if sort < 0.8:
            return self._class(depth - 1)
        return self._random.choice(_OPENINGS) + self._alternatives(depth - 1) + self._random.choice((")",) * 20 + ("",))

    def _class(self, depth: int) -> str:
        items = [self._class_item(depth) for _ in range(self._random.choice((0, 1, 1, 2, 3)))]
        return "[" + self._random.choice(("", "", "^")) + "".join(items) + self._random.choice(("]",) * 20 + ("",))

    def _class_item(self, depth: int) -> str:
        sort = self._random.random()
        if sort < 0.35:
            return self._random.choice((*_ATOMS, "^", "[", "*", "$", "(", "|"))
        if sort < 0.6:
            return self._random.choice(("a-c", "A-Z", "0-9", "c-a", "-a", "a-", r"\.-a", "a-[b]", r"a-\d"))
        if sort < 0.8:
            return self._random.choice(_ESCAPES)
        if sort < 0.9 and depth > 0:
            return self._class(depth - 1)
        return "&&" + (self._class(depth - 1) if depth > 0 else self._random.choice(_ATOMS))


def own(pattern: str) -> str:
    """This project's answers, as the oracle's."""
    try:
        compiled = compile_java(pattern)
        return "".join("1" if compiled.fullmatch(name) else "0" for name in NAMES)
    except PatternError:
        return _REFUSED


@dataclass(frozen=True)
class Outcome:
    """``different``: (pattern, Java's answers, this project's). ``refused``: patterns that only Java accepts."""

    different: list[tuple[str, str, str]]
    refused: list[str]


def compare(number: int, seed: int) -> Outcome:
    """Compare so many patterns."""
    generated: Sequence[str] = list(itertools.islice(Generator(seed), number))
    text = "".join("\t".join((pattern, *NAMES)) + "\n" for pattern in generated)
    java = run_source(_ORACLE, text=text).splitlines()
    outcome = Outcome([], [])
    for pattern, expected in zip(generated, java, strict=True):
        found = own(pattern)
        if found == _REFUSED != expected:
            outcome.refused.append(pattern)
        elif found != expected:
            outcome.different.append((pattern, expected, found))
    return outcome


def main(arguments: Sequence[str]) -> int:
    number, seed = int(arguments[0]) if arguments else 100_000, int(arguments[1]) if len(arguments) > 1 else 1
    outcome = compare(number, seed)
    sys.stdout.writelines(f"different\t{pattern}\t{java}\t{found}\n" for pattern, java, found in outcome.different)
    sys.stdout.writelines(f"refused\t{pattern}\n" for pattern in outcome.refused)
    sys.stdout.write(f"{number} patterns: {len(outcome.different)} different, {len(outcome.refused)} refused\n")
    return 1 if outcome.different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
