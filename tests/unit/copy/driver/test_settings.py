"""Spark's settings: authentication in every mode, encryption between machines unless the operator states otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from mm2.config.definitions.values import ConfigException
from mm2.copy.driver.settings import is_encrypted, spark_props

STANDALONE = {"spark.master": "spark://s:7077"}
SECRET = {"spark.authenticate.secret": "s3cret"}
PROTECTED = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.saslFallback": "false",
}


def has(props: dict[str, str], wanted: dict[str, str]) -> bool:
    return wanted.items() <= props.items()


@pytest.fixture(autouse=True)
def no_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)


@pytest.mark.parametrize("master", ["local", "local[3]", "local[*, 2]"])
def test_local_mode_is_authenticated_whatever_the_file_says(master: str) -> None:
    props = spark_props(
        {"spark.master": master, "spark.authenticate": "false", "spark.network.crypto.enabled": "false"}
    )
    assert has(props, {**PROTECTED, "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"})
    assert not [key for key in props if key.startswith("spark.authenticate.")], "Spark generates the secret"


@pytest.mark.parametrize("master", ["yarn", "k8s://https://api:6443"])
def test_clusters_that_distribute_a_generated_secret_are_authenticated_and_encrypted(master: str) -> None:
    props = spark_props({"spark.master": master})
    assert has(props, {**PROTECTED, "spark.io.encryption.enabled": "true"})
    assert "spark.authenticate.secret" not in props
    assert is_encrypted(props)


@pytest.mark.parametrize(
    ("key", "other"),
    [
        ("spark.speculation", "true"),
        ("spark.task.maxFailures", "4"),
        ("spark.excludeOnFailure.enabled", "true"),
        ("spark.excludeOnFailure.application.enabled", "true"),
    ],
)
@pytest.mark.parametrize("master", ["local[3]", "yarn"])
def test_a_task_has_one_attempt(master: str, key: str, other: str) -> None:
    assert has(spark_props({"spark.master": master}), {"spark.speculation": "false", "spark.task.maxFailures": "1"})
    with pytest.raises(ConfigException, match=f"Invalid value {other} for configuration {key}: it must be"):
        spark_props({"spark.master": master, key: other})


def test_an_executor_that_hangs_is_removed_soon_unless_the_user_has_own_times() -> None:
    interval, limit = "spark.executor.heartbeatInterval", "spark.storage.blockManagerHeartbeatTimeoutMs"
    assert has(spark_props({**STANDALONE, **SECRET}), {interval: "3s", limit: "20s"})
    assert limit not in spark_props({**STANDALONE, **SECRET, interval: "30s"}), "it would be taken for lost"
    assert limit not in spark_props({"spark.master": "local[3]"})


def test_each_local_cluster_has_its_own_secret() -> None:
    first, second = (spark_props({"spark.master": "local-cluster[2,1,512]"}) for _ in range(2))
    assert has(first, PROTECTED)
    assert len(first["spark.authenticate.secret"]) == 64
    assert first["spark.authenticate.secret"] != second["spark.authenticate.secret"]


def test_a_standalone_cluster_needs_its_secret() -> None:
    assert has(spark_props({**STANDALONE, **SECRET}), {**PROTECTED, **SECRET, "spark.io.encryption.enabled": "true"})
    for stated in ({}, {"spark.authenticate": "true"}, {"spark.ssl.rpc.enabled": "true"}):
        with pytest.raises(ConfigException, match=r"^Missing required configuration spark\.authenticate\.secret: "):
            spark_props({**STANDALONE, **stated})


def test_what_the_file_states_is_kept() -> None:
    props = spark_props({**STANDALONE, **SECRET, "spark.network.crypto.enabled": "false"})
    assert props["spark.network.crypto.enabled"] == "false"
    assert props["spark.authenticate"] == "true"
    assert not is_encrypted(props)
    with_fallback = spark_props({**STANDALONE, **SECRET, "spark.network.crypto.saslFallback": "true"})
    assert with_fallback["spark.network.crypto.saslFallback"] == "true"


def test_tls_is_encryption_too() -> None:
    props = spark_props({"spark.master": "yarn", "spark.ssl.rpc.enabled": "true"})
    assert props["spark.authenticate"] == "true"
    assert "spark.network.crypto.enabled" not in props
    assert is_encrypted(props)


def test_no_encryption_between_machines_has_to_be_stated() -> None:
    with pytest.raises(
        ConfigException, match=r"spark\.authenticate: .* set spark\.network\.crypto\.enabled=false, too\.$"
    ):
        spark_props({**STANDALONE, "spark.authenticate": "false"})
    stated = {"spark.authenticate": "false", "spark.network.crypto.enabled": "false"}
    assert not is_encrypted(spark_props({**STANDALONE, **stated}))


def test_a_master_on_loopback_may_be_unencrypted_but_not_silently_without_authentication() -> None:
    with pytest.raises(ConfigException, match="secret"):
        spark_props({"spark.master": "spark://127.0.0.1:7077"})
    props = spark_props({"spark.master": "spark://127.0.0.1:7077", "spark.authenticate": "false"})
    assert props["spark.driver.bindAddress"] == "127.0.0.1"


@pytest.mark.parametrize("variable", ["SPARK_HOME", "SPARK_CONF_DIR"])
def test_settings_of_spark_defaults_conf_count_as_stated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    folder = tmp_path / "conf" if variable == "SPARK_HOME" else tmp_path
    folder.mkdir(exist_ok=True)
    file = folder / "spark-defaults.conf"
    file.write_text("# of the operator\nspark.authenticate.secret   from-there\nspark.network.crypto.enabled  false \n")
    monkeypatch.setenv(variable, str(tmp_path))
    props = spark_props(STANDALONE)
    assert props["spark.authenticate"] == "true"
    assert not {"spark.authenticate.secret", "spark.network.crypto.enabled"} & props.keys(), "spark-submit reads them"
    file.write_bytes(b"\xff")
    with pytest.raises(ConfigException, match=r"Cannot read .*spark-defaults\.conf"):
        spark_props(STANDALONE)
