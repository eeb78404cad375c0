"""Index files that are changed by hand, with the right checksums."""

import struct

import numpy as np

MASK = (1 << 64) - 1
NONE = 0xFFFFFFFF
# The header: the name of each field, its format and place.
FIELDS = {
    "file_bytes": ("Q", 16),
    "dim": ("I", 24),
    "degree": ("I", 28),
    "alpha": ("f", 32),
    "neighbours": ("I", 36),
    "success": ("f", 40),
    "walk_rounds": ("I", 44),
    "recall": ("f", 48),
    "storage": ("I", 64),
    "codes": ("I", 68),
    "points": ("Q", 72),
    "ids": ("Q", 80),
    "dead_count": ("Q", 88),
    "list_width": ("Q", 96),
    "stride": ("Q", 104),
    "walk_success": ("d", 120),
    "step": ("f", 128),
    "has_codes": ("I", 132),
    "lists_stale": ("I", 136),
    "medoid": ("I", 140),
}
SECTIONS = ("vectors", "halves", "codes", "centre", "graph", "lists", "labels", "places", "marks", "tree")
SECTIONS_AT, CHECKSUM_AT = 144, 384


def checksum(data: bytes) -> int:
    def mix(h: int, word: int) -> int:
        h = ((h ^ word) * 0x9E3779B97F4A7C15) & MASK
        return h ^ (h >> 29)

    lanes = [1, 2, 3, 4]
    whole = len(data) // 32 * 32
    for at in range(0, whole, 32):
        lanes = [mix(lane, word) for lane, word in zip(lanes, struct.unpack_from("<4Q", data, at))]
    h = len(data)
    for byte in data[whole:]:
        h = mix(h, byte)
    for lane in lanes:
        h = mix(h, lane)
    return h


class File:
    """An index file whose fields and sections can be changed; ``sealed`` makes all checksums right again."""

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)

    def __getitem__(self, name: str) -> float:
        kind, at = FIELDS[name]
        value: float = struct.unpack_from("<" + kind, self.data, at)[0]
        return value

    def __setitem__(self, name: str, value: float) -> None:
        kind, at = FIELDS[name]
        struct.pack_into("<" + kind, self.data, at, value)

    def place(self, section: str) -> tuple[int, int]:
        offset, size, _ = struct.unpack_from("<3Q", self.data, SECTIONS_AT + 24 * SECTIONS.index(section))
        return offset, size

    def move(self, section: str, offset: int, size: int) -> None:
        struct.pack_into("<2Q", self.data, SECTIONS_AT + 24 * SECTIONS.index(section), offset, size)

    def values(self, section: str, dtype: str) -> np.ndarray:
        offset, size = self.place(section)
        return np.frombuffer(self.data, dtype, size // np.dtype(dtype).itemsize, offset)

    def sealed(self) -> bytes:
        for number, section in enumerate(SECTIONS):
            offset, size = self.place(section)
            if offset + size <= len(self.data):
                right = checksum(bytes(self.data[offset : offset + size]))
                struct.pack_into("<Q", self.data, SECTIONS_AT + 24 * number + 16, right)
        struct.pack_into("<Q", self.data, CHECKSUM_AT, checksum(bytes(self.data[:CHECKSUM_AT])))
        return bytes(self.data)
