"""Paths that a user gives: a local file or folder, or one in a bucket, `gs://` or `s3://`.

A local path is a `pathlib.Path`. A path in a bucket is an `etils.epath.Path`, whose files fsspec's
clients read and write. It has the methods of `pathlib.Path` that t2t uses, so signatures say `Path`
for both. A bucket has no rename of folders, no locks, no appending and no memory maps: where these
matter, the functions of this folder do the same by other means.
"""

import importlib.util
import logging
import os
import re
import warnings
from pathlib import Path
from typing import Any

_CLIENTS = {"gs": "gcsfs", "s3": "s3fs"}  # scheme -> fsspec's client, and t2t's extra
_EXTRAS = {"gs": "gcs", "s3": "s3"}
_CONNECT_SECONDS = 20  # to wait for a connection
_ANSWER_SECONDS = 30  # to wait for the next bytes of an answer, before the client tries again
# Packages whose errors mean that the bucket or the way to it failed.
_CLIENT_PACKAGES = {
    "gcsfs", "s3fs", "google", "aiohttp", "requests", "botocore", "aiobotocore",
}  # fmt: skip


class PathError(ValueError):
    """A path that cannot be used; the message has the reason and a remedy."""


def make_path(text: str | os.PathLike[str]) -> Path:
    """Turns a path as a user writes it into a `Path`; `~` is expanded, nothing is looked up.

    Raises:
        PathError: the scheme or the user is unknown, the client is not installed, or the bucket has
            no name.
    """
    text = os.fspath(text)
    matched = re.match(r"([A-Za-z][\w+.-]+):/", text)
    if not matched:
        try:
            return Path(text).expanduser()
        except RuntimeError:
            raise PathError(f"{text}: there is no such user; write the folder in full") from None
    scheme = matched[1]
    if scheme not in _CLIENTS:
        raise PathError(
            f"{text}: {scheme}:// is not supported; use a local path, gs://BUCKET/... or "
            "s3://BUCKET/..."
        )
    if not re.match(rf"{scheme}://[^/]+", text):
        raise PathError(f"{text} names no bucket; write {scheme}://BUCKET/...")
    if importlib.util.find_spec(_CLIENTS[scheme]) is None:
        raise PathError(
            f"{text}: {_CLIENTS[scheme]} is not installed, which reads and writes {scheme}://; "
            f"pip install -e '.[{_EXTRAS[scheme]}]'"
        )
    _configure_clients()
    from etils import epath  # here since it takes a tenth of a second

    path: Path = epath.Path(text)
    return path


def make_run_path(text: str | os.PathLike[str], flag: str = "--workdir") -> Path:
    """Turns the path of a run directory into a `Path`; `flag` is where the user gave it.

    Raises:
        PathError: as `make_path`, or the path is empty, or Orbax cannot keep checkpoints there.
    """
    if not os.fspath(text):
        raise PathError(f"{flag} is empty; name a folder")
    path = make_path(text)
    if str(path).startswith("s3://"):
        raise PathError(
            f"{flag}={path}: Orbax, which writes checkpoints, knows gs:// and local folders but "
            "not s3://; corpora, caches and outputs may be in s3://"
        )
    if re.search(r"[][*?\\]", str(make_absolute(path))):
        raise PathError(
            f"{flag}={make_absolute(path)}: Orbax takes [ ] * ? and \\ for a pattern and would not "
            "find its checkpoints again; choose a path without them"
        )
    return path


def is_bucket(path: Path | str) -> bool:
    """Returns whether a path is in a bucket."""
    return str(path).startswith(tuple(f"{scheme}://" for scheme in _CLIENTS))


def make_absolute(path: Path) -> Path:
    """Returns the absolute path."""
    return path if is_bucket(path) else path.absolute()


def find_name(folder: Path) -> str:
    """Returns the name of a folder, also of "." and of a symbolic link's target."""
    return folder.name if is_bucket(folder) else folder.resolve().name


def find_client(path: Path) -> Any:
    """Returns fsspec's file system of a path in a bucket; it takes the path as a string."""
    import fsspec

    return fsspec.filesystem(str(path).partition("://")[0])


def measure_size(path: Path) -> int:
    """Returns the bytes of a file, 0 if it does not exist."""
    try:
        size: int = (
            find_client(path).info(str(path))["size"] if is_bucket(path) else (path.stat().st_size)
        )
    except FileNotFoundError:
        return 0
    return size


def is_client_error(error: BaseException) -> bool:
    """Returns whether an error comes from the client of a bucket, after its retries.

    Some are no `OSError`, such as HTTP status 503 and missing credentials.
    """
    return type(error).__module__.partition(".")[0] in _CLIENT_PACKAGES


def is_storage_error(error: BaseException) -> bool:
    """Returns whether an error comes from a file system or from a bucket's client."""
    return isinstance(error, OSError) or is_client_error(error)


def find_version(path: Path) -> str:
    """Returns a text that tells apart two versions of a file.

    It holds size and time of modification, so it misses a file of the same size that was given the
    old time, as `cp -p` does; in a bucket it holds the generation, or what stands for it.

    Raises:
        OSError: the file does not exist; or an error of a bucket's client.
    """
    if is_bucket(path):
        return find_object_version(find_client(path).info(str(path)))
    status = path.stat()
    return f"{status.st_size} bytes, {status.st_mtime_ns} ns"


def find_object_version(info: dict[str, Any]) -> str:
    """Returns the version of an object; `info` is what fsspec's client says of it."""
    return str(info.get("generation") or info.get("ETag") or info.get("mtime"))


def describe_error(error: BaseException) -> str:
    """Describes an `OSError`, or an error of a bucket's client, in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = ": ".join(line.strip() for line in str(error).splitlines() if line.strip())
    if isinstance(error, FileNotFoundError):
        return f"no such bucket or object ({text})"
    if isinstance(error, TimeoutError) and not text:
        return f"no answer within {_ANSWER_SECONDS} seconds, several times in a row"
    named = text and type(error) is OSError
    return text if named else f"{type(error).__name__}: {text}".removesuffix(": ")


def _configure_clients() -> None:
    """Sets options of fsspec's clients and of TensorStore, which Orbax uses as well.

    What the user has set comes first. Listings are not cached, since other processes write to the
    same folders. A server that does not answer ends in an error after several tries; by default
    fsspec's clients wait for five minutes each time, and TensorStore for ever.
    """
    for variable, value in {
        "EPATH_USE_TF": "false",  # else TensorFlow is used if it is installed
        "TENSORSTORE_CURL_CONNECT_TIMEOUT_SECONDS": _CONNECT_SECONDS,
        "TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS": _ANSWER_SECONDS,
        "TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES": 1,  # per second
    }.items():
        os.environ.setdefault(variable, str(value))
    import aiohttp  # a dependency of both clients
    from fsspec.config import conf

    timeout = aiohttp.ClientTimeout(
        total=None, sock_connect=_CONNECT_SECONDS, sock_read=_ANSWER_SECONDS
    )
    gcs = {"use_listings_cache": False, "requests_timeout": timeout}
    s3 = {
        "use_listings_cache": False,
        "config_kwargs": {"connect_timeout": _CONNECT_SECONDS, "read_timeout": _ANSWER_SECONDS},
    }
    for scheme, options in (("gs", gcs), ("gcs", gcs), ("s3", s3)):
        conf[scheme] = options | conf.get(scheme, {})
    # They log how they read files, and each error that they raise, with a traceback.
    for library in ("fsspec", *_CLIENTS.values()):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", "GCS project not set")
