"""TLS and SASL settings, the same for every Kafka client, for Connect workers and for MirrorMaker's own top level.

Names, types, defaults and bounds are those of Kafka 4.3.0 (``SslConfigs``, ``SaslConfigs``, ``CommonClientConfigs``).
"""

from __future__ import annotations

from typing import Final

from mm2.config.configdef import ConfigDef, Importance, Type, between, distinct, one_of_any_case

HIGH, MEDIUM, LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW
_OAUTH: Final = "org.apache.kafka.common.security.oauthbearer"

SECURITY_PROTOCOL_CONFIG: Final = ConfigDef().define(
    "security.protocol",
    Type.STRING,
    "PLAINTEXT",
    one_of_any_case("SASL_SSL", "PLAINTEXT", "SSL", "SASL_PLAINTEXT"),
    MEDIUM,
    "Protocol of the connections to brokers: with or without TLS, with or without SASL.",
)

TLS_CONFIG: Final = (
    ConfigDef()
    .define(
        "ssl.protocol",
        Type.STRING,
        "TLSv1.3",
        None,
        MEDIUM,
        "Java's TLS context; ssl.enabled.protocols selects the versions.",
    )
    .define("ssl.provider", Type.STRING, None, None, MEDIUM, "Java security provider; has no effect here.")
    .define(
        "ssl.cipher.suites",
        Type.LIST,
        [],
        distinct(),
        LOW,
        "Cipher suites by their names in Java or OpenSSL; empty = the defaults. A version of TLS without a suite in the list is disabled.",
    )
    .define("ssl.enabled.protocols", Type.LIST, "TLSv1.2,TLSv1.3", distinct(), MEDIUM, "Enabled TLS versions.")
    .define("ssl.keystore.type", Type.STRING, "JKS", None, MEDIUM, "Format of the key store: JKS, PKCS12 or PEM.")
    .define("ssl.keystore.location", Type.STRING, None, None, HIGH, "File with the client's own certificate and key.")
    .define("ssl.keystore.password", Type.PASSWORD, None, None, HIGH, "Password of the key store file.")
    .define("ssl.key.password", Type.PASSWORD, None, None, HIGH, "Password of the private key.")
    .define("ssl.keystore.key", Type.PASSWORD, None, None, HIGH, "Private key as PEM text instead of a file.")
    .define("ssl.keystore.certificate.chain", Type.PASSWORD, None, None, HIGH, "Own certificates as PEM text.")
    .define("ssl.truststore.certificates", Type.PASSWORD, None, None, HIGH, "Trusted certificates as PEM text.")
    .define("ssl.truststore.type", Type.STRING, "JKS", None, MEDIUM, "Format of the trust store: JKS, PKCS12 or PEM.")
    .define("ssl.truststore.location", Type.STRING, None, None, HIGH, "File with the certificates to trust.")
    .define("ssl.truststore.password", Type.PASSWORD, None, None, HIGH, "Password of the trust store file.")
    .define("ssl.keymanager.algorithm", Type.STRING, "SunX509", None, LOW, "Java key manager; has no effect here.")
    .define("ssl.trustmanager.algorithm", Type.STRING, "PKIX", None, LOW, "Java trust manager; has no effect here.")
    .define(
        "ssl.endpoint.identification.algorithm",
        Type.STRING,
        "https",
        None,
        LOW,
        "https = the broker's certificate must contain its host name; empty = not verified.",
    )
    .define("ssl.secure.random.implementation", Type.STRING, None, None, LOW, "Java random source; no effect here.")
    .define(
        "ssl.engine.factory.class", Type.CLASS, None, None, LOW, "Java class that creates TLS engines; refused here."
    )
)

SASL_CONFIG: Final = (
    ConfigDef()
    .define("sasl.kerberos.service.name", Type.STRING, None, None, MEDIUM, "Kerberos principal name of the brokers.")
    .define("sasl.kerberos.kinit.cmd", Type.STRING, "/usr/bin/kinit", None, LOW, "Path of the kinit command.")
    .define(
        "sasl.kerberos.ticket.renew.window.factor",
        Type.DOUBLE,
        0.8,
        None,
        LOW,
        "Share of a ticket's lifetime after which it is renewed.",
    )
    .define(
        "sasl.kerberos.ticket.renew.jitter", Type.DOUBLE, 0.05, None, LOW, "Random share added to the renewal time."
    )
    .define(
        "sasl.kerberos.min.time.before.relogin",
        Type.LONG,
        60000,
        None,
        LOW,
        "Minimum time between two logins, milliseconds.",
    )
    .define(
        "sasl.login.refresh.window.factor",
        Type.DOUBLE,
        0.8,
        between(0.5, 1.0),
        LOW,
        "Share of a token's lifetime after which it is refreshed.",
    )
    .define(
        "sasl.login.refresh.window.jitter",
        Type.DOUBLE,
        0.05,
        between(0.0, 0.25),
        LOW,
        "Random share added to the refresh time.",
    )
    .define(
        "sasl.login.refresh.min.period.seconds",
        Type.SHORT,
        60,
        between(0, 900),
        LOW,
        "Minimum time between two token refreshes, seconds.",
    )
    .define(
        "sasl.login.refresh.buffer.seconds",
        Type.SHORT,
        300,
        between(0, 3600),
        LOW,
        "Time before the expiry of a token in which it is not refreshed, seconds.",
    )
    .define(
        "sasl.mechanism", Type.STRING, "GSSAPI", None, MEDIUM, "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, …"
    )
    .define("sasl.jaas.config", Type.PASSWORD, None, None, MEDIUM, "Login module and its options, in JAAS syntax.")
    .define("sasl.client.callback.handler.class", Type.CLASS, None, None, MEDIUM, "Java class; has no effect here.")
    .define("sasl.login.callback.handler.class", Type.CLASS, None, None, MEDIUM, "How OAUTHBEARER tokens are obtained.")
    .define("sasl.login.class", Type.CLASS, None, None, MEDIUM, "Java login class; has no effect here.")
    .define("sasl.login.connect.timeout.ms", Type.INT, None, None, LOW, "Timeout of a connection to the token server.")
    .define("sasl.login.read.timeout.ms", Type.INT, None, None, LOW, "Timeout of a response of the token server.")
    .define("sasl.login.retry.backoff.max.ms", Type.LONG, 10000, None, LOW, "Maximum back-off between token requests.")
    .define("sasl.login.retry.backoff.ms", Type.LONG, 100, None, LOW, "Initial back-off between token requests.")
    .define(
        "sasl.oauthbearer.jwt.retriever.class",
        Type.CLASS,
        f"{_OAUTH}.DefaultJwtRetriever",
        None,
        MEDIUM,
        "Class that retrieves tokens.",
    )
    .define(
        "sasl.oauthbearer.jwt.validator.class",
        Type.CLASS,
        f"{_OAUTH}.DefaultJwtValidator",
        None,
        MEDIUM,
        "Class that validates a retrieved token.",
    )
    .define("sasl.oauthbearer.scope", Type.STRING, None, None, MEDIUM, "Scope requested from the token server.")
    .define(
        "sasl.oauthbearer.client.credentials.client.id",
        Type.STRING,
        None,
        None,
        MEDIUM,
        "Client id for the token server.",
    )
    .define(
        "sasl.oauthbearer.client.credentials.client.secret",
        Type.PASSWORD,
        None,
        None,
        MEDIUM,
        "Client secret for the token server.",
    )
    .define(
        "sasl.oauthbearer.assertion.algorithm",
        Type.STRING,
        "RS256",
        one_of_any_case("ES256", "RS256"),
        MEDIUM,
        "Signature algorithm of the assertion sent to the token server.",
    )
    .define("sasl.oauthbearer.assertion.claim.aud", Type.STRING, None, None, MEDIUM, "Audience of the assertion.")
    .define(
        "sasl.oauthbearer.assertion.claim.exp.seconds",
        Type.INT,
        300,
        between(0, 86400),
        LOW,
        "Lifetime of the assertion, seconds.",
    )
    .define("sasl.oauthbearer.assertion.claim.iss", Type.STRING, None, None, MEDIUM, "Issuer of the assertion.")
    .define(
        "sasl.oauthbearer.assertion.claim.jti.include",
        Type.BOOLEAN,
        False,
        None,
        MEDIUM,
        "Include an id in each assertion.",
    )
    .define(
        "sasl.oauthbearer.assertion.claim.nbf.seconds",
        Type.INT,
        60,
        between(0, 3600),
        LOW,
        "How far before now the assertion becomes valid, seconds.",
    )
    .define("sasl.oauthbearer.assertion.claim.sub", Type.STRING, None, None, MEDIUM, "Subject of the assertion.")
    .define("sasl.oauthbearer.assertion.file", Type.STRING, None, None, MEDIUM, "File with a ready-made assertion.")
    .define(
        "sasl.oauthbearer.assertion.private.key.file", Type.STRING, None, None, MEDIUM, "Key to sign the assertion."
    )
    .define(
        "sasl.oauthbearer.assertion.private.key.passphrase",
        Type.PASSWORD,
        None,
        None,
        MEDIUM,
        "Passphrase of that key.",
    )
    .define(
        "sasl.oauthbearer.assertion.template.file",
        Type.STRING,
        None,
        None,
        MEDIUM,
        "File with claims for the assertion.",
    )
    .define("sasl.oauthbearer.scope.claim.name", Type.STRING, "scope", None, LOW, "Name of the token's scope claim.")
    .define("sasl.oauthbearer.sub.claim.name", Type.STRING, "sub", None, LOW, "Name of the token's subject claim.")
    .define(
        "sasl.oauthbearer.token.endpoint.url",
        Type.STRING,
        None,
        None,
        MEDIUM,
        "URL of the token server, or file: URL of a token.",
    )
    .define("sasl.oauthbearer.jwks.endpoint.url", Type.STRING, None, None, MEDIUM, "URL of the token server's keys.")
    .define(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        Type.LONG,
        3600000,
        None,
        LOW,
        "Interval between refreshes of the keys.",
    )
    .define(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        Type.LONG,
        10000,
        None,
        LOW,
        "Maximum back-off between reads.",
    )
    .define(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", Type.LONG, 100, None, LOW, "Initial back-off between reads."
    )
    .define("sasl.oauthbearer.clock.skew.seconds", Type.INT, 30, None, LOW, "Allowed clock skew, seconds.")
    .define(
        "sasl.oauthbearer.allow.unverified.audience",
        Type.BOOLEAN,
        False,
        None,
        MEDIUM,
        "Accept tokens for any audience.",
    )
    .define(
        "sasl.oauthbearer.allow.unverified.issuer", Type.BOOLEAN, False, None, MEDIUM, "Accept tokens of any issuer."
    )
    .define("sasl.oauthbearer.expected.audience", Type.LIST, [], distinct(), LOW, "Accepted audiences of a token.")
    .define("sasl.oauthbearer.expected.issuer", Type.STRING, None, None, LOW, "Required issuer of a token.")
    .define(
        "sasl.oauthbearer.header.urlencode", Type.BOOLEAN, False, None, LOW, "URL-encode the credentials in the header."
    )
)
