"""`mm2 completion`: shell completion of commands, options, files and the flows of a file."""

from __future__ import annotations

import sys
from typing import Any, Final

from argcomplete.shell_integration import shellcode

from mm2.cli.common.flow import EXIT_WELL
from mm2.cli.common.verbs import examples

_SHELLS: Final = ("bash", "zsh", "fish")


def add(verbs: Any) -> None:
    """Declare the command and its arguments."""
    parser = verbs.add_parser(
        "completion",
        help="completion for bash, zsh or fish",
        description="Prints a completion script for the command line of mm2: verbs, options, files, and the flows of the "
        "given file. Exit code: 0.",
        epilog=examples(
            ("now, in bash", 'eval "$(mm2 completion bash)"'),
            ("always, in bash", "mm2 completion bash > ~/.local/share/bash-completion/completions/mm2"),
            ("always, in zsh", "mm2 completion zsh > ~/.zfunc/_mm2    # ~/.zfunc in fpath before compinit"),
            ("always, in fish", "mm2 completion fish > ~/.config/fish/completions/mm2.fish"),
        ),
    )
    parser.add_argument("shell", choices=_SHELLS, help="the shell")
    parser.set_defaults(run=run)


def run(options: Any) -> int:
    """Run the command; returns the exit code."""
    sys.stdout.write(shellcode(["mm2"], shell=options.shell) + "\n")
    return EXIT_WELL
