"""The certificate of one run's session.

It is always of the same form, and so is written by what is in :mod:`~muster.security.der` rather than by a library for
all certificates, whose import would take a sixth of a first run's start.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import ipaddress
import secrets

from muster.security import der

CERTIFICATE_DAYS = 3650  # a run may last; the certificate and its key die with the run

EC_PUBLIC_KEY, P256 = der.identifier("1.2.840.10045.2.1"), der.identifier("1.2.840.10045.3.1.7")
ECDSA_WITH_SHA256 = der.sequence(der.identifier("1.2.840.10045.4.3.2"))
COMMON_NAME = der.identifier("2.5.4.3")
SUBJECT_KEY_IDENTIFIER, SUBJECT_ALTERNATIVE_NAME, BASIC_CONSTRAINTS = map(
    der.identifier, ("2.5.29.14", "2.5.29.17", "2.5.29.19")
)
DNS_NAME, IP_ADDRESS = 2, 7  # the kinds of alternative names
VERSION_3 = 2  # as it is written


def make_certificate(host: str) -> tuple[str, str]:
    """A new self-signed certificate and its private key, both PEM, for agents to pin."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    numbers = key.private_numbers()
    point = b"\x04" + b"".join(
        number.to_bytes(32, "big") for number in (numbers.public_numbers.x, numbers.public_numbers.y)
    )
    told = _to_be_signed(host, point)
    signature = key.sign(told, ec.ECDSA(hashes.SHA256()))
    certificate = der.sequence(told, ECDSA_WITH_SHA256, der.bits(signature))
    secret = der.octets(numbers.private_value.to_bytes(32, "big"))
    inner = der.sequence(der.integer(1), secret, der.explicit(1, der.bits(point)))
    private = der.sequence(der.integer(0), der.sequence(EC_PUBLIC_KEY, P256), der.octets(inner))
    return _pem("CERTIFICATE", certificate), _pem("PRIVATE KEY", private)


def _to_be_signed(host: str, point: bytes) -> bytes:
    """Everything in a certificate but its signature; ``point`` is the public key."""
    now = datetime.datetime.now(datetime.timezone.utc)
    name = der.sequence(der.set_of(der.sequence(COMMON_NAME, der.text("muster session"))))
    extensions = (
        der.sequence(SUBJECT_ALTERNATIVE_NAME, der.octets(der.sequence(_alternative_name(host)))),
        der.sequence(BASIC_CONSTRAINTS, der.yes(), der.octets(der.sequence(der.yes(), der.integer(0)))),
        der.sequence(SUBJECT_KEY_IDENTIFIER, der.octets(der.octets(hashlib.sha1(point).digest()))),
    )
    return der.sequence(
        der.explicit(0, der.integer(VERSION_3)),
        der.integer(secrets.randbits(159)),
        ECDSA_WITH_SHA256,
        name,
        der.sequence(
            der.time(now - datetime.timedelta(days=1)),  # clocks of other machines may be behind
            der.time(now + datetime.timedelta(days=CERTIFICATE_DAYS)),
        ),
        name,
        der.sequence(der.sequence(EC_PUBLIC_KEY, P256), der.bits(point)),
        der.explicit(3, der.sequence(*extensions)),
    )


def _alternative_name(host: str) -> bytes:
    try:
        return der.implicit(IP_ADDRESS, ipaddress.ip_address(host).packed)
    except ValueError:
        return der.implicit(DNS_NAME, host.encode("ascii"))


def _pem(what: str, content: bytes) -> str:
    lines = base64.encodebytes(content).decode().replace("\n", "")
    wrapped = "\n".join(lines[start : start + 64] for start in range(0, len(lines), 64))
    return f"-----BEGIN {what}-----\n{wrapped}\n-----END {what}-----\n"
