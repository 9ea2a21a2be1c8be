"""Certificates of the agent listener: a CA of our own, what it signs, and when that is due.

The CA lives ten years and its key may be kept elsewhere; a server's certificate lives 90 days and is renewed at
two thirds of its life where the CA's key is at hand. Keys are P-256: a handshake is cheap.
"""

import datetime
import ipaddress
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from attrs import frozen
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_DAYS = 3650
SERVER_DAYS = 90
BACKDATED = datetime.timedelta(hours=1)  # clocks differ
RENEW_AT = 2 / 3
SUBJECT = "llmgw"


class NoCertificate(Exception):
    """A file that is missing, or is not what it should be; its text says what to do."""


@frozen
class Files:
    """What ``llmgw certs init`` makes in a folder."""

    folder: Path

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def ca_key(self) -> Path:
        return self.folder / "ca.key"

    def chain(self, name: str = "agents") -> Path:
        return self.folder / f"{name}.pem"

    def key(self, name: str = "agents") -> Path:
        return self.folder / f"{name}.key"


@frozen
class Shown:
    """A certificate, as far as it is told. Times are wall-clock seconds."""

    file: str
    subject: str
    names: tuple[str, ...]
    begins_at: float
    ends_at: float
    is_ca: bool

    @property
    def renew_at(self) -> float:
        return self.begins_at + (self.ends_at - self.begins_at) * RENEW_AT

    def state(self, now: float) -> str:
        """``valid``, ``due`` (past two thirds of its life), ``expired`` or ``not yet valid``."""
        if now >= self.ends_at:
            return "expired"
        if now < self.begins_at:
            return "not yet valid"
        return "due" if now >= self.renew_at else "valid"


def make_ca(files: Files, now: datetime.datetime, days: int = CA_DAYS) -> None:
    """Raises NoCertificate if there is one already, OSError."""
    if files.ca.exists() or files.ca_key.exists():
        raise NoCertificate(f"{files.ca} is there already: agents have pinned it; move it away to begin anew")
    files.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{SUBJECT} CA {secrets.token_hex(4)}")])
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    certificate = (
        _builder(name, name, key.public_key(), now, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    write(files.ca_key, _pem_of_key(key), 0o600)
    write(files.ca, _pem(certificate), 0o644)


def make_server(files: Files, name: str, hosts: Sequence[str], now: datetime.datetime, days: int = SERVER_DAYS) -> None:
    """A certificate for these names and addresses, with its chain, and a new key. Raises NoCertificate, OSError."""
    if not hosts:
        raise NoCertificate("a certificate needs a name or an address: give --host")
    ca, ca_key = _ca(files)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
    left = (ca.not_valid_after_utc - now).days
    certificate = (
        _builder(subject, ca.subject, key.public_key(), now, min(days, max(1, left)))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general(host) for host in hosts]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    # Whoever reads between the two meets a pair that does not fit, and keeps the one it has.
    write(files.key(name), _pem_of_key(key), 0o600)
    write(files.chain(name), _pem(certificate) + files.ca.read_bytes(), 0o644)


def renew(files: Files, name: str, now: datetime.datetime) -> Shown:
    """The same names, a new key, a new life. Raises NoCertificate, OSError."""
    old = show(files.chain(name))
    days = max(1, round((old.ends_at - old.begins_at) / 86_400))
    make_server(files, name, old.names, now, days)
    return show(files.chain(name))


def show(file: Path) -> Shown:
    """The first certificate of a file. Raises NoCertificate."""
    certificate = _read(file)
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        shown = tuple(str(name.value) for name in names)
    except x509.ExtensionNotFound:
        shown = ()
    try:
        is_ca = bool(certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca)
    except x509.ExtensionNotFound:
        is_ca = False
    return Shown(
        str(file),
        certificate.subject.rfc4514_string(),
        shown,
        certificate.not_valid_before_utc.timestamp(),
        certificate.not_valid_after_utc.timestamp(),
        is_ca,
    )


def der(file: Path) -> bytes:
    """Of a file's first certificate. Raises NoCertificate."""
    return _read(file).public_bytes(serialization.Encoding.DER)


def write(file: Path, content: bytes, mode: int) -> None:
    """Whole or not at all. Raises OSError."""
    part = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with open(fd, "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(fd)
        part.replace(file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _ca(files: Files) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate = _read(files.ca)
    try:
        key = serialization.load_pem_private_key(files.ca_key.read_bytes(), None)
    except OSError as error:
        raise NoCertificate(f"{files.ca_key}: {error.strerror}; it signs, so it must be at hand") from None
    except (ValueError, TypeError) as error:
        raise NoCertificate(f"{files.ca_key} is no private key without a password: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise NoCertificate(f"{files.ca_key} is no key on an elliptic curve, as `llmgw certs init` makes them")
    try:
        certificate.verify_directly_issued_by(certificate)
        belongs = certificate.public_key() == key.public_key()
    except (InvalidSignature, ValueError, TypeError):
        belongs = False
    if not belongs:
        raise NoCertificate(f"{files.ca_key} is not the key of {files.ca}")
    return certificate, key


def _read(file: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except OSError as error:
        raise NoCertificate(f"{file}: {error.strerror}; `llmgw certs init` makes one") from None
    except ValueError:
        raise NoCertificate(f"{file} holds no certificate in PEM") from None


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _pem_of_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
