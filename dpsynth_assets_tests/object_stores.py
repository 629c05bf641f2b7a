"""An S3-compatible server of our own: moto, in a process of its own, reached through s3fs."""

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import pytest

from dpsynth_assets_tests.children import free_port, until


@pytest.fixture(scope="session")
def s3_address() -> Iterator[str]:
    """Endpoint of the server."""
    port = free_port()
    arguments = ["-c", "from moto.server import main; main()", "-H", "127.0.0.1", "-p", f"{port}"]
    server = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    endpoint = f"http://127.0.0.1:{port}"
    try:
        until(lambda: _answers(endpoint), "moto's server did not start", 60.0)
        yield endpoint
    finally:
        server.kill()
        server.wait(30)


def _answers(endpoint: str) -> bool:
    try:
        urllib.request.urlopen(f"{endpoint}/moto-api/", timeout=5).close()
    except OSError:
        return False
    return True


@pytest.fixture
def bucket(s3_address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """`s3://` address of a fresh bucket that this process and its children reach."""
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_address)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3fs.S3FileSystem.clear_instance_cache()
    name = f"bucket-{os.getpid()}-{time.monotonic_ns()}"
    s3fs.S3FileSystem(use_listings_cache=False).mkdir(name)
    yield f"s3://{name}/prefix"
    s3fs.S3FileSystem.clear_instance_cache()
