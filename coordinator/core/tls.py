"""TLS by files: RANKCALL_TLS_CERT and RANKCALL_TLS_KEY serve it, RANKCALL_TLS_CA names whom clients believe.

Replicas have no stable names and get new addresses with each deployment, so no certificate can name them. With a
CA of one's own (or the served certificate itself, mounted on all replicas) that signature alone counts; without
one, the machine's certificates and the name do, as for a proxy with a public name. Called by `http.py`, the
agent's proxy, discovery and the coordinator's settings.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path

CERT = "RANKCALL_TLS_CERT"
KEY = "RANKCALL_TLS_KEY"
CA = "RANKCALL_TLS_CA"
HOW_TO_TRUST = f"Set {CA} to the file of the certificate that signed it (or {CERT} to the served one itself)."


class BadCertificate(ValueError):
    """A file that cannot serve TLS; the text is one sentence for a user."""


def checked(certificate: Path, key: Path) -> None:
    """
    Raises:
        BadCertificate: when TLS cannot be served with these files.
    """
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=_no_password)
    except ssl.SSLError as error:
        raise BadCertificate(
            f"{CERT}={certificate} and {KEY}={key} are no certificate and its key without a password, in PEM"
        ) from error
    except OSError as error:
        raise BadCertificate(f"{CERT}={certificate} or {KEY}={key}: {error.strerror or error}") from error


def verification(base_url: str, environment: Mapping[str, str] | None = None) -> ssl.SSLContext:
    """How a client checks who answers. For http an empty context, since loading certificates costs 10 MB.

    Raises:
        BadCertificate: when the file of the CA cannot be read.
    """
    if not base_url.lower().startswith("https:"):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    known = os.environ if environment is None else environment
    own = known.get(CA) or known.get(CERT)
    if not own:
        return ssl.create_default_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    try:
        context.load_verify_locations(own)
    except OSError as error:  # ssl.SSLError is one
        raise BadCertificate(f"{own} ({CA} or {CERT}) holds no certificate that can be read") from error
    # A certificate that was made for itself, and is no CA, is its own proof.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _no_password() -> str:
    return ""  # else OpenSSL asks at the terminal
