"""Touch free memory before a measurement, so that the first contender does not pay for it; and memory for the logs."""

import mmap
import shutil
from pathlib import Path

import psutil

_SHARED = Path("/dev/shm")  # noqa: S108 - the folders in it are made by mkdtemp
_LOGS_BYTES = 12 << 30  # 4 GB at the source, as much on the target, half of that in what is being deleted
_SPARED_BYTES = 1 << 30
_CHUNK_BYTES = 64 << 20


def touch_free_memory() -> int:
    """Write to nearly all free memory once and release it; return the number of bytes.

    On a fresh virtual machine the host maps a page when the guest first touches it, which doubles the brokers' system
    time.
    """
    size = max(0, psutil.virtual_memory().free - _SPARED_BYTES)
    if size:
        chunk = bytes(_CHUNK_BYTES)
        with mmap.mmap(-1, size) as memory:
            for start in range(0, size - _CHUNK_BYTES + 1, _CHUNK_BYTES):
                memory[start : start + _CHUNK_BYTES] = chunk
    return size


def folder() -> Path | None:
    """Where files lie in memory, when there is room for the largest shape; None otherwise.

    A disk that is slower than the contenders would limit the measurement: Linux blocks writers during write-back.
    """
    try:
        room = min(shutil.disk_usage(_SHARED).free, psutil.virtual_memory().available)
    except OSError:
        return None
    return _SHARED if room >= _LOGS_BYTES else None


def holds(place: Path) -> bool:
    """Whether a path is in memory."""
    return place.is_relative_to(_SHARED)
