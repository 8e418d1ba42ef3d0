"""Builds a Dockerfile without Docker: each stage is a folder filled by debootstrap, each RUN a chroot into it.

Supports only the instructions of our own Dockerfile; all others are an error. Differences between Docker's base image and a
plain debootstrap of the same Debian do not matter here: both are the packages of priority "required" and apt.
"""

from __future__ import annotations

import fnmatch
import json
import os
import shlex
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_BASE: Final = "debian:bookworm-slim"
_SUITE: Final = "bookworm"
#: The environment of every container; without variables of this machine.
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class DockerfileFailed(Exception):
    """A step failed; the message has the step and the end of its output."""


@dataclass
class Image:
    """A stage that was built, and the start command of its container."""

    root: Path
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": _PATH})
    user: str = "0:0"
    folder: str = "/"
    entrypoint: tuple[str, ...] = ()
    health: tuple[str, ...] = ()

    def command(self, *words: str) -> list[str]:
        """The command that runs `words` as in a container: in the root, as the user, with the environment of the image.

        The process is replaced by the program, so signals reach it. Its mounts end with it. It shares our network.
        """
        home = {"HOME": self.folder if self.user != "0:0" else "/root"}
        variables = [f"{name}={value}" for name, value in (home | self.environment).items()]
        script = (
            'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && cd "$0" && '
            'exec chroot --userspec="$1" "$0" /bin/sh -c \'cd "$0" && exec "$@"\' "$2" env -i "${@:3}"'
        )
        inside = ("bash", "-c", script, str(self.root), self.user, self.folder, *variables, *words)
        return ["unshare", "--mount", "--propagation", "private", *inside]

    def run(self, *words: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            self.command(*words),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )


def instructions(text: str) -> list[tuple[str, str]]:
    """(instruction, arguments) of a Dockerfile, without comments and with continued lines joined."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(word.upper(), rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines())]


class Builder:
    """Build the Dockerfile of `context`; stages are in `folder`, which must allow device files.

    `ambient`: variables for RUN that Docker would not set, such as the registries of this machine and their certificates.
    """

    def __init__(self, context: Path, folder: Path, base: Path, ambient: Mapping[str, str]) -> None:
        self._context, self._folder, self._base = context, folder, base
        self._ambient = dict(ambient)
        self._ignored = [
            line.strip() for line in (context / ".dockerignore").read_text().splitlines() if line[:1] not in {"", "#"}
        ]
        self._stages: dict[str, Image] = {}

    def build(self, text: str) -> Image:
        """The last stage. Raises DockerfileFailed."""
        image: Image | None = None
        for instruction, rest in instructions(text):
            if instruction == "FROM":
                image = self._begin(rest)
            elif image is None:
                raise DockerfileFailed(f"{instruction} before FROM.")
            else:
                self._step(image, instruction, rest)
        if image is None:
            raise DockerfileFailed("There is no FROM.")
        return image

    def _begin(self, rest: str) -> Image:
        base, _, name = rest.partition(" AS ")
        if base.partition("@")[0] != _BASE:
            raise DockerfileFailed(f"FROM {base}: only {_BASE} can be made here.")
        root = self._folder / (name or "final")
        subprocess.run(["cp", "-a", str(self._base), str(root)], check=True)
        image = Image(root)
        self._stages[name] = image
        return image

    def _step(self, image: Image, instruction: str, rest: str) -> None:
        match instruction:
            case "WORKDIR":
                image.folder = rest
                (image.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
            case "COPY":
                self._copy(image, shlex.split(rest))
            case "RUN":
                self._run(image, rest)
            case "ENV":
                image.environment.update(pair.split("=", 1) for pair in shlex.split(rest))  # type: ignore[misc]
            case "USER":
                image.user = rest
            case "ENTRYPOINT":
                image.entrypoint = tuple(json.loads(rest))
            case "HEALTHCHECK":
                image.health = tuple(json.loads(rest.partition(" CMD ")[2]))
            case "EXPOSE":
                pass
            case _:
                raise DockerfileFailed(f"{instruction} is not known here.")

    def _copy(self, image: Image, words: Sequence[str]) -> None:
        origin = self._context
        if words[0].startswith("--from="):
            origin, words = self._stages[words[0].removeprefix("--from=")].root, words[1:]
        *sources, target = words
        destination = image.root / os.path.normpath(f"{image.folder}/{target}" if target[0] != "/" else target).lstrip(
            "/"
        )
        for source in sources:
            found = origin / source.lstrip("/")
            if origin == self._context and self._is_ignored(source):
                raise DockerfileFailed(f"COPY {source}: .dockerignore leaves it out.")
            into = destination if found.is_dir() else destination / found.name if target.endswith("/") else destination
            into.parent.mkdir(parents=True, exist_ok=True)
            if found.is_dir():
                shutil.copytree(
                    found, into, symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*self._always())
                )
            else:
                shutil.copy2(found, into)

    def _always(self) -> list[str]:
        return [pattern.removeprefix("**/") for pattern in self._ignored if pattern.startswith("**/")]

    def _is_ignored(self, path: str) -> bool:
        """Whether the last pattern that matches it or a parent folder excludes it, as in Docker."""
        above = [path, *map(str, Path(path).parents)][:-1]
        ignored = False
        for pattern in self._ignored:
            if any(fnmatch.fnmatchcase(part, pattern.removeprefix("!")) for part in above):
                ignored = not pattern.startswith("!")
        return ignored

    def _run(self, image: Image, line: str) -> None:
        as_root = Image(image.root, image.environment | self._ambient, "0:0", image.folder)
        done = as_root.run("sh", "-c", line, timeout_s=1800)
        if done.returncode:
            reported = "\n".join((done.stdout + done.stderr).splitlines()[-25:])
            raise DockerfileFailed(f"RUN {line} ended with {done.returncode}:\n{reported}")


def debootstrap(folder: Path) -> Path:
    """Create the root of a minimal Debian like Docker's base image. Raises DockerfileFailed."""
    root = folder / "base"
    done = subprocess.run(
        ["debootstrap", "--variant=minbase", _SUITE, str(root)],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    if done.returncode:
        raise DockerfileFailed(f"debootstrap: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    # As in Docker's base images: files lost in a power failure are built again.
    (root / "etc" / "dpkg" / "dpkg.cfg.d" / "docker-apt-speedup").write_text("force-unsafe-io\n")
    # As Docker does for each container, so that the own host name resolves.
    (root / "etc" / "hosts").write_text(f"127.0.0.1 localhost {socket.gethostname()}\n")
    return root
