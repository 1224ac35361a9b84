"""Certificates of a cluster: what is written, who may read it, and that existing ones are kept."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from ecgl_scale.engine.cluster.tls import AUTHORITY, CERTIFICATE, KEY, make_certificates, require_certificates
from ecgl_scale.errors import InvalidInputError


def test_certificates_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    directory = tmp_path / "run" / "tls"
    make_certificates(directory)
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()} == dict.fromkeys(
        (AUTHORITY, CERTIFICATE, KEY), 0o600
    )


def test_certificate_and_key_belong_together_and_to_the_authority(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    paths = require_certificates(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=paths["ca"])
    context.load_cert_chain(paths["cert"], paths["key"])
    assert len(context.get_ca_certs()) == 1


def test_certificates_that_are_there_are_kept(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    make_certificates(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_half_made_directory_is_made_anew_as_a_whole(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    (tmp_path / AUTHORITY).unlink()
    make_certificates(tmp_path)
    paths = require_certificates(tmp_path)
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=paths["ca"]).load_cert_chain(paths["cert"], paths["key"])
    assert (tmp_path / KEY).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", [AUTHORITY, CERTIFICATE, KEY])
def test_a_missing_file_is_named(name: str, tmp_path: Path) -> None:
    make_certificates(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(InvalidInputError, match=name):
        require_certificates(tmp_path)
