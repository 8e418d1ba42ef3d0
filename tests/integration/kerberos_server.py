"""A Kerberos realm on loopback: MIT's key distribution center (Debian's krb5-kdc and krb5-admin-server)."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from mm2.sandbox.ports import free_ports
from tests.support.waiting import wait_until

REALM = "MM2.TEST"
_SBIN = "/usr/sbin"


class KerberosRealm:
    """Runs as a context manager. `config` is the krb5.conf of its clients."""

    def __init__(self, folder: Path, *, ticket_life: str = "1h") -> None:
        self.folder = folder
        self.config = folder / "krb5.conf"
        self._ticket_life = ticket_life
        (self._port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        return {"KRB5_CONFIG": str(self.config), "KRB5_KDC_PROFILE": str(self.folder / "kdc.conf")}

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.config.write_text(
            f"[libdefaults]\n default_realm = {REALM}\n dns_canonicalize_hostname = false\n rdns = false\n"
            f" dns_lookup_kdc = false\n udp_preference_limit = 1\n"
            f"[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{self._port}\n }}\n"
        )
        (self.folder / "kdc.conf").write_text(
            f"[kdcdefaults]\n kdc_listen = 127.0.0.1:{self._port}\n kdc_tcp_listen = 127.0.0.1:{self._port}\n"
            f"[realms]\n {REALM} = {{\n  database_name = {self.folder}/principals\n"
            f"  key_stash_file = {self.folder}/stash\n  max_life = {self._ticket_life}\n }}\n"
            f"[logging]\n kdc = FILE:{self.folder}/kdc.log\n"
        )
        self._run("kdb5_util", "create", "-s", "-P", "master", "-r", REALM)
        with (self.folder / "kdc.out").open("wb") as output:
            self._process = subprocess.Popen(
                [_program("krb5kdc"), "-n", "-r", REALM],
                env={**os.environ, **self.environment},
                stdout=output,
                stderr=output,
            )
        wait_until(self._answers)
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _exc: BaseException | None, _tb: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def add(self, principal: str, *, max_life: str = "") -> Path:
        """Create a principal; returns the path of a key table with its key."""
        more = ["-maxlife", max_life] if max_life else []
        self._run("kadmin.local", "-r", REALM, "addprinc", *more, "-randkey", principal)
        keytab = self.folder / f"{principal.replace('/', '_')}.keytab"
        self._run("kadmin.local", "-r", REALM, "ktadd", "-k", str(keytab), principal)
        return keytab

    def change_key(self, principal: str) -> None:
        """Give it another key, so that its key table is wrong."""
        self._run("kadmin.local", "-r", REALM, "cpw", "-randkey", principal)

    def kinit(self, principal: str, keytab: Path, cache: Path) -> None:
        self._run("kinit", "-k", "-t", str(keytab), "-c", f"FILE:{cache}", principal)

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [_program(program), *arguments],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{program} {arguments}: {done.stdout} {done.stderr}"


def _program(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ['PATH']}:{_SBIN}")
    assert found, f"{name} is missing: tests/tools/debian-packages krb5-kdc krb5-admin-server krb5-user"
    return found
