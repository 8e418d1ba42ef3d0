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
from mm2.connect.request_signing import generate_key
from mm2.connect.rest import local_processes
from mm2.connect.rest.access.credentials import Credentials, Users
from mm2.connect.rest.access.local_token import LocalToken, new_token
from mm2.connect.rest.access.principal import (
    ANONYMOUS,
    Kind,
    Principal,
    RequestPeer,
    Role,
    TooManyFailures,
    WrongCredentials,
)
from mm2.connect.rest.access.roles import RoleMap
from mm2.connect.rest.access.sessions import CODE_LIFE_S, SESSION_LIFE_S, Sessions
from mm2.connect.rest.access.throttle import Allowance, FailureThrottle
from mm2.connect.rest.access.vouchers import SIGNATURE_HEADER, VOUCHER_HEADER, voucher_headers, voucher_of
from mm2.connect.rest.basic_auth import PasswordAuthenticator
from mm2.connect.rest.middleware import without_secrets
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


def test_failures_of_many_names_block_all_of_them_and_memory_is_bounded() -> None:
    clock = Clock()
    throttle = FailureThrottle(Allowance(3, 10.0), Allowance(50, 1.0), clock)
    for number in range(50):
        throttle.check(f"guess-{number}", f"10.0.0.{number}")
        throttle.failed(f"guess-{number}", f"10.0.0.{number}")
    with pytest.raises(TooManyFailures):
        throttle.check("ada")
    for number in range(20_000):
        throttle.failed(f"{number}", f"10.0.{number}")
    assert len(throttle._buckets) <= 3_000
    clock.now_s += 50
    with pytest.raises(TooManyFailures):
        throttle.check("ada")
    clock.now_s += 1
    throttle.check("ada")


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


# -- forwarded requests

KEY = generate_key("HmacSHA256", None, 0)


def forwarded(**changes: Any) -> Headers:
    headers = voucher_headers(
        KEY, Principal("ada", Kind.OIDC, frozenset({"ops"})), Role.OPERATOR, "PUT", "/c?x=1", b"{}"
    )
    if changes:
        content = {**json.loads(base64.b64decode(headers[VOUCHER_HEADER])), **changes}
        headers[VOUCHER_HEADER] = base64.b64encode(json.dumps(content).encode()).decode()
    return Headers(headers)


def test_a_worker_vouches_for_the_client_of_a_request_that_it_forwards() -> None:
    voucher = voucher_of(forwarded(), "PUT", "/c?x=1", lambda: KEY)
    assert voucher is not None
    assert (voucher.principal.name, set(voucher.principal.groups), voucher.role) == ("ada", {"ops"}, Role.OPERATOR)
    assert voucher_of(Headers({}), "PUT", "/c?x=1", lambda: KEY) is None


def test_a_changed_or_reused_voucher_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WrongCredentials, match="signature"):
        voucher_of(forwarded(role="admin"), "PUT", "/c?x=1", lambda: KEY)
    with pytest.raises(WrongCredentials, match="signature"):
        voucher_of(forwarded(), "PUT", "/c?x=1", lambda: generate_key("HmacSHA256", None, 0))
    with pytest.raises(WrongCredentials, match="no session key"):
        voucher_of(forwarded(), "PUT", "/c?x=1", lambda: None)
    for method, target in (("DELETE", "/c?x=1"), ("PUT", "/d?x=1"), ("PUT", "/c")):
        with pytest.raises(WrongCredentials, match="another request"):
            voucher_of(forwarded(), method, target, lambda: KEY)
    for text in ("", "%", "e30="):
        with pytest.raises(WrongCredentials):
            voucher_of(Headers({VOUCHER_HEADER: text, SIGNATURE_HEADER: text}), "PUT", "/c", lambda: KEY)
    old = forwarded()
    later_s = time.time() + 600
    monkeypatch.setattr(time, "time", lambda: later_s)
    with pytest.raises(WrongCredentials, match="clocks"):
        voucher_of(old, "PUT", "/c?x=1", lambda: KEY)


class _Leader(BaseHTTPRequestHandler):
    """Another worker that records the ``Authorization`` of what is forwarded to it."""

    received: ClassVar[list[str | None]] = []

    def do_PUT(self) -> None:
        self.received.append(self.headers.get("Authorization"))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


def test_the_token_of_a_process_is_not_forwarded(start: Start) -> None:
    with HTTPServer(("127.0.0.1", 0), _Leader) as leader:
        threading.Thread(target=leader.serve_forever, daemon=True).start()
        rest = start()
        rest.herder.refuse = NotLeader("not the leader", f"http://127.0.0.1:{leader.server_port}/")
        for sent in (f"Bearer {new_token()}", f"bearer   {new_token()}", "Bearer ey.J.x", "Basic YTpi"):
            assert rest.ask("PUT", "/connectors/c/stop", headers={"Authorization": sent}).status == 204
        leader.shutdown()
    assert _Leader.received == [None, None, "Bearer ey.J.x", "Basic YTpi"]


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
