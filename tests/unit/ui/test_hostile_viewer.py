"""What a client with the role viewer can do to the process through the dashboard."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from mm2.ui.sockets import MOST_UNSENT
from mm2.ui.waiting_pages import MOST_WAITING


@pytest.fixture(scope="module")
def found() -> Any:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.unit.ui.hostile_viewer"], capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr[-3_000:]
    return json.loads(ran.stdout.splitlines()[-1])


def test_errors_keep_no_page(found: Any) -> None:
    assert found["static"] == found["post"] == [404, 0]
    assert found["page"] == found["topic"] == [200, 1], "any text in the address"


def test_a_websocket_opens_one_page_with_ids_of_a_limited_length(found: Any) -> None:
    assert found["first page"] == [True]
    assert found["second page"] == [False]
    assert not found["second page by another event"]
    assert found["long id"] == found["no id"] == found["no number"] == [False]
    assert found["reconnected"] == [True]
    assert found["connected"] == ["40{", True]
    assert found["refused"] == "44"
    assert found["tabs kept for"] == 0


def test_pages_that_were_connected_once_are_limited_like_others(found: Any) -> None:
    assert 0 < found["disconnected"] <= MOST_WAITING


@pytest.mark.parametrize("role", ["operator", "admin"])
def test_messages_of_a_page_act_with_the_role_of_its_client(found: Any, role: str) -> None:
    path = "/A/B/connectors/MirrorSourceConnector"
    assert found[f"by {role}"] == [[role, f"{path}/{action}"] for action in ("pause", "resume", "restart", "stop")]


def test_messages_of_a_viewer_act_on_nothing(found: Any) -> None:
    assert found["by viewer"] == []


def test_a_page_belongs_to_the_client_that_has_requested_it(found: Any) -> None:
    """Its ids were enough: another client could show it, and use its buttons with the role of its client."""
    assert found["page of another client"] == [False]
    assert [path.rpartition("/")[2] for _, path in found["asked beside another client"]] == ["stop"]


def test_messages_after_the_end_of_a_session_act_on_nothing(found: Any) -> None:
    assert found["asked after the end"] == []


def test_a_viewer_writes_nothing_to_the_log(found: Any) -> None:
    assert found["logged"] == []


def test_attachments_of_messages_are_not_awaited(found: Any) -> None:
    assert found["attachments"] == 0
    assert found["answers after attachments"] == [False]


@pytest.mark.parametrize("what", ["unread answers", "unread packets"])
def test_a_client_that_reads_nothing_is_disconnected(found: Any, what: str) -> None:
    """All that it had not read was kept, and it could request more."""
    unsent, is_closed = found[what]
    assert unsent <= MOST_UNSENT + 1, "and the end"
    assert is_closed
