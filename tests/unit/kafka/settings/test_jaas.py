import pytest

from mm2.kafka.settings.jaas import JaasError, parse_jaas


def test_module_flag_and_options() -> None:
    entry = parse_jaas("org.x.PlainLoginModule required username=\"alice\" password='s3 cret';")
    assert entry.module == "org.x.PlainLoginModule"
    assert entry.control_flag == "required"
    assert entry.options == {"username": "alice", "password": "s3 cret"}


def test_line_breaks_comments_and_flags_in_capitals() -> None:
    entry = parse_jaas('M REQUIRED // the only one\n  useKeyTab=true /* yes */\n  keyTab="/etc/k=1;x" ;\n')
    assert entry.control_flag == "required"
    assert entry.options == {"useKeyTab": "true", "keyTab": "/etc/k=1;x"}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r'"a\"b"', 'a"b'),
        (r'"a\\b"', "a\\b"),
        (r'"\101\n"', "A\n"),
        ('";"', ";"),
        ('"="', "="),
        ('""', ""),
        ("a-b_c$1", "a-b_c$1"),
    ],
)
def test_quoting_as_in_java(written: str, meant: str) -> None:
    assert parse_jaas(f"M required p={written};").options == {"p": meant}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        ";",
        "M",
        "M;",
        "M username=x;",
        "M required",
        "M required a=b",
        "M required a;",
        "M required a=;",
        "M required a=b c;",
        'M required a="b;',
        "M required a=b; N required c=d;",
    ],
)
def test_bad_text_is_refused(text: str) -> None:
    with pytest.raises(JaasError):
        parse_jaas(text)


@pytest.mark.parametrize(
    "text", ["M required password=hunter2", 'M required password="hunter2', "M required password=hunter2 x;"]
)
def test_refusal_never_quotes_a_secret(text: str) -> None:
    with pytest.raises(JaasError) as raised:
        parse_jaas(text)
    assert "hunter2" not in str(raised.value)


def test_options_are_not_shown() -> None:
    assert "hunter2" not in repr(parse_jaas("M required password=hunter2;"))
