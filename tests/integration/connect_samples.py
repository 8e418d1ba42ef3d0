"""Texts, JSON, patterns and formats to compare with Kafka's own classes (see connect_cases)."""

# fmt: off
ODD_JSON = (
    "", " ", "null", "007", "-01", "[00.5, 010]", '"007"', "1 2", "1x", "12]", "tru", "true]", "truex", "{} {", "nul",
    "[1,2,]", '{"a":1,"a":2}', '{"a":1', "'a'", "NaN", "Infinity", "1.", ".5", "+1", "1e5", "1E400", "-0", "-0.0",
    "123456789012345678901234567890", "0.1", "1.0", "100000000000000000000.5", '"\\ud83d\\ude00"', '"\\u0041\\n"',
    '"a\tb"', "[[[[[[1]]]]]]", '{"schema":null,"payload":1}', '{"schema":{"type":"int8"},"payload":1,"x":2}',
    '{"schema":{"type":"float"},"payload":0.1}', '{"schema":{"type":"float"},"payload":16777217}',
    '{"schema":{"type":"float"},"payload":1e-46}', '{"schema":{"type":"float"},"payload":3.4028235677973366e38}',
    '{"schema":{"type":"double"},"payload":1e-400}', '{"schema":{"type":"int64"},"payload":1e30}',
    '{"schema":{"type":"int64"},"payload":123456789012345678901}', '{"schema":{"type":"int32"},"payload":1e999999}',
    '{"schema":{"type":"bytes"},"payload":"AQ"}', '{"schema":{"type":"bytes"},"payload":" A Q I = "}',
    '{"schema":{"type":"array"},"payload":[]}',
    '{"schema":{"type":"array","items":{"type":"int8"}},"payload":{"a":1}}',
    '{"schema":{"type":"map","keys":{"type":"string"}},"payload":{}}',
    '{"schema":{"type":"struct","fields":[{"type":"int8"}]},"payload":{}}',
    '{"schema":{"type":"struct","fields":[{"type":"int8","field":"a"},{"type":"int8","field":"a"}]},"payload":{"a":1}}',
    '{"schema":{"type":"struct","fields":[]},"payload":{"a":1}}',
    '{"schema":{"type":"int32","name":"org.apache.kafka.connect.data.Date"},"payload":1.0}',
    '{"schema":{"type":"int64","name":"org.apache.kafka.connect.data.Timestamp","version":1},"payload":-1}',
    '{"schema":{"type":"bytes","name":"org.apache.kafka.connect.data.Decimal","parameters":{"scale":"2"}},"payload":"AQ=="}',
    '{"schema":{"type":"bytes","name":"org.apache.kafka.connect.data.Decimal","parameters":{"scale":"2"}},"payload":1.5}',
    '{"schema":{"type":"bytes","name":"org.apache.kafka.connect.data.Decimal","parameters":{"scale":2}},"payload":1.5}',
    '{"schema":{"type":"bytes","name":"org.apache.kafka.connect.data.Decimal"},"payload":"AQ=="}',
    '{"schema":{"type":"int8","default":300},"payload":1}',
    '{"schema":{"type":"string","optional":"yes","version":1.5,"doc":7,"name":8},"payload":"x"}',
)

TEXTS = (
    "1", "-1", "+1", "127", "128", "-129", "32768", "2147483648", "9223372036854775807", "9223372036854775808", "1.5",
    "-0.0", "0.1", "1e39", "1e400", "1e-400", "1e-46", "1E5", "1e", "1.", ".5", "-.5", "1_000", "0x10", "1f", "--1",
    "+", "100000000000000000000", "1.0", "1.00", "5e-1", "00012", "٣", "12 ", " 12", "12\t", "12a", "a12", "1,2",
    "1:2", "true", "TRUE", " true ", "false", "null", " null", "nullx", "true}", "[true", "", " ", "\t", '"', '""',
    '"a"', '"1"', "2020-02-29", "2019-02-29", "2020-13-01", "2020-1-001", "9999-12-31", "1582-10-15",
    "10:11:12.345Z", "10:11:12.345", "1:1:1.000001Z", "23:59:59.999Z", "2020-01-02T03:04:05.678Z",
    "2020-01-02T03:04:05Z", "1969-12-31", "1969-12-31T23:59:59.999Z", "2020-01-02T03\\:04\\:05.678Z",
    "10\\:11\\:12.345Z", "[]", "[ ]", "[1]", "[1,2,3]", "[1, 300]", "[1, 2.5]", '[1, "a"]', "[1,null]", "[null]",
    "[,]", "[1,]", "[1 2]", "[[1],[2]]", '["a","b"]', '["a\\"b"]', "[a]", "[true,false]", "[true,1]", "[1,2]x",
    "[1,2", "[2020-01-02]", '["2020-01-02"]', "[1]]", '["2020-01-02","10:11:12.345Z"]', '[1,"2020-01-02"]',
    '["2020-01-02",1]', "[10:11:12.345Z]", '["10:11:12.345Z", 5]', "{}", "{ }", '{"a":1}', '{"a":1,"b":2.5}',
    '{"a":null}', '{"a":1,"b":null}', "{1:2,3:4}", "{1:2,300:4}", "{a:1}", '{"a"}', '{"a":1,}', '{"a":1 "b":2}',
    "{:1}", "{null:1}", '{"a":[1,2],"b":[3]}', '{"a":{"b":{}}}', '{"a":1', "{,}", '{"a":true}x', '{"a\\:b":1}',
    '{ "a" : 1 , "b" : 2 }', '[{"a":1},{"b":2}]', '[{"a":1},{"b":"c"}]', '{"k":"v","k":"w"}', '{"a":"1"}', "\\",
    "\\\\", '\\"', "a\\:b", "a:b", "a,b", "a{b", "ä", "😀", "1😀", "[😀]", "https://x.y/z?a=[1]", "12:30", "1-2", "+-1",
    "999999999999999999999999999999999999999999999999999999999999", "[1e39, 1]", "[1, 9223372036854775808]",
    "[9223372036854775808]", "[1.5, 1e39]", "[0.1,2]", '[1.5,"2020-01-02"]', "-", "-a", "+a",
)

PIECES = (
    "1", "-2.5", "300", "true", "null", '"', '"', "a", " ", ",", ":", "[", "]", "{", "}", "\\", "2020-01-02", '"b"',
    "[1]", "{}",
)

REGEXES = (
    "foo-(\\d)", "(.*)", "(a|ab)(c|bcd)?", "t.*", "(?<n>[a-c.]+)", "[a-z&&[^t]]+.*", "", "x?", "(", "a{2",
    "(top)(ic)?(x)?",
)

REPLACEMENTS = (
    "$1", "new", "$0-x", "\\$1", "${n}", "$2", "$10", "a$", "x\\", "${q}", "$1$1", "",
)

FORMATS = (
    "yyyyMMdd", "yyyy-MM-dd'T'HH:mm:ss.SSS", "yy", "y", "M", "MMM", "MMMM", "d", "EEE", "EEEE", "h:mm a", "k", "K",
    "D", "w", "W", "F", "u", "YYYY", "G", "z", "Z", "X", "XX", "XXX", "SSSSSS", "S", "''", "'it''s'", "yyyyy", "L",
    "zzzz", "XXXX", "b", "'a",
)
# fmt: on
