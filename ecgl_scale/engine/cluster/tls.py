"""Certificates of a cluster: one authority and one certificate for all of its processes, made for each cluster.

Whoever reaches a Dask scheduler runs code as its user: it asks nobody who they are. With these files a connection
needs a certificate of the same authority on both sides. They are for one job and one group of machines: everybody who
can read the directory belongs to the cluster, so it is readable by its owner alone.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from ecgl_scale.base.durable import storage_errors
from ecgl_scale.errors import InvalidInputError

AUTHORITY, CERTIFICATE, KEY = "ca.pem", "cert.pem", "key.pem"
DAYS_VALID = 30
"""Longer than any job; a leaked key is of no use afterwards."""


def make_certificates(directory: Path) -> None:
    """Write an authority, a certificate and its key into ``directory`` (mode 0700), unless they are there."""
    if all((directory / name).exists() for name in (AUTHORITY, CERTIFICATE, KEY)):
        return
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    def name_of(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    now = datetime.now(UTC)
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())

    def signed(subject: str, public_key: ec.EllipticCurvePublicKey, *, is_authority: bool) -> bytes:
        made = (
            x509.CertificateBuilder()
            .subject_name(name_of(subject))
            .issuer_name(name_of("ecgl cluster authority"))
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))  # clocks of machines differ
            .not_valid_after(now + timedelta(days=DAYS_VALID))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .sign(authority_key, hashes.SHA256())
        )
        return made.public_bytes(serialization.Encoding.PEM)

    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with storage_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o700)
        _write_private(directory / KEY, private)
        _write_private(directory / CERTIFICATE, signed("ecgl cluster", key.public_key(), is_authority=False))
        authority = signed("ecgl cluster authority", authority_key.public_key(), is_authority=True)
        _write_private(directory / AUTHORITY, authority)


def _write_private(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_bytes(content)


def require_certificates(directory: Path) -> dict[str, str]:
    """Paths of the authority, the certificate and the key."""
    missing = [name for name in (AUTHORITY, CERTIFICATE, KEY) if not (directory / name).exists()]
    if missing:
        raise InvalidInputError(
            f"a certificate of the cluster is missing: {', '.join(missing)}",
            where=directory,
            expected=f"{AUTHORITY}, {CERTIFICATE} and {KEY}",
            fix="start the scheduler with `ecgl scheduler FILE --tls DIR`, which makes them; give workers the same DIR",
        )
    return {name: str(directory / file) for name, file in (("ca", AUTHORITY), ("cert", CERTIFICATE), ("key", KEY))}
