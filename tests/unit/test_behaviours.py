"""Each behaviour of Kafka's MirrorMaker 2 tests, each weakness and each attacker has what shows it.

The variants in which Kafka runs its base suite (behaviours 1 to 28) are in `tests/integration/test_mm2_behaviours/variants.py`.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: What Kafka's integration tests of MirrorMaker 2 assert. The numbers are in names or docstrings of tests.
BEHAVIOURS = {
    1: "Connect's three topics of each flow are created on its target",
    2: "all three connectors run, with tasks",
    3: "remote topics and offset syncs are created automatically",
    4: "`cleanup.policy=compact` at creation; with identity naming by the config sync",
    5: "configurations of a new topic, except excluded ones",
    6: "all records are replicated in both directions",
    7: "each cluster has its own records and the other cluster's records, once",
    8: "heartbeats on both clusters, and replicated",
    9: "`upstreamClusters`, `replicationHops`",
    10: "checkpoints are written",
    11: "translated offsets for all partitions",
    12: "failover, and failback",
    13: "checkpoints of an advancing group never decrease",
    14: "a topic created later, with records in one partition of ten",
    15: "empty partitions",
    16: "group sync, with `offset.lag.max` 10 and 0",
    17: "the same for a second topic; no records are copied back to the source",
    18: "without offset syncs, records are replicated and no topic for offset syncs is created",
    19: "`offset-syncs.topic.location=target`",
    20: "no checkpoint for records that have not been copied",
    21: "checkpoints and group sync after a restart of connectors and tasks",
    22: "a lagging group at 90 %, reset to 10 %",
    23: "excluded overrides on the target are kept, others are removed",
    24: "`use.defaults.from=source`",
    25: "an override that was removed on the source is removed on the target",
    26: "`auto.offset.reset=latest`",
    27: "offsets are altered and removed through REST",
    28: "all offsets are reset through REST",
    29: "all topics are created through a custom admin",
    30: "partitions are added through a custom admin",
    31: "the config sync uses a custom admin",
    32: "ACLs are created through a custom admin",
    33: "a single node without REST",
    34: "without offset syncs there is no checkpoint connector",
    35: "three nodes with internal REST, exactly-once, an alias with special characters",
    36: "a rolling restart with a changed file",
}
#: Tests by attacker, in the order of the page.
ATTACKERS = {
    "network between the process and the brokers": (
        "tests/faults/test_rights.py::test_s3_certificates_that_expire_or_change_their_authority_are_reported_and_reloaded",
    ),
    "network of the REST port": (
        "tests/unit/connect/rest/test_overload.py::test_an_attack_neither_keeps_memory_nor_delays_the_health",
        "tests/unit/connect/rest/test_overload.py::test_slow_handshakes_and_requests_of_a_client_do_not_delay_others_with_tls",
    ),
    "identity provider of tokens": (
        "tests/integration/connect/test_oidc_access.py::test_groups_of_a_token_decide_what_its_user_may_do",
        "tests/integration/connect/test_oidc_access.py::test_without_a_valid_token_nothing_is_accessible",
    ),
    "web page in the browser of an authorized user": (
        "tests/unit/connect/rest/test_callers.py::test_pages_of_other_origins_change_nothing_and_open_no_socket",
    ),
    "client of REST without a role": (
        "tests/unit/mirror/test_access.py::test_no_address_and_no_header_is_an_identity",
        "tests/unit/mirror/test_access.py::test_unknown_paths_and_methods_tell_nothing_to_clients_without_a_role",
    ),
    "client of REST with the role metrics, viewer or operator": (
        "tests/unit/mirror/test_access.py::test_each_route_is_open_to_its_role_only",
        "tests/unit/ui/test_hostile_viewer.py::test_a_page_belongs_to_the_client_that_has_requested_it",
        "tests/unit/ui/test_hostile_viewer.py::test_messages_of_a_viewer_act_on_nothing",
        "tests/unit/ui/test_hostile_viewer.py::test_messages_after_the_end_of_a_session_act_on_nothing",
        "tests/browser/test_dashboard_security.py::test_a_link_logs_in_and_actions_need_the_role_operator",
        "tests/integration/connect/test_oidc_access.py::test_groups_of_a_token_decide_what_its_user_may_do",
    ),
    "client of REST with the role admin": (
        "tests/systems/test_mirror_rest.py::test_rest_may_name_only_classes_and_providers_that_the_file_allows",
        "tests/integration/connect/test_connect_worker.py::test_topics_of_the_worker_are_no_remote_topics",
        "tests/integration/deployment/test_secrets.py::test_an_admin_of_rest_cannot_have_a_secret_sent_to_another_address",
    ),
    "other user on the host": (
        "tests/unit/connect/rest/test_access.py::test_only_the_user_of_the_process_can_read_its_token",
        "tests/integration/deployment/test_secrets.py::test_no_secret_is_in_a_command_line_an_environment_or_a_remaining_file",
        "tests/integration/copy/test_spark_security.py::test_another_user_cannot_stop_the_executor",
    ),
    "client of the source that may create topics and write records": (
        "tests/integration/mirror/test_mirror_source_connector.py::test_a_client_of_the_source_cannot_write_the_topics_of_the_flow_or_of_its_worker",
        "tests/integration/mirror/test_forged_topics.py::test_topics_of_the_source_change_no_translated_offset_and_no_failover",
        "tests/unit/kafka/test_decompression_limit.py::test_a_bomb_costs_at_most_the_limit",
        "tests/browser/test_hostile_content.py::test_no_command_writes_what_a_terminal_executes",
    ),
    "client of the target that may write remote topics": (
        "tests/integration/mirror/test_write_denials.py::test_only_the_flow_may_write_until_a_failover",
        "tests/integration/verify/test_verify_flow.py::test_a_running_flow_is_equal_and_foreign_records_on_its_target_are_found",
    ),
    "reader of the config topic": (
        "tests/systems/test_a13_forwarding.py::test_a13_what_the_config_topic_contains_authenticates_no_client",
        "tests/integration/deployment/test_secrets.py::test_no_secret_is_in_a_topic_except_plain_ones_in_the_config_topic",
    ),
    "writer of the config topic": (
        "tests/integration/mirror/test_mirror_source_connector.py::test_a_client_of_the_source_cannot_write_the_topics_of_the_flow_or_of_its_worker",
        "tests/integration/mirror/test_forged_topics.py::test_topics_of_the_source_change_no_translated_offset_and_no_failover",
        "tests/unit/connect/test_config_fold.py::test_keys_without_a_task_number_are_ignored",
    ),
    "reader of the other internal topics": (
        "tests/integration/deployment/test_secrets.py::test_no_secret_is_in_a_topic_except_plain_ones_in_the_config_topic",
    ),
    "writer of the offsets topic": (
        "tests/unit/copy/progress/test_session.py::test_a_foreign_position_is_used_and_ends_the_session",
    ),
    "writer of the status topic": ("tests/unit/connect/test_statuses.py::test_unreadable_statuses_are_ignored",),
    "writer of the checkpoints or offset-syncs topic": (
        "tests/integration/mirror/test_forged_topics.py::test_topics_of_the_source_change_no_translated_offset_and_no_failover",
        "tests/unit/mirror/common/test_formats.py::test_malformed_syncs_are_refused",
    ),
    "writer of the ledger": (
        "tests/unit/copy/progress/test_ledger.py::test_no_record_of_another_client_prevents_reading_the_ledger",
        "tests/unit/copy/progress/test_ledger.py::test_a_chunk_that_another_client_has_written_is_not_decompressed_without_a_limit",
        "tests/unit/copy/progress/test_ledger.py::test_an_entry_of_another_client_with_numbers_that_no_log_has_is_none",
        "tests/unit/copy/progress/test_ledger.py::test_any_value_in_a_field_of_an_entry_is_read_or_refused",
        "tests/unit/mirror/topics/test_remote_acls.py::test_a_note_cannot_make_an_acl_of_somebody_else_the_flow_s_own",
    ),
    "writer of the dead-letter or heartbeats topic": (
        "tests/unit/observer/test_clocks.py::test_a_corrected_clock_of_a_writer_does_not_hide_its_heartbeats",
    ),
    "member of the Connect group (READ on the group)": (
        "tests/unit/connect/herder/test_internal_requests.py::test_responses_that_are_received_at_the_same_time_have_a_limit_together",
        "tests/integration/connect/test_malformed_members.py::test_a_member_with_a_malformed_state_ends_no_leader",
        "tests/integration/connect/test_malformed_members.py::test_a_malformed_assignment_of_another_leader_ends_no_worker",
        "tests/systems/test_a13_forwarding.py::test_a13_a_process_that_does_not_prove_itself_gets_no_credentials",
        "tests/unit/connect/rest/test_access.py::test_only_a_worker_that_proves_itself_gets_credentials_and_none_gets_the_token_of_a_process",
    ),
    "network of the progress channel": (
        "tests/unit/copy/driver/test_server.py::test_an_unauthenticated_client_gets_nothing",
        "tests/unit/copy/driver/test_server.py::test_a_hello_that_was_recorded_is_not_accepted_again",
        "tests/unit/copy/driver/test_server.py::test_without_tls_a_client_gets_nothing_where_tls_is_required",
    ),
    "network of Spark's ports": (
        "tests/integration/copy/test_spark_standalone.py::test_secrets_of_the_clusters_reach_executors_by_the_channel_only",
        "tests/integration/copy/test_spark_security.py::test_spark_listens_on_loopback_only_and_its_python_workers_on_no_port",
        "tests/integration/copy/test_spark_security.py::test_clients_without_a_token_cannot_exhaust_the_memory_or_end_spark",
    ),
    "malicious source broker": (
        "tests/integration/kafka/test_kafka_client.py::test_a_host_of_the_metadata_gets_nothing_before_it_has_proved_its_name",
        "tests/integration/kafka/test_kafka_client.py::test_without_a_check_of_its_name_a_host_of_the_metadata_gets_what_the_mechanism_sends",
        "tests/unit/kafka/client/test_absurd_answers.py::test_each_call_ends_with_what_was_asked_for_or_a_typed_failure",
        "tests/fuzz/test_hostile_process.py::test_a_hostile_source_is_reported_and_harms_no_other_flow",
        "tests/fuzz/test_hostile_source.py::test_every_call_ends_with_a_result_or_a_typed_failure",
    ),
    "malicious target broker": (
        "tests/faults/test_malicious_target.py::test_a_malicious_target_ends_no_flow_into_another_one",
        "tests/faults/test_malicious_target.py::test_no_absurd_answer_is_asked_for_again_and_again",
        "tests/unit/mirror/process/test_maker.py::test_a_target_that_answers_its_first_request_with_an_error_postpones_its_own_flows",
        "tests/unit/kafka/client/test_answer_checks.py::test_an_array_of_two_billion_items_in_a_small_frame_is_refused",
        "tests/fuzz/test_hostile_source.py::test_every_call_ends_with_a_result_or_a_typed_failure",
    ),
    "plugin": ("tests/unit/connect/test_plugin_process.py::test_no_error_of_a_plugin_blocks_the_worker",),
    "package index, base image, artifacts": (
        "tests/unit/test_dependencies.py::test_every_pinned_package_has_hashes",
        "tests/unit/test_dependencies.py::test_the_base_of_the_image_is_pinned_by_its_digest",
    ),
}


def test_each_behaviour_has_a_test() -> None:
    shown = set()
    for file in (ROOT / "tests" / "integration" / "test_mm2_behaviours").glob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and (name := re.match(r"test((?:_\d\d)+)_", node.name)):
                shown |= set(map(int, name[1].strip("_").split("_")))
            if isinstance(node, ast.FunctionDef):
                shown |= set(map(int, re.findall(r"[Bb]ehaviour (\d+)", ast.get_docstring(node) or "")))
    assert set(BEHAVIOURS) - shown == set()


def test_each_weakness_has_one_decision() -> None:
    text = (ROOT / "docs" / "explanation" / "weaknesses.md").read_text(encoding="utf-8")
    assert sorted(map(int, re.findall(r"^\| (\d\d?) \|", text, re.MULTILINE))) == list(range(1, 33))


def test_each_attacker_has_existing_tests() -> None:
    text = (ROOT / "docs" / "explanation" / "threat-model.md").read_text(encoding="utf-8")
    rows = [row.split(" | ") for row in text.splitlines() if row.startswith("| ")][2:]
    assert [row[0].removeprefix("| ") for row in rows] == list(ATTACKERS)
    for attacker, tests in ATTACKERS.items():
        assert tests, attacker
        for file, _, test in (name.partition("::") for name in tests):
            source = (ROOT / file).read_text(encoding="utf-8")
            assert re.search(rf"^def {test}\(", source, re.MULTILINE), f"{file}::{test}"
