"""Certificates for the laws of the wire: an authority, and a hub's certificate of it, made by `openssl`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

_NAMES = "subjectAltName=IP:127.0.0.1,IP:::1,DNS:localhost"


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)


def authority(folder: Path, name: str = "ca") -> Path:
    """A new authority's certificate; skips the law where there is no `openssl`."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here, which makes the certificates of this law")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    _openssl(
        folder, "req", "-x509", *key, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2",
        "-subj", f"/CN=kvhub test {name}", "-addext", "basicConstraints=critical,CA:TRUE",
    )  # fmt: skip
    return folder / f"{name}.pem"


def certificate(folder: Path, ca: str = "ca", name: str = "hub", alternatives: str = _NAMES) -> Path:
    """One PEM file with a certificate for this machine's loopback addresses and its key."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    _openssl(folder, "req", "-new", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
    folder.joinpath(f"{name}.ext").write_text(alternatives + "\n")
    _openssl(
        folder, "x509", "-req", "-in", f"{name}.csr", "-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-CAcreateserial",
        "-out", f"{name}.crt", "-days", "2", "-extfile", f"{name}.ext",
    )  # fmt: skip
    found = folder / f"{name}.pem"
    found.write_text(folder.joinpath(f"{name}.crt").read_text() + folder.joinpath(f"{name}.key").read_text())
    return found


def make(folder: Path) -> dict[str, str]:
    """Options of a hub whose peers must be of the same authority."""
    ca = authority(folder)
    return {"tls_cert": str(certificate(folder)), "tls_ca": str(ca)}
