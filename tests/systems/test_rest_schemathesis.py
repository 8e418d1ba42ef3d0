"""Run schemathesis against the OpenAPI page: no status 500 except those that Kafka Connect returns too."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis import Case
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode

from tests.support.slow_clients import Attack, withstand
from tests.systems.workers import DistributedWorker

load_all_checks()

#: Error messages for which Connect returns 500: malformed bodies only, because all herders here answer in time.
MALFORMED = re.compile(
    r"(Nothing|A boolean|A number|A string|A list|An object) where .* was expected"
    r"|The body is not valid JSON|The body contains (bytes or escapes|a number)|The body is nested too deeply"
    r"|Unrecognized field|Unknown initial_state|The request has no field config"
    r"|Cannot (deserialize|construct instance|read a value)|Partition objects cannot be null"
)
#: Checks of schemathesis that Connect does not pass: it accepts numbers as strings, and unknown scopes as `worker`.
NOT_CONNECT_S = ("not_a_server_error", "negative_data_rejection", "positive_data_acceptance", "missing_required_header")


@pytest.mark.timeout(400)
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["valid", "invalid"])
@pytest.mark.slow
def test_no_response_is_500_outside_the_list(worker: DistributedWorker, mode: GenerationMode) -> None:
    ask_all(worker, mode)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_attack_from_another_address_changes_no_response(worker: DistributedWorker) -> None:
    """Big bodies, slow clients and many connections; ``/health`` answers, and the memory is returned."""

    def attack(port: int) -> None:
        with ThreadPoolExecutor(1) as pool:
            attacking = pool.submit(
                Attack(bodies=40, body_bytes=16 * 1024 * 1024, connections=1500, slow_s=30.0).run, port
            )
            while not attacking.done():
                ask_all(worker, GenerationMode.POSITIVE)
            attacking.result()

    ask_all(worker, GenerationMode.POSITIVE)
    withstand(worker.port, worker.pid, attack, connections=300)


def ask_all(worker: DistributedWorker, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_url(f"{worker.rest.url}/openapi.json")
    asked: list[str] = []
    for found in schema.get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()
        try:
            try_out(operation.as_strategy(generation_mode=mode), functools.partial(asked.append, operation.label))
        except hypothesis.errors.Unsatisfiable:
            assert mode is GenerationMode.NEGATIVE, operation.label  # it cannot be invalid
    seen = set(asked)
    assert len(seen) == 31 if mode is GenerationMode.POSITIVE else len(seen) > 15, seen


def try_out(strategy: Any, count: Callable[[], None]) -> None:
    """Some requests of an operation, equal in each run."""

    @hypothesis.settings(
        max_examples=5,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    @hypothesis.given(case=strategy)
    def answers_as_described(case: Case[Any]) -> None:
        count()
        check(case)

    answers_as_described()


def check(case: Case[Any]) -> None:
    response = case.call(timeout=60)
    if response.status_code == 500:
        assert MALFORMED.search(response.json()["message"] or ""), response.text
    else:
        excluded: Any = [check for check in CHECKS.get_all() if check.__name__ in NOT_CONNECT_S]
        case.validate_response(response, excluded_checks=excluded)
