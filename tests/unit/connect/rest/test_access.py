"""The parts of authentication and authorization."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import stat
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from cryptography import x509
from starlette.datastructures import Headers

from mm2.config.configdef import ConfigException
from mm2.connect.errors import NotLeader
from mm2.connect.request_signing import SessionKey, generate_key, sign
from mm2.connect.rest import local_processes
from mm2.connect.rest.access.authenticators import LocalToken, new_token
from mm2.connect.rest.access.roles import (
    ANONYMOUS,
    Kind,
    Principal,
    RequestPeer,
    Role,
    RoleMap,
    TooManyFailures,
    WrongCredentials,
)
from mm2.connect.rest.access.sessions import CODE_LIFE_S, SESSION_LIFE_S, Sessions, WebSockets
from mm2.connect.rest.access.vouchers import (
    CHALLENGE_HEADER,
    PROOF_HEADER,
    SIGNATURE_HEADER,
    VOUCHER_HEADER,
    Voucher,
    Vouchers,
    proof,
    voucher_headers,
)
from mm2.connect.rest.basic_auth import Allowance, Credentials, FailureThrottle, PasswordAuthenticator, Users
from mm2.connect.rest.failures import RestFailure
from mm2.connect.rest.listeners.middleware import without_secrets
from tests.support.clock import Clock
from tests.support.passwords import basic
from tests.unit.connect.rest.conftest import Start

ADA = Principal("ada", Kind.PASSWORD)


# -- roles


def test_without_role_keys_users_and_certificates_may_do_everything_as_in_java() -> None:
    roles = RoleMap.of({})
    assert roles.role_of(ADA) is Role.ADMIN
    assert roles.role_of(Principal("CN=ada", Kind.CERTIFICATE)) is Role.ADMIN
    assert roles.role_of(Principal("ada", Kind.OIDC)) is Role.NONE
    assert roles.role_of(ANONYMOUS) is Role.NONE
    assert roles.role_of(Principal("local", Kind.LOCAL)) is Role.ADMIN


def test_with_any_role_key_others_have_none() -> None:
    roles = RoleMap.of(
        {
            "rest.role.viewer": "User:ada; Group:readers",
            "rest.role.operator": "Certificate:CN=ops, O=Example\\, Inc.; Group:ops",
            "rest.role.admin": "",
        }
    )
    assert roles.role_of(ADA) is Role.VIEWER
    assert roles.role_of(Principal("bob", Kind.PASSWORD)) is Role.NONE
    assert roles.role_of(Principal("bob", Kind.OIDC, frozenset({"readers", "ops"}))) is Role.OPERATOR
    assert roles.role_of(Principal("CN=ops,O=Example\\, Inc.", Kind.CERTIFICATE)) is Role.OPERATOR
    assert roles.role_of(Principal("CN=ops,O=Example", Kind.CERTIFICATE)) is Role.NONE
    # A user is no certificate and no group, whatever its name.
    assert roles.role_of(Principal("ada", Kind.CERTIFICATE)) is Role.NONE
    assert roles.role_of(Principal("readers", Kind.PASSWORD)) is Role.NONE
    assert roles.role_of(Principal("local", Kind.LOCAL)) is Role.ADMIN
    assert RoleMap.of({"rest.role.metrics": "User:*"}).role_of(Principal("bob", Kind.OIDC)) is Role.METRICS
    assert RoleMap.of({"rest.role.metrics": "User:*"}).role_of(Principal("CN=x", Kind.CERTIFICATE)) is Role.NONE


def test_a_subject_with_two_parts_is_not_one_with_an_escaped_comma() -> None:
    roles = RoleMap.of({"rest.role.admin": "Certificate:CN=ops\\,O=Example"})
    assert roles.role_of(Principal("CN=ops\\,O\\=Example", Kind.CERTIFICATE)) is Role.ADMIN
    subject = x509.Name.from_rfc4514_string("CN=ops\\ ,O=Example").rfc4514_string()
    assert roles.role_of(Principal(subject, Kind.CERTIFICATE)) is Role.NONE


def test_clients_with_credentials_have_at_least_the_role_of_those_without() -> None:
    roles = RoleMap.of({"rest.role.admin": "User:bob", "rest.unauthenticated.access": "metrics"})
    assert roles.role_of(ANONYMOUS) is Role.METRICS
    assert roles.role_of(ADA) is Role.METRICS
    assert RoleMap.of({"rest.unauthenticated.access": "all"}).role_of(ANONYMOUS) is Role.ADMIN


@pytest.mark.parametrize("entry", ["ada", "user:ada", "User:", "Group:*", "Host:x", "User:ada, Group:x; :"])
def test_a_wrong_entry_is_reported_with_its_key(entry: str) -> None:
    with pytest.raises(ConfigException, match=r"rest\.role\.viewer"):
        RoleMap.of({"rest.role.viewer": entry})
    with pytest.raises(ConfigException, match=r"rest\.unauthenticated\.access"):
        RoleMap.of({"rest.unauthenticated.access": "everyone"})


# -- throttle


def test_failures_of_one_name_block_this_name_for_a_while() -> None:
    clock = Clock()
    throttle = FailureThrottle(Allowance(3, 10.0), Allowance(100, 1.0), clock)
    for _ in range(3):
        throttle.check("ada")
        throttle.failed("ada")
    with pytest.raises(TooManyFailures) as raised:
        throttle.check("ada")
    assert raised.value.retry_after_s == 10
    throttle.check("bob")
    clock.now_s += 10
    throttle.check("ada")
    throttle.failed("ada")
    with pytest.raises(TooManyFailures):
        throttle.check("ada")
    clock.now_s += 10
    throttle.succeeded("ada")
    for _ in range(3):
        throttle.check("ada")
        throttle.failed("ada")


def test_failures_at_many_addresses_block_those_with_failures_only_and_memory_is_bounded() -> None:
    clock = Clock()
    throttle = FailureThrottle(Allowance(3, 10.0), Allowance(50, 1.0), clock)
    for number in range(50):
        throttle.check(f"guess-{number}", f"10.0.0.{number}")
        throttle.failed(f"guess-{number}", f"10.0.0.{number}")
    for number in range(20_000):
        throttle.failed(f"{number}", f"10.0.{number}")
    assert len(throttle._buckets) <= 3_000
    with pytest.raises(TooManyFailures):
        throttle.check("guess", "10.0.19999")
    throttle.check("ada", "10.1.0.1")
    throttle.failed("ada", "10.1.0.1")
    with pytest.raises(TooManyFailures):
        throttle.check("ada", "10.1.0.1")
    clock.now_s += 5  # its own failure is forgotten, the others are not
    throttle.check("ada", "10.1.0.1")
    throttle.failed("ada", "10.1.0.1")
    clock.now_s += 4
    with pytest.raises(TooManyFailures):
        throttle.check("ada", "10.1.0.1")


def test_guesses_from_one_address_do_not_exclude_the_users_at_others() -> None:
    clock = Clock()
    throttle = FailureThrottle(now_s=clock)
    rejected = 0
    for number in range(2_000):  # ten a second
        clock.now_s += 0.1
        for name in ("ada", f"guess-{number}"):
            try:
                throttle.check(name, "10.0.0.1")
                throttle.failed(name, "10.0.0.1")
            except TooManyFailures:
                rejected += 1
        throttle.check("ada", "10.0.0.2")
        throttle.check("bob", "10.0.0.2")
    assert rejected > 3_900
    # Its own account does not help an attacker.
    throttle.succeeded("eve", "10.0.0.1")
    with pytest.raises(TooManyFailures):
        throttle.check("bob", "10.0.0.1")


def test_guesses_for_one_name_are_limited_at_all_addresses_together() -> None:
    throttle = FailureThrottle(now_s=Clock())
    for number in range(20):
        throttle.check("ada", f"10.0.0.{number}")
        throttle.failed("ada", f"10.0.0.{number}")
    with pytest.raises(TooManyFailures):
        throttle.check("ada", "10.0.1.1")


def run(authenticator: Any, headers: dict[str, str], peer: RequestPeer | None = None) -> Principal | None:
    found: Principal | None = asyncio.run(authenticator.authenticate(Headers(headers), peer or RequestPeer()))
    return found


def test_a_throttled_name_is_not_checked_even_with_the_right_password() -> None:
    clock = Clock()
    throttle = FailureThrottle(Allowance(2, 10.0), Allowance(50, 1.0), clock)
    passwords = PasswordAuthenticator(Credentials(Users({"ada": "lovelace"})), throttle)
    assert run(passwords, basic("ada", "lovelace")) == ADA
    for _ in range(2):
        with pytest.raises(WrongCredentials):
            run(passwords, basic("ada", "byron"))
    with pytest.raises(TooManyFailures):
        run(passwords, basic("ada", "lovelace"))
    clock.now_s += 10
    assert run(passwords, basic("ada", "lovelace")) == ADA
    assert run(passwords, {"Authorization": "Bearer x"}) is None
    assert run(passwords, {}) is None


def test_guesses_that_are_sent_at_the_same_time_are_limited_like_others() -> None:
    class Slow(Credentials):
        verified = 0

        async def matches(self, user: str, password: str) -> bool:
            self.verified += 1
            await asyncio.sleep(0.01)
            return await super().matches(user, password)

    credentials = Slow(Users({"ada": "lovelace"}))
    passwords = PasswordAuthenticator(credentials, FailureThrottle(Allowance(3, 10.0), Allowance(50, 1.0), Clock()))

    async def guess() -> list[Any]:
        attempts = (passwords.authenticate(Headers(basic("ada", f"guess {n}")), RequestPeer()) for n in range(30))
        return await asyncio.gather(*attempts, return_exceptions=True)

    outcomes = asyncio.run(guess())
    assert credentials.verified == 3
    assert [type(one) for one in outcomes] == [WrongCredentials] * 3 + [TooManyFailures] * 27


def test_guesses_from_all_addresses_of_this_machine_do_not_exclude_users_elsewhere() -> None:
    """Any user of the machine can send from each loopback address. They count as one, as an IPv6 network does."""
    passwords = PasswordAuthenticator(Credentials(Users({"ada": "lovelace"})), FailureThrottle(now_s=Clock()))
    peers = [RequestPeer(address=f"127.0.{number}.2") for number in range(30)] + [RequestPeer(address="::/64")]
    outcomes: list[type[Exception]] = []
    for number, peer in enumerate(peers * 10):
        for name in ("ada", f"guess-{number}"):
            with pytest.raises((WrongCredentials, TooManyFailures)) as raised:
                run(passwords, basic(name, "byron"), peer)
            outcomes.append(raised.type)
    assert outcomes.count(WrongCredentials) == 15
    assert run(passwords, basic("ada", "lovelace"), RequestPeer(address="10.0.0.1")) == ADA


# -- token of the process


def test_only_the_token_of_the_process_is_accepted() -> None:
    token = new_token()
    assert len(token) >= 40
    assert token != new_token()
    local = LocalToken(token)
    assert run(local, {"Authorization": f"Bearer {token}"}) == Principal("local", Kind.LOCAL)
    assert run(local, {"Authorization": f"bearer  {token}"}) == Principal("local", Kind.LOCAL)
    for other in (new_token(), token[:-1], f"{token}x"):
        with pytest.raises(WrongCredentials):
            run(local, {"Authorization": f"Bearer {other}"})
    for header in ("Bearer ey.J.x", f"Basic {token}", token, "Bearer"):
        assert run(local, {"Authorization": header}) is None


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "mm2" / "processes"


def test_only_the_user_of_the_process_can_read_its_token(folder: Path) -> None:
    old = os.umask(0)
    try:
        assert local_processes.write_token("mm2_secret")
        local_processes.write("http://127.0.0.1:1/", ["A->B"], Path("mm2.properties"))
    finally:
        os.umask(old)
    file = folder / f"{os.getpid()}.token"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (process,) = local_processes.processes()
    assert process.file == str(Path("mm2.properties").absolute())
    assert local_processes.token_of(process) == "mm2_secret"
    assert local_processes.write_token("mm2_newer")
    assert local_processes.token_of(process) == "mm2_newer"
    local_processes.remove()
    assert list(folder.iterdir()) == []
    assert local_processes.token_of(process) is None


def test_a_folder_of_others_is_not_used(folder: Path, tmp_path: Path) -> None:
    folder.mkdir(parents=True, mode=0o700)
    folder.chmod(0o750)
    assert not local_processes.write_token("mm2_secret")
    with pytest.raises(local_processes.UntrustedFolder, match="chmod 700"):
        local_processes.processes()
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    assert not local_processes.write_token("mm2_secret")
    with pytest.raises(local_processes.UntrustedFolder, match="symbolic link"):
        local_processes.processes()
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can write in the home of another user")
def test_root_publishes_nothing_in_the_home_of_another_user(folder: Path) -> None:
    """Commands ignore files of root in a folder of another user: the process could not be found, without any reason."""
    folder.mkdir(parents=True, mode=0o700)
    os.chown(folder, 12345, 12345)
    assert not local_processes.write_token("mm2_secret")
    local_processes.write("http://127.0.0.1:1/", [])
    assert list(folder.iterdir()) == []
    # Root may use the processes of that user.
    born = local_processes._birth(os.getpid())
    for name, text in (
        ("1.token", "mm2_theirs"),
        ("1.json", json.dumps({"pid": os.getpid(), "url": "x", "flows": [], "since_ms": 0, "birth": born})),
        (f"{os.getpid()}.token", "mm2_theirs"),
    ):
        (folder / name).write_text(text)
        os.chown(folder / name, 12345, 12345)
    (process,) = local_processes.processes()
    assert local_processes.token_of(process) == "mm2_theirs"


def test_a_link_in_the_folder_is_neither_written_nor_read_through(folder: Path, tmp_path: Path) -> None:
    local_processes.write("http://127.0.0.1:1/", [])
    (process,) = local_processes.processes()
    other = tmp_path / "other"
    other.write_text("mm2_other")
    file = folder / f"{os.getpid()}.token"
    file.symlink_to(other)
    assert local_processes.token_of(process) is None
    assert local_processes.write_token("mm2_secret")
    assert other.read_text() == "mm2_other"
    assert not file.is_symlink()
    local_processes.remove()


def test_the_token_of_a_killed_process_is_deleted(folder: Path) -> None:
    local_processes.write("http://127.0.0.1:1/", [])
    mine = json.loads((folder / f"{os.getpid()}.json").read_text())
    (folder / "99999999.json").write_text(json.dumps(mine | {"pid": 99999999}))
    (folder / "99999999.token").write_text("mm2_old")
    local_processes.processes()
    assert not (folder / "99999999.token").exists()
    local_processes.remove()


# -- sessions


def test_codes_and_sessions_end() -> None:
    clock = Clock()
    sessions = Sessions(8083, clock)
    late, code = sessions.new_code(ADA), sessions.new_code(ADA)
    cookie = sessions.redeem(code)
    assert sessions.redeem(code) is None
    assert sessions.redeem("") is None
    assert sessions.redeem(str(cookie)) is None
    headers = {"Cookie": f"other=1; mm2-session-8083={cookie}"}
    assert run(sessions, headers) == ADA
    assert run(sessions, {"Cookie": f"mm2-session-8084={cookie}"}) is None
    assert run(sessions, {"Cookie": f"mm2-session-8083={code}"}) is None
    clock.now_s += CODE_LIFE_S
    assert sessions.redeem(late) is None
    clock.now_s += SESSION_LIFE_S
    assert run(sessions, headers) is None


def test_a_session_ends_with_the_token_that_requested_it() -> None:
    clock, epoch = Clock(), Clock()
    epoch.now_s = 1_000_000.0
    sessions = Sessions(8083, clock, epoch)
    ada = Principal("ada", Kind.OIDC, until_s=epoch.now_s + 300)
    headers = {"Cookie": f"mm2-session-8083={sessions.redeem(sessions.new_code(ada))}"}
    late = sessions.new_code(ada)
    for passed_s in (30, 269):
        clock.now_s, epoch.now_s = clock.now_s + passed_s, epoch.now_s + passed_s
        assert run(sessions, headers) == ada
    assert sessions.remaining_s(Headers(headers)) == 1
    clock.now_s, epoch.now_s = clock.now_s + 1, epoch.now_s + 1
    assert run(sessions, headers) is None
    assert sessions.redeem(late) is None
    code = sessions.new_code(ada)
    assert sessions.redeem(code) is None, "of a token that has expired meanwhile"


@pytest.mark.parametrize("how", ["logout", "too many sessions", "age"])
def test_what_runs_in_a_session_ends_with_it(how: str) -> None:
    """A dashboard's WebSocket was open, and received data, until the browser closed it."""

    async def play() -> None:
        clock = Clock()
        sessions = Sessions(8083, clock)
        headers = [Headers({"Cookie": f"mm2-session-8083={sessions.redeem(sessions.new_code(ADA))}"}) for _ in range(2)]
        open_for_ever = asyncio.Event()
        if how == "age":
            clock.now_s += SESSION_LIFE_S - 0.01
        ended, other = [asyncio.create_task(sessions.while_open(one, open_for_ever.wait)) for one in headers]
        await asyncio.sleep(0)
        if how == "logout":
            sessions.end(headers[0])
        elif how == "too many sessions":
            for _ in range(199):
                sessions.redeem(sessions.new_code(ADA))
        await ended
        assert other.done() is (how == "age")
        clock.now_s += 1
        open_for_ever.set()
        await other
        await sessions.while_open(headers[0], lambda: pytest.fail("the session has ended"))

    asyncio.run(play())


def test_the_number_of_codes_and_sessions_is_bounded() -> None:
    sessions = Sessions()
    codes = [sessions.new_code(ADA) for _ in range(300)]
    assert sessions.redeem(codes[0]) is None
    assert sessions.redeem(codes[-1]) is not None
    assert len(sessions._codes) <= 200


def test_a_client_with_many_codes_or_sessions_does_not_end_those_of_others() -> None:
    sessions = Sessions(8083)
    cookie, code = sessions.redeem(sessions.new_code(ADA)), sessions.new_code(ADA)
    bob = Principal("bob", Kind.PASSWORD)
    for _ in range(300):
        sessions.redeem(sessions.new_code(bob))
        sessions.new_code(bob)
    assert run(sessions, {"Cookie": f"mm2-session-8083={cookie}"}) == ADA
    assert sessions.redeem(code) is not None


# -- WebSockets


def test_a_client_with_many_websockets_closes_its_own_and_not_those_of_others() -> None:
    """A viewer could hold three quarters of all connections."""

    async def play() -> None:
        websockets, done = WebSockets(10), asyncio.Event()
        ada = asyncio.create_task(websockets.run(ADA, done.wait))
        await asyncio.sleep(0)
        bob = Principal("bob", Kind.PASSWORD)
        many = [asyncio.create_task(websockets.run(bob, done.wait)) for _ in range(100)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert [one.done() for one in many] == [True] * 91 + [False] * 9
        assert not ada.done()
        others = [asyncio.create_task(websockets.run(ADA, done.wait)) for _ in range(4)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert not any(one.done() for one in [ada, *others])
        assert sum(not one.done() for one in many) == 5
        done.set()
        await asyncio.gather(ada, *many, *others)
        assert not websockets._open

    asyncio.run(play())


# -- forwarded requests

KEY = generate_key("HmacSHA256", None, 0)


WORKER = "http://worker-2:8083"


def forwarded(at_s: float | None = None, **changes: Any) -> Headers:
    client = Principal("ada", Kind.OIDC, frozenset({"ops"}))
    headers = voucher_headers(KEY, client, Role.OPERATOR, f"{WORKER}/", "PUT", "/c?x=1", b"{}")
    content = json.loads(base64.b64decode(headers[VOUCHER_HEADER]))
    if changes:
        headers[VOUCHER_HEADER] = base64.b64encode(json.dumps({**content, **changes}).encode()).decode()
    if at_s is not None:
        encoded = base64.b64encode(json.dumps({**content, "at_s": at_s}).encode())
        signature = base64.b64encode(sign(KEY.key, b"mm2 voucher\n" + encoded)).decode()
        headers = {VOUCHER_HEADER: encoded.decode(), SIGNATURE_HEADER: signature}
    return Headers(headers)


def accepted(
    headers: Headers,
    method: str = "PUT",
    target: str = "/c?x=1",
    key: SessionKey = KEY,
    *,
    vouchers: Vouchers,
) -> Voucher | None:
    return vouchers.voucher_of(headers, method, target, key)


def test_a_worker_vouches_for_the_client_of_a_request_that_it_forwards() -> None:
    vouchers, without_url = Vouchers(f"{WORKER}/"), Vouchers()
    voucher = accepted(forwarded(), vouchers=vouchers)
    assert voucher is not None
    assert (voucher.principal.name, set(voucher.principal.groups), voucher.role) == ("ada", {"ops"}, Role.OPERATOR)
    assert accepted(Headers({}), vouchers=vouchers) is None
    assert accepted(forwarded(), vouchers=vouchers) is not None, "the same request again is another voucher"
    assert accepted(forwarded(), vouchers=without_url) is not None


def test_a_changed_voucher_or_that_of_another_request_is_rejected() -> None:
    vouchers = Vouchers(WORKER)
    with pytest.raises(WrongCredentials, match="signature"):
        accepted(forwarded(role="admin"), vouchers=vouchers)
    with pytest.raises(WrongCredentials, match="signature"):
        accepted(forwarded(), key=generate_key("HmacSHA256", None, 0), vouchers=vouchers)
    for method, target in (("DELETE", "/c?x=1"), ("PUT", "/d?x=1"), ("PUT", "/c")):
        with pytest.raises(WrongCredentials, match="another request"):
            accepted(forwarded(), method, target, vouchers=vouchers)
    for text in ("", "%", "e30="):
        with pytest.raises(WrongCredentials):
            accepted(Headers({VOUCHER_HEADER: text, SIGNATURE_HEADER: text}), vouchers=vouchers)


def test_a_voucher_is_accepted_once_and_by_one_worker_only() -> None:
    """Who sees a forwarded request could send it again for two minutes, to each worker of the group."""
    vouchers = Vouchers(WORKER)
    first = forwarded()
    assert accepted(first, vouchers=vouchers) is not None
    with pytest.raises(WrongCredentials, match="used before"):
        accepted(first, vouchers=vouchers)
    other = Vouchers("http://worker-3:8083/")
    with pytest.raises(RestFailure, match="forwarded to http://worker-2:8083, and this worker advertises"):
        accepted(forwarded(), vouchers=other)
    restarted = Vouchers(WORKER, lambda: time.time() + 1)
    with pytest.raises(WrongCredentials, match="before this worker started"):
        accepted(first, vouchers=restarted)


def test_a_clock_that_is_set_back_rejects_one_voucher_at_most() -> None:
    clock = Clock()
    vouchers = Vouchers(WORKER, clock)
    clock.now_s -= 500
    with pytest.raises(WrongCredentials, match="clocks"):
        accepted(forwarded(clock.now_s - 0.1), vouchers=vouchers)
    assert accepted(forwarded(clock.now_s + 0.1), vouchers=vouchers) is not None


def test_used_vouchers_are_remembered_until_they_have_expired_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    vouchers = Vouchers(WORKER, clock)
    clock.now_s += 1_000
    fast = forwarded(clock.now_s + 119)  # by the clock of the other worker
    assert accepted(fast, vouchers=vouchers) is not None
    clock.now_s += 238
    with pytest.raises(WrongCredentials, match="used before"):
        accepted(fast, vouchers=vouchers)
    clock.now_s += 2
    assert accepted(forwarded(clock.now_s), vouchers=vouchers) is not None
    assert len(vouchers._used) == 1
    with pytest.raises(WrongCredentials, match="old"):
        accepted(fast, vouchers=vouchers)
    monkeypatch.setattr("mm2.connect.rest.access.vouchers._MOST_USED", 3)
    for _ in range(2):
        assert accepted(forwarded(clock.now_s), vouchers=vouchers) is not None
    with pytest.raises(RestFailure, match="Too many requests") as raised:
        accepted(forwarded(clock.now_s), vouchers=vouchers)
    assert raised.value.status == 503
    clock.now_s += 240
    assert accepted(forwarded(clock.now_s), vouchers=vouchers) is not None


class _Leader(BaseHTTPRequestHandler):
    """Another worker that records the ``Authorization`` of what is forwarded to it. ``url`` is what it advertises."""

    received: ClassVar[list[str | None]] = []
    url: ClassVar[str] = ""

    def do_GET(self) -> None:
        assert self.headers.get("Authorization") is None
        self.send_response(204)
        self.send_header(PROOF_HEADER, proof(KEY, self.url, self.headers[CHALLENGE_HEADER]))
        self.end_headers()

    def do_PUT(self) -> None:
        self.received.append(self.headers.get("Authorization"))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


@pytest.mark.parametrize(
    ("key", "other_url", "expected"),
    [
        (KEY, "", [None, None, "Bearer ey.J.x", "Basic YTpi"]),
        (KEY, "http://127.0.0.1:1", [None] * 4),
        (generate_key("HmacSHA256", None, 0), "", [None] * 4),
        (None, "", [None] * 4),
    ],
    ids=["proved", "of another worker", "another key", "no key"],
)
def test_only_a_worker_that_proves_itself_gets_credentials_and_none_gets_the_token_of_a_process(
    start: Start, key: SessionKey | None, other_url: str, expected: list[str | None]
) -> None:
    """Clients without credentials may do everything here, as in Java, so their requests are forwarded in any case."""
    _Leader.received.clear()
    with HTTPServer(("127.0.0.1", 0), _Leader) as leader:
        threading.Thread(target=leader.serve_forever, daemon=True).start()
        rest = start()
        url = f"http://127.0.0.1:{leader.server_port}/"
        _Leader.url = other_url or url
        rest.herder.session_key = key
        rest.herder.refuse = NotLeader("not the leader", url)
        for sent in (f"Bearer {new_token()}", f"bearer   {new_token()}", "Bearer ey.J.x", "Basic YTpi"):
            assert rest.ask("PUT", "/connectors/c/stop", headers={"Authorization": sent}).status == 204
        leader.shutdown()
    assert _Leader.received == expected


def test_the_answer_to_a_challenge_does_not_show_the_key_or_whether_there_is_one(start: Start) -> None:
    rest = start({"rest.unauthenticated.access": "none"})
    for path in ("/connectors", "/no/such/path"):
        found = rest.ask("GET", path, headers={CHALLENGE_HEADER: "x"})
        assert (found.status, found.body) == (204, b"")
        assert len(base64.b64decode(found.headers[PROOF_HEADER.lower()])) == 32


# -- access log


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("/ui/login?code=abc", "/ui/login?code=[hidden]"),
        ("/metrics?access_token=abc", "/metrics?access_token=[hidden]"),
        ("/s/?EIO=4&sid=abc&t=1", "/s/?EIO=4&sid=[hidden]&t=1"),
        ("/s/?%73id=abc&client_id=x", "/s/?%73id=[hidden]&client_id=[hidden]"),
        ("/connectors?expand=info", "/connectors?expand=info"),
        ("/sid=x", "/sid=x"),
        ("/ui/?code", "/ui/?code"),
    ],
)
def test_secrets_are_hidden_in_urls(url: str, shown: str) -> None:
    assert without_secrets(url) == shown
