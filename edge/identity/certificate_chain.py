"""Whether a certificate that came over a network is this device's own and ends at its root."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes


def check_chain(pem: bytes, root: bytes, device: str, key: CertificatePublicKeyTypes) -> x509.Certificate:
    """The first certificate in ``pem``: of the root in the PEM ``root``, for ``device`` and its ``key``.

    Raises:
        ValueError: it is not; also TypeError, InvalidSignature and ExtensionNotFound of ``cryptography``.
    """
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    certificate, *issuers = x509.load_pem_x509_certificates(pem)
    if len(issuers) > 1:
        raise ValueError(f"{len(issuers)} certificates follow it, one issuer at most is known here")
    # A root that is kept offline has had another certificate sign in its name.
    for below, above in itertools.pairwise([certificate, *issuers, x509.load_pem_x509_certificate(root)]):
        if not above.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            raise ValueError("it is signed by a certificate that may not sign others")
        below.verify_directly_issued_by(above)
    names = [a.value for a in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if names != [device] or certificate.public_key() != key:
        raise ValueError(f"it is for {names}, or for another key than this device's")
    return certificate
