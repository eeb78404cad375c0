"""The form that nearly every client sends: one picture, whole, in one part. What is different is for a real parser."""

import re

LARGEST = 2**20  # bytes of a body that is held in memory

_KIND = re.compile(rb"multipart/form-data; ?boundary=([0-9A-Za-z'()+_.-]{1,70})", re.IGNORECASE)
_PICTURE = re.compile(  # no line is so long that a real parser would refuse it
    rb"(?i:content-disposition): ?form-data; ?name=(?:\"image\"|image); ?"
    rb"filename=(?:\"[^\"\\\r\n]{1,2000}\"|[^\"\\\r\n;]{1,2000})"
    rb"(?:\r\n(?i:content-type): ?[\w.+/-]{1,2000})?"
)


def boundary(headers: dict[bytes, bytes]) -> bytes | None:
    """Return what stands between the parts of a form; None if the head does not promise one of moderate length.

    >>> boundary({b"content-type": b"multipart/form-data; boundary=x", b"content-length": b"90"})
    b'x'
    """
    kind, length = _KIND.fullmatch(headers.get(b"content-type", b"")), headers.get(b"content-length", b"")
    known = kind is not None and length.isdigit() and len(length) < 9 and int(length) <= LARGEST
    return kind[1] if known and kind is not None else None


def only_picture(body: bytes, between: bytes) -> bytes | None:
    """Return the file in the field ``image`` of a form that has nothing else; None if it is not so plain.

    >>> head = b'--x\\r\\nContent-Disposition: form-data; name="image"; filename="a.jpg"\\r\\n\\r\\n'
    >>> only_picture(head + b"pixels\\r\\n--x--\\r\\n", b"x")
    b'pixels'
    """
    first, end = b"--%b\r\n" % between, b"\r\n--%b" % between
    if not body.startswith(first):
        return None
    head, begin, close = len(first), body.find(b"\r\n\r\n"), body.find(end, len(first))
    if begin < 0 or close < begin + 4 or body[close + len(end) :] not in (b"--", b"--\r\n"):
        return None
    return body[begin + 4 : close] if _PICTURE.fullmatch(body, head, begin) else None
