"""Logins with Kerberos: the mechanism GSSAPI (RFC 4752), with the options of Java's Krb5LoginModule.

The package gssapi (extra `kerberos`) and MIT's library obtain tickets and renew those from a key table. This module is imported only
when a login needs it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final

import gssapi
from gssapi.exceptions import GSSError

from mm2.config.files.java_options import system_property

#: As Java; MIT's own variable wins.
if path := system_property("java.security.krb5.conf"):
    os.environ.setdefault("KRB5_CONFIG", path)

#: No security layer, and therefore no size of a buffer (RFC 4752 §3.1): Kafka uses TLS for that.
_NO_LAYER: Final = b"\x01\x00\x00\x00"


class KerberosError(Exception):
    """There is no ticket, or the broker's answer is invalid. The message contains no secret."""


class _Step(Enum):
    ESTABLISH = auto()
    LAYER = auto()
    OUTCOME = auto()
    DONE = auto()


class Kerberos:
    """One run of the mechanism GSSAPI. Raises KerberosError."""

    def __init__(self, options: Mapping[str, str], service: str, host: str) -> None:
        try:
            name = gssapi.Name(f"{service}@{host}", gssapi.NameType.hostbased_service)
            self._context: Any = gssapi.SecurityContext(
                name=name, creds=_credentials(options), mech=gssapi.MechType.kerberos, usage="initiate"
            )
            self._reply = bytes(self._context.step() or b"")
        except GSSError as error:
            raise _explained(error) from error
        self._step = _Step.ESTABLISH

    def auth_bytes(self) -> bytes:
        return self._reply

    def receive(self, answer: bytes) -> None:
        try:
            self._reply = self._next(answer)
        except GSSError as error:
            raise _explained(error) from error

    def is_done(self) -> bool:
        return self._step is _Step.DONE

    def is_authenticated(self) -> bool:
        return self._step is _Step.DONE

    def _next(self, answer: bytes) -> bytes:
        if self._step is _Step.ESTABLISH:
            reply = bytes(self._context.step(answer) or b"")
            if self._context.complete:
                self._step = _Step.LAYER
            return reply
        if self._step is _Step.LAYER:
            offer = self._context.unwrap(answer).message
            if len(offer) != 4 or not offer[0] & _NO_LAYER[0]:
                raise KerberosError("the broker demands a security layer, which Kafka does not use")
            self._step = _Step.OUTCOME
            return bytes(self._context.wrap(_NO_LAYER, False).message)
        self._step = _Step.DONE
        return b""


def _credentials(options: Mapping[str, str]) -> Any:
    """From the ticket cache or the key table, in this order as in Java; without options the default cache."""
    principal = options.get("principal")
    name = gssapi.Name(principal, gssapi.NameType.kerberos_principal) if principal else None
    keytab = options.get("keyTab", "").removeprefix("FILE:") if _is_true(options, "useKeyTab") else ""
    if not keytab or _is_true(options, "useTicketCache"):
        cache = options.get("ticketCache", "").removeprefix("FILE:")
        try:
            return gssapi.Credentials(name=name, usage="initiate", store={"ccache": f"FILE:{cache}"} if cache else None)
        except GSSError:
            if not keytab:
                raise
    if not Path(keytab).is_file():
        raise KerberosError(f"the key table {keytab} does not exist")
    # Shared by the connections of the process. MIT's library renews its ticket from the key table.
    own = hashlib.sha256(f"{principal} {keytab}".encode()).hexdigest()[:16]
    store = {"client_keytab": f"FILE:{keytab}", "ccache": f"MEMORY:mm2-{own}"}
    try:
        return gssapi.Credentials(name=name, usage="initiate", store=store)
    except GSSError as error:
        # MIT's library reports a missing cache where the principal has no key in the table.
        raise KerberosError(
            f"no ticket for {principal or 'its principal'} with the key table {keytab}: {_explained(error)}"
        ) from error


def _is_true(options: Mapping[str, str], name: str) -> bool:
    return options.get(name, "").lower() == "true"


def _explained(error: GSSError) -> KerberosError:
    """The text of the mechanism's own code, for example that the principal is unknown."""
    code, is_major = (error.min_code, False) if error.min_code else (error.maj_code, True)
    return KerberosError("; ".join(error.get_all_statuses(code, is_major)))
