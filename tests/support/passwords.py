"""Users with passwords, as BasicAuthSecurityRestExtension reads them."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_PACKAGE: Final = "org.apache.kafka.connect.rest.basic.auth.extension"


def password_settings(folder: Path, users: Mapping[str, str]) -> dict[str, str]:
    """Settings of a process with these users and passwords; their files are in the folder."""
    (folder / "users").write_text("".join(f"{user}={password}\n" for user, password in users.items()))
    (folder / "login").write_text(
        f'KafkaConnect {{ {_PACKAGE}.PropertyFileLoginModule required file="{folder}/users"; }};'
    )
    return {
        "rest.extension.classes": f"{_PACKAGE}.BasicAuthSecurityRestExtension",
        "java.security.auth.login.config": str(folder / "login"),
    }


def basic(user: str, password: str) -> dict[str, str]:
    """The header of a login."""
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}
