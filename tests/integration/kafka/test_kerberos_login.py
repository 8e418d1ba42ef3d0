"""Logins with GSSAPI at a real broker in the realm of a real key distribution center (MIT Kerberos)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mm2.kafka.client.connection import Connection
from mm2.kafka.errors import AuthenticationFailure
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.sandbox.kafka import LocalKafka
from tests.integration.kerberos_server import REALM, KerberosRealm
from tests.integration.logins import usable, used_for
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(int(240 * PATIENCE))]

MODULE = "com.sun.security.auth.module.Krb5LoginModule required"
#: A busy client has 15 % of the session to authenticate again; tickets expire meanwhile.
SESSION_MS = 10_000
TICKET_S = 5


@dataclass(frozen=True)
class Site:
    broker: LocalKafka
    realm: KerberosRealm
    folder: Path
    keytab: Path

    def open(self, options: str, **more: str) -> Connection:
        props = {
            "bootstrap.servers": self.broker.address("KERBEROS"),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "GSSAPI",
            "sasl.kerberos.service.name": "kafka",
            "sasl.jaas.config": f"{MODULE} {options};",
            **{key.replace("_", "."): value for key, value in more.items()},
        }
        settings = ClientSettings.from_props(props)
        return Connection.open(*settings.bootstrap[0], settings, timeout_s=30, cluster="K")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("kerberos")
    with KerberosRealm(folder / "realm") as realm, pytest.MonkeyPatch.context() as patch:
        patch.setenv("KRB5_CONFIG", str(realm.config))
        patch.setenv("KRB5CCNAME", f"FILE:{folder / 'none'}")
        service = realm.add("kafka/127.0.0.1")
        client = realm.add("mirror")
        listener = "listener.name.kerberos"
        broker = LocalKafka(
            "K",
            folder / "broker",
            listeners={"OPEN": "PLAINTEXT", "KERBEROS": "SASL_PLAINTEXT"},
            overrides={
                f"{listener}.sasl.enabled.mechanisms": "GSSAPI",
                f"{listener}.gssapi.sasl.jaas.config": by_keytab(service, "kafka/127.0.0.1", server=True),
                "sasl.kerberos.service.name": "kafka",
                f"{listener}.connections.max.reauth.ms": str(SESSION_MS),
            },
            jvm_options=[f"-Djava.security.krb5.conf={realm.config}"],
        )
        try:
            broker.start(60 * PATIENCE)
            yield Site(broker, realm, folder, client)
        finally:
            broker.stop()


def by_keytab(keytab: Path, principal: str, *, server: bool = False) -> str:
    options = f'useKeyTab=true storeKey=true keyTab="{keytab}" principal="{principal}@{REALM}"'
    return f"{MODULE} {options};" if server else options


def test_a_key_table(site: Site) -> None:
    usable(site.open(by_keytab(site.keytab, "mirror")))


def test_a_ticket_cache(site: Site) -> None:
    cache = site.folder / "tickets"
    site.realm.kinit("mirror", site.keytab, cache)
    usable(site.open(f'useTicketCache=true ticketCache="{cache}"'))


def test_a_key_table_when_there_is_no_ticket(site: Site) -> None:
    """As Java: the cache first, then the key table."""
    cache = f'useTicketCache=true ticketCache="{site.folder / "missing"}"'
    usable(site.open(f"{by_keytab(site.keytab, 'mirror')} {cache}"))


def test_tickets_and_sessions_are_renewed_on_the_open_connection(site: Site) -> None:
    """Longer than a ticket is valid; the session is renewed several times (KIP-368)."""
    keytab = site.realm.add("shortly", max_life=f"{TICKET_S} seconds")
    connection = site.open(by_keytab(keytab, "shortly"))
    used_for(connection, 2 * SESSION_MS / 1000)


def test_a_missing_ticket_is_reported(site: Site) -> None:
    with pytest.raises(AuthenticationFailure, match=r"Login with SASL GSSAPI at the broker .* of cluster K failed: No"):
        site.open("useTicketCache=true")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("keytab", "the key table .*missing.keytab does not exist"),
        ("principal", r"failed: no ticket for nobody@MM2\.TEST with the key table .*mirror\.keytab: "),
        ("service", "failed: Server .*nokafka/127.0.0.1.* not found"),
        ("key", "failed: .+"),
    ],
)
def test_a_wrong_setting_is_reported(site: Site, wrong: str, words: str) -> None:
    options, more = by_keytab(site.keytab, "mirror"), {}
    if wrong == "keytab":
        options = by_keytab(site.folder / "missing.keytab", "mirror")
    elif wrong == "principal":
        options = by_keytab(site.keytab, "nobody")
    elif wrong == "service":
        more = {"sasl_kerberos_service_name": "nokafka"}
    else:
        options = by_keytab(site.realm.add("rotated"), "rotated")
        site.realm.change_key("rotated")
    with pytest.raises(AuthenticationFailure, match=words):
        site.open(options, **more)
