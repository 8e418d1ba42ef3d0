"""schemathesis against the OpenAPI page: thousands of requests, and no 500 but those that spec connect C defines."""

from __future__ import annotations

import re
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis import Case
from schemathesis.checks import CHECKS, load_all_checks

from tests.systems.workers import DistributedWorker

load_all_checks()

#: Why 500 may be answered (spec connect C): a body of another shape, and nothing else here, where all herders answer in time.
MALFORMED = re.compile(
    r"(Nothing|A boolean|A number|A string|A list|An object) where .* was expected"
    r"|The body is no JSON|The body holds (bytes or escapes|a number)|The body is nested too deeply"
    r"|Unrecognized field|Unknown initial_state|The request has no field config"
    r"|The body must be a JSON object|Field '(offsets|partition|offset)'|Each entry of 'offsets'"
)
#: What schemathesis would have, and Connect does otherwise: numbers are taken for strings, unknown scopes for `worker`.
NOT_CONNECT_S = ("not_a_server_error", "negative_data_rejection", "positive_data_acceptance", "missing_required_header")


@pytest.fixture(scope="module")
def description(worker: DistributedWorker) -> Any:
    return schemathesis.openapi.from_url(f"{worker.rest.url}/openapi.json")


schema = schemathesis.pytest.from_fixture("description")


@schema.parametrize()
@hypothesis.settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(hypothesis.HealthCheck),
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)
@pytest.mark.timeout(300)
def test_no_answer_is_500_outside_the_list(case: Case[Any]) -> None:
    response = case.call(timeout=60)
    if response.status_code == 500:
        assert MALFORMED.search(response.json()["message"] or ""), response.text
    else:
        excluded: Any = [check for check in CHECKS.get_all() if check.__name__ in NOT_CONNECT_S]
        case.validate_response(response, excluded_checks=excluded)
