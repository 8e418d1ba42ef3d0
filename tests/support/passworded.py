"""A broker with a listener on which the user mirror logs in with a password, and perhaps with rights."""

from __future__ import annotations

from typing import Final

PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
LISTENERS: Final = {"OPEN": "PLAINTEXT", "LOGIN": "SASL_PLAINTEXT"}
PASSWORDS: Final = {
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.login.plain.sasl.jaas.config": f'{PLAIN} required user_mirror="secret";',
}
#: All who log in have every right for which no ACL exists; on OPEN there are no limits.
RIGHTS: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "allow.everyone.if.no.acl.found": "true",
}


def login(password: str = "secret") -> dict[str, str]:
    """Settings of a client."""
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{PLAIN} required username="mirror" password="{password}";',
    }
