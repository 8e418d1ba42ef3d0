"""The time inside a record of steady traffic: a mark that no other bytes of it look like, then when it was made."""

import re
import struct

MARK = b"\xfe\xedMM2@"
STAMP = struct.Struct(">q")
"""Behind the mark: time.monotonic_ns(), which is one clock for all processes of a machine."""
STAMPS = re.compile(re.escape(MARK) + b"(.{8})", re.DOTALL)

VALUE_BYTES = 200
"""Of each record, mark and time included."""
