"""Opens the store of an `s3://`, `gs://` or `az://` address. Credentials come from the environment: keys, a file that
holds them, or the identity that the cloud gives this machine or pod."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore

STORES = ("az", "gs", "s3")


def open_store(url: str, timeout_s: float) -> tuple[ObjectStore, str]:
    """The bucket or container of an address, and the path in it. Its client tries each request once."""
    from obstore.store import AzureStore, GCSStore, S3Store

    address = urlsplit(url)
    pause = f"{timeout_s:g}s"
    # The endpoint in the environment decides whether TLS is used.
    limits: ClientConfig = {"connect_timeout": pause, "read_timeout": pause, "timeout": "3600s", "allow_http": True}
    kind = {"az": AzureStore, "gs": GCSStore, "s3": S3Store}[address.scheme]
    store = kind(address.netloc, client_options=limits, retry_config={"max_retries": 0})
    return store, address.path.lstrip("/")
