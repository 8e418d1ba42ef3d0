"""`mm2 hash-password`: a line for the credentials file of BasicAuthSecurityRestExtension."""

from __future__ import annotations

import getpass
import sys
from typing import Any, Final

import javaproperties

from mm2.cli.common.flow import EXIT_WELL, CommandError
from mm2.cli.common.verbs import examples
from mm2.connect.rest.access.password_hashes import PasswordHash

_CONTROL: Final = frozenset(map(chr, [*range(0x20), 0x7F]))


def add(verbs: Any) -> None:
    """Declare the command and its arguments."""
    parser = verbs.add_parser(
        "hash-password",
        help="a line with a hashed password for the REST interface",
        description="Reads a password from the terminal, or one line from standard input, and prints user and hash "
        "(scrypt) for the credentials file of BasicAuthSecurityRestExtension. Exit codes: 0 printed, 2 failed.",
        epilog=examples(
            ("add a user; the password is entered twice", "mm2 hash-password ada >> credentials.properties"),
            ("in a script", "mm2 hash-password ada < password.txt"),
        ),
    )
    parser.add_argument("user", metavar="USER", help="name of the user")
    parser.set_defaults(run=run)


def run(options: Any) -> int:
    """Run the command; returns the exit code. Raises CommandError."""
    user = options.user
    if not user or ":" in user or _CONTROL.intersection(user):
        raise CommandError("The user must not be empty, and must not contain colons or control characters (RFC 7617).")
    sys.stdout.write(f"{javaproperties.escape(user)}={PasswordHash.of(_password())}\n")
    return EXIT_WELL


def _password() -> str:
    """Never taken from the command line, which other users of the machine can read."""
    if sys.stdin.isatty():
        password = getpass.getpass("Password: ")
        if password != getpass.getpass("The same again: "):
            raise CommandError("The two passwords differ.")
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise CommandError("The password must not be empty.")
    return password
