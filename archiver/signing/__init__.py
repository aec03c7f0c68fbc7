"""`marina sign`: signed statements about a package, for pods, registries and admission. Nothing here imports torch."""

from marina.archiver.signing.admission import write_admission
from marina.archiver.signing.referrers import attach
from marina.archiver.signing.sign import Signed, key_signer, keyless_signer, sign
from marina.archiver.signing.statements import Subjects, read_subjects, statements

__all__ = [
    "Signed",
    "Subjects",
    "attach",
    "key_signer",
    "keyless_signer",
    "read_subjects",
    "sign",
    "statements",
    "write_admission",
]
