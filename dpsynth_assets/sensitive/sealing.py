"""Encryption at rest of the sensitive store, by a key that only the environment holds.

A sealed file is a header, a random salt, and chunks of AES-256-GCM. Every file has a key of its
own, derived from the salt and the file's place in the store: a file that was altered, cut short or
put in another file's place does not open. The counter and the mark of the last chunk are in the
nonce (the construction STREAM, as in Tink and age), so that chunks cannot be moved either.
"""

import base64
import binascii
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO

from dpsynth_assets.privacy.errors import PrivacyError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_VARIABLE = "DPSYNTH_SENSITIVE_KEY"
"""Environment variable of the key: 32 random bytes in base64. Not set: nothing is encrypted."""

HEADER = b"dpsynth-sealed-1\n"
KEY_BYTES = 32
_SALT_BYTES = 32
_TAG_BYTES = 16
_CHUNK_BYTES = 1 << 24


class SensitiveKeyError(PrivacyError):
    """The key of the sensitive store is missing, malformed, or not the one a file needs."""


@dataclass(frozen=True)
class SealingKey:
    """The key of one process; its repr says nothing.

    Attributes:
        secret: 32 random bytes.
    """

    secret: bytes = field(repr=False)

    def seal(self, source: BinaryIO, target: BinaryIO, name: str) -> None:
        """Writes what `source` holds, encrypted, to `target`.

        Args:
            source: Read from where it stands to its end.
            target: Receives the header, the salt and the chunks.
            name: Place of the file in the store; the same name opens it.
        """
        salt = os.urandom(_SALT_BYTES)
        cipher = self._cipher(salt, name)
        target.write(HEADER + salt)
        target.writelines(
            cipher.encrypt(_nonce(number, last=last), chunk, None)
            for number, chunk, last in _chunks(source, _CHUNK_BYTES)
        )

    def open(self, source: BinaryIO, name: str) -> bytes:
        """Reads what `seal` wrote into memory.

        Raises:
            SensitiveKeyError: The file is not encrypted, was altered or cut short, belongs to
                another place, or was sealed with another key.
        """
        if source.read(len(HEADER)) != HEADER:
            raise SensitiveKeyError(
                f"Expected {name} of the sensitive store to be encrypted, got a file that is not: "
                f"it was stored before {KEY_VARIABLE} was set. Run `dpsynth purge` and materialise "
                "private_records and private_embeddings again."
            )
        from cryptography.exceptions import InvalidTag

        content = bytearray()
        cipher = self._cipher(source.read(_SALT_BYTES), name)
        try:
            for number, chunk, last in _chunks(source, _CHUNK_BYTES + _TAG_BYTES):
                content += cipher.decrypt(_nonce(number, last=last), chunk, None)
        except (InvalidTag, ValueError):
            pass  # Raised below, outside the handler: nothing is chained to the refusal.
        else:
            return bytes(content)
        raise SensitiveKeyError(
            f"Expected {KEY_VARIABLE} to open {name} of the sensitive store, got another key, or "
            "the file was altered. Export the key it was stored with, or run `dpsynth purge` and "
            "materialise private_records again."
        )

    def hidden_name(self, text: str) -> str:
        """A keyed hash of a text, in hexadecimal, that names it where others see names."""
        return hashlib.blake2b(
            text.encode(), digest_size=16, key=self.secret, person=b"dpsynth-name"
        ).hexdigest()

    def _cipher(self, salt: bytes, name: str) -> "AESGCM":
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        info = HEADER + name.encode()
        return AESGCM(HKDF(SHA256(), KEY_BYTES, salt, info).derive(self.secret))


def sealing_key() -> SealingKey | None:
    """Reads the key from the environment; None where nothing is to be encrypted.

    Raises:
        SensitiveKeyError: The variable holds something else than 32 bytes in base64.
    """
    written = os.environ.get(KEY_VARIABLE, "").strip()
    if not written:
        return None
    try:
        secret = base64.b64decode(written.translate(str.maketrans("-_", "+/")), validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if len(secret) != KEY_BYTES:
        raise SensitiveKeyError(
            f"Expected {KEY_VARIABLE} to hold {KEY_BYTES} random bytes in base64, got something "
            "else (not shown). Make a key with `openssl rand -base64 32`."
        )
    return SealingKey(secret)


def is_sealed(source: BinaryIO) -> bool:
    """Says whether a file begins as a sealed one does; reads its header."""
    return source.read(len(HEADER)) == HEADER


def _chunks(source: BinaryIO, size: int) -> Iterator[tuple[int, bytes, bool]]:
    """Yields number, content and whether it is the last; an empty source has one empty chunk."""
    number, chunk = 0, source.read(size)
    while True:
        following = source.read(size)
        yield number, chunk, not following
        if not following:
            return
        number, chunk = number + 1, following


def _nonce(number: int, *, last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([last])
