"""Values as certificates have them: DER, the one way to write each in bytes (ITU-T X.690)."""

from __future__ import annotations

import datetime

LAST_YEAR_OF_UTC_TIME = 2049  # RFC 5280: later times are written with all digits of the year


def integer(value: int) -> bytes:
    """A number that is not negative."""
    return _tagged(0x02, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def identifier(dotted: str) -> bytes:
    """An object identifier, such as ``2.5.4.3``."""
    first, second, *rest = map(int, dotted.split("."))
    return _tagged(0x06, bytes([40 * first + second]) + b"".join(map(_in_sevens, rest)))


def yes() -> bytes:
    """True."""
    return _tagged(0x01, b"\xff")


def text(value: str) -> bytes:
    """Text in UTF-8."""
    return _tagged(0x0C, value.encode())


def time(value: datetime.datetime) -> bytes:
    """A time in UTC, to the second."""
    if value.year <= LAST_YEAR_OF_UTC_TIME:
        return _tagged(0x17, f"{value:%y%m%d%H%M%S}Z".encode())
    return _tagged(0x18, f"{value:%Y%m%d%H%M%S}Z".encode())


def bits(value: bytes) -> bytes:
    """A string of whole bytes, where bits are asked for."""
    return _tagged(0x03, b"\0" + value)


def octets(value: bytes) -> bytes:
    """A string of bytes."""
    return _tagged(0x04, value)


def sequence(*parts: bytes) -> bytes:
    """Values one after the other."""
    return _tagged(0x30, b"".join(parts))


def set_of(*parts: bytes) -> bytes:
    """Values of a set, in the order of their bytes."""
    return _tagged(0x31, b"".join(sorted(parts)))


def explicit(number: int, value: bytes) -> bytes:
    """A value under a tag of its context's."""
    return _tagged(0xA0 | number, value)


def implicit(number: int, content: bytes) -> bytes:
    """A value whose own tag one of its context's replaces."""
    return _tagged(0x80 | number, content)


def _tagged(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + content


def _in_sevens(number: int) -> bytes:
    """A part of an identifier: seven bits to a byte, of which all but the last have the eighth."""
    found = [number & 0x7F]
    while number := number >> 7:
        found.insert(0, 0x80 | (number & 0x7F))
    return bytes(found)
