"""The session's certificate, which Muster writes itself, as a library for certificates reads and would have made it."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import socket
import ssl
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from muster.security import der
from muster.security.certificates import make_certificate

HOSTS = ("127.0.0.1", "::1", "node-7.example.org")


def made_by_library(host: str, key: ec.EllipticCurvePrivateKey, like: x509.Certificate) -> bytes:
    """What the certificate's signature is of, with the serial number and the times of another one."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "muster session")])
    try:
        alternative: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        alternative = x509.DNSName(host)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(like.serial_number)
    builder = builder.not_valid_before(like.not_valid_before_utc).not_valid_after(like.not_valid_after_utc)
    builder = builder.add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return builder.sign(key, hashes.SHA256()).tbs_certificate_bytes


@pytest.mark.parametrize("host", HOSTS)
def test_a_library_would_have_made_the_same(host: str) -> None:
    certificate, private = make_certificate(host)
    made = x509.load_pem_x509_certificate(certificate.encode())
    key = serialization.load_pem_private_key(private.encode(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert made.tbs_certificate_bytes == made_by_library(host, key, made)
    made.verify_directly_issued_by(made)  # its signature is that of its key
    assert made.public_bytes(serialization.Encoding.PEM).decode() == certificate
    plain = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    assert key.private_bytes(*plain).decode() == private
    now = datetime.datetime.now(datetime.timezone.utc)
    assert made.not_valid_before_utc < now - datetime.timedelta(hours=23)
    assert made.not_valid_after_utc > now + datetime.timedelta(days=3640)


@pytest.mark.parametrize("host", HOSTS)
def test_whoever_pins_it_connects_to_that_host_and_to_no_other(host: str, tmp_path: Path) -> None:
    certificate, private = make_certificate(host)
    path = tmp_path / "server.pem"
    path.write_text(private + certificate)
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(path)
    context = ssl.create_default_context(cadata=certificate)
    for name, is_right in ((host, True), ("127.0.0.2", False), ("other.example.org", False)):
        ours, theirs = socket.socketpair()
        serving = threading.Thread(target=_shake_hands, args=(served, theirs))
        serving.start()
        try:
            if is_right:
                context.wrap_socket(ours, server_hostname=name).close()
            else:
                with pytest.raises(ssl.SSLCertVerificationError):
                    context.wrap_socket(ours, server_hostname=name)
        finally:
            ours.close()
            serving.join()


def _shake_hands(context: ssl.SSLContext, connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError):  # the other end has refused it
        context.wrap_socket(connection, server_side=True).close()


def test_times_after_2049_have_all_digits_of_their_year() -> None:
    assert der.time(datetime.datetime(2049, 12, 31)) == b"\x17\x0d491231000000Z"
    assert der.time(datetime.datetime(2050, 1, 1)) == b"\x18\x0f20500101000000Z"


@pytest.mark.parametrize(("size", "length"), [(127, b"\x7f"), (128, b"\x81\x80"), (300, b"\x82\x01\x2c")])
def test_lengths_are_as_short_as_they_can_be(size: int, length: bytes) -> None:
    assert der.octets(bytes(size)) == b"\x04" + length + bytes(size)


@pytest.mark.parametrize(("value", "written"), [(0, b"\0"), (127, b"\x7f"), (128, b"\0\x80"), (256, b"\x01\0")])
def test_numbers_are_written_with_a_sign(value: int, written: bytes) -> None:
    assert der.integer(value) == bytes([2, len(written)]) + written
