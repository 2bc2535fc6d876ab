"""The settings alone decide where blobs are, so every process of a deployment finds what another has kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from salience.errors import UsageError
from salience.settings import Settings
from salience.store.blobs import BlobStore, FileBlobs
from salience.store.cache import CachedBlobs

if TYPE_CHECKING:
    from salience.store.s3 import S3Blobs


def blobs_of(settings: Settings) -> BlobStore:
    """The blob store that settings name; nothing is connected yet.

    Raises:
        UsageError: an S3 store is named, but not wholly.
    """
    return CachedBlobs(s3_of(settings) if settings.s3_endpoint else FileBlobs(settings.blobs))


def s3_of(settings: Settings, *, timeout_s: float | None = None) -> S3Blobs:
    """The S3 store that settings name.

    Args:
        settings: settings with an `s3_endpoint`.
        timeout_s: longest silence of the server, in seconds; None: the store's own.

    Raises:
        UsageError: something of it is missing or cannot be right.
    """
    from salience.store.s3 import TIMEOUT_S, S3Blobs  # half a second of imports, that others need not wait for

    secret = settings.s3_secret_key.get_secret_value()
    needed = {"s3_bucket": settings.s3_bucket, "s3_access_key": settings.s3_access_key, "s3_secret_key": secret}
    missing = [f"SALIENCE_{name.upper()}" for name, value in needed.items() if not value]
    if missing:
        raise UsageError("SALIENCE_S3_ENDPOINT is set, but not all that it needs", mend=f"set {', '.join(missing)}")
    return S3Blobs(
        settings.s3_endpoint,
        settings.s3_bucket,
        access_key=settings.s3_access_key,
        secret_key=secret,
        region=settings.s3_region,
        secure=settings.s3_secure,
        prefix=settings.s3_prefix,
        timeout_s=timeout_s or TIMEOUT_S,
    )
