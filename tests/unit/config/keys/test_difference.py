"""Reported changes of the configuration file, without secrets."""

from __future__ import annotations

from mm2.config.definitions.values import ConfigException
from mm2.config.keys.difference import difference

ALIASES = ("A", "B", "A.B")


def test_changed_new_and_removed_keys_are_shown_in_order() -> None:
    old = {"A->B.topics": "a.*", "tasks.max": "1", "same": "1"}
    new = {"A->B.topics": "b.*", "B->A.enabled": "true", "same": "1"}
    assert difference(old, new, ALIASES) == [
        "A->B.topics: a.* -> b.*",
        "B->A.enabled: (none) -> true",
        "tasks.max: 1 -> (none)",
    ]


def test_secrets_and_possible_secrets_are_not_shown() -> None:
    keys = [
        "A.sasl.jaas.config",
        "B.consumer.ssl.keystore.password",
        "A->B.source.cluster.ssl.key.password",
        "A->B.producer.override.sasl.jaas.config",
        "sasl.oauthbearer.client.credentials.client.secret",
        "config.providers.vault.param.topics",
        "A->B.my.filter.token",
        "spark.hadoop.fs.s3a.secret.key",
        "unknown",
    ]
    lines = difference(dict.fromkeys(keys, "hunter1"), dict.fromkeys(keys, "hunter2"), ALIASES)
    assert lines == sorted(f"{key}: [hidden] -> [hidden]" for key in keys)


def test_known_keys_are_shown_with_any_prefix() -> None:
    keys = [
        "clusters",
        "A.bootstrap.servers",
        "A.B.bootstrap.servers",
        "A.consumer.isolation.level",
        "A->B.source.consumer.fetch.min.bytes",
        "A->B.source.cluster.security.protocol",
        "A->B.copy.throttle.bytes.per.sec.orders",
        "B.offset.flush.interval.ms",
        "listeners",
    ]
    assert difference({}, dict.fromkeys(keys, "1"), ALIASES) == sorted(f"{key}: (none) -> 1" for key in keys)


def test_user_and_password_of_a_url_are_not_shown_of_a_known_key_either() -> None:
    key = "A.sasl.oauthbearer.token.endpoint.url"
    old, new = "https://ada:hunter2@tokens.example/a@b", "https://tokens.example/a@b, http://hunter3@x"
    expected = f"{key}: https://[hidden]@tokens.example/a@b -> https://tokens.example/a@b, http://[hidden]@x"
    assert difference({key: old}, {key: new}, ALIASES) == [expected]
    assert "hunter2" not in str(ConfigException(key, old, "is wrong"))
