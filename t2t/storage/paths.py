"""Paths that a user gives: a local file or folder, or one in a bucket of Google's, `gs://`.

A local path is a `pathlib.Path`. A path in a bucket is a `BucketPath`, an `etils.epath.Path` whose
files gcsfs reads and writes. It has the methods of `pathlib.Path` that t2t uses, so signatures say
`Path` for both. A bucket has no rename of folders, no locks, no appending and no memory maps: where
these matter, the functions of this folder do the same by other means. Only this folder asks which
of the two a path is.
"""

import hashlib
import importlib.util
import logging
import os
import re
import sys
import warnings
from pathlib import Path
from typing import Any

LOCAL_FOLDER = Path("~/.cache/t2t/buckets")  # for copies and locks of what lies in buckets
_CONNECT_SECONDS = 20  # to wait for a connection
_ANSWER_SECONDS = 30  # to wait for the next bytes of an answer, before the client tries again
_CLIENT_ERRORS = (  # by module, which is loaded where such an error is raised
    ("gcsfs.retry", "HttpError"),
    ("gcsfs.retry", "ChecksumError"),
    ("gcsfs.retry", "NonRetryableError"),  # credentials that cannot be refreshed
    ("google.auth.exceptions", "GoogleAuthError"),
    ("google.api_core.exceptions", "GoogleAPIError"),  # of gRPC
    ("aiohttp", "ClientError"),
    ("requests", "RequestException"),
)


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
    if matched[1] == "s3":
        raise PathError(
            f"{text}: s3:// is not supported; mount it, and give the path of the mount "
            "(docs/buckets.md says how)"
        )
    if matched[1] != "gs":
        raise PathError(
            f"{text}: {matched[1]}:// is not supported; use a local path or gs://BUCKET/..."
        )
    if not re.match("gs://[^/]+", text):
        raise PathError(f"{text} names no bucket; write gs://BUCKET/...")
    if importlib.util.find_spec("gcsfs") is None:
        raise PathError(
            f"{text}: gcsfs is not installed, which reads and writes gs://; pip install -e '.[gcs]'"
        )
    _configure_clients()
    from t2t.storage.bucket_path import BucketPath  # here since it takes a tenth of a second

    path: Path = BucketPath(text)
    return path


def make_local_path(text: str | os.PathLike[str], remedy: str) -> Path:
    """As `make_path`, but raises `PathError` with this remedy for a path in a bucket."""
    path = make_path(text)
    if is_bucket(path):
        raise PathError(f"{text}: {remedy}")
    return path


def make_run_path(text: str | os.PathLike[str], flag: str = "--workdir") -> Path:
    """Turns the path of a run directory into a `Path`; `flag` is where the user gave it.

    Raises:
        PathError: as `make_path`, or the path is empty, or Orbax cannot keep checkpoints there.
    """
    if not os.fspath(text):
        raise PathError(f"{flag} is empty; name a folder")
    path = make_path(text)
    if re.search(r"[][*?\\]", str(path.absolute())):
        raise PathError(
            f"{flag}={path.absolute()}: Orbax takes [ ] * ? and \\ for a pattern and would not "
            "find its checkpoints again; choose a path without them"
        )
    return path


def check_new_run_path(path: Path, flag: str = "--workdir") -> None:
    """Raises `PathError` if a list of runs, joined by commas, would not hold this one as it is."""
    if re.search(r'[,"\n]|^\s|\s$', str(path)):
        raise PathError(
            f"{flag}={path}: programs that take several runs separate them by commas; choose a "
            "name without commas, quotation marks, and spaces at its ends"
        )


def split_run_paths(text: str) -> list[Path]:
    """Turns paths that are joined by commas into `Path`s; what exists as a whole is one path."""
    whole = make_path(text)
    return [whole] if "," not in text or whole.exists() else [*map(make_path, text.split(","))]


def is_bucket(path: Path) -> bool:
    """Returns whether a path is in a bucket."""
    return str(path).startswith("gs://")


def find_client() -> Any:
    """Returns gcsfs's file system; it takes paths as strings."""
    import fsspec

    return fsspec.filesystem("gs")


def choose_interval(path: Path, local: float, remote: float) -> float:
    """Returns the seconds between two looks at a path, at least `remote` in a bucket.

    There each look is a request, or several.
    """
    return max(local, remote) if is_bucket(path) else local


def measure_size(path: Path) -> int:
    """Returns the bytes of a file, 0 if it does not exist."""
    try:
        return int(find_client().size(str(path)) if is_bucket(path) else path.stat().st_size)
    except FileNotFoundError:
        return 0


def client_errors() -> tuple[type[Exception], ...]:
    """Returns the classes of errors of a bucket's client, which it raises after its retries.

    Some are no `OSError`, such as HTTP status 503 and missing credentials.
    """
    return tuple(
        getattr(sys.modules[module], name)
        for module, name in _CLIENT_ERRORS
        if module in sys.modules
    )


def storage_errors(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """Returns the classes of errors of file systems and a bucket's client, and others."""
    return OSError, *client_errors(), *others


def find_version(path: Path) -> str:
    """Returns a text that tells apart two versions of a file.

    It holds size and time of modification, so it misses a file of the same size that was given the
    old time, as `cp -p` does; in a bucket it is the generation.

    Raises:
        OSError: the file does not exist; or an error of a bucket's client.
    """
    if is_bucket(path):
        return str(find_client().info(str(path))["generation"])
    status = path.stat()
    return f"{status.st_size} bytes, {status.st_mtime_ns} ns"


def hash_file(path: Path) -> str:
    """Returns the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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


def first_line(error: Exception) -> str:
    """Returns the first line of the message of a library's error, or its type if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _configure_clients() -> None:
    """Sets options of gcsfs and of TensorStore, which Orbax uses as well.

    What the user has set comes first. Listings are not cached, since other processes write to the
    same folders. A server that does not answer ends in an error after several tries; by default
    gcsfs waits for five minutes each time, and TensorStore for ever.
    """
    for variable, value in {
        "EPATH_USE_TF": "false",  # else TensorFlow is used if it is installed
        "TENSORSTORE_CURL_CONNECT_TIMEOUT_SECONDS": _CONNECT_SECONDS,
        "TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS": _ANSWER_SECONDS,
        "TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES": 1,  # per second
    }.items():
        os.environ.setdefault(variable, str(value))
    import aiohttp  # a dependency of gcsfs
    from fsspec.config import conf

    timeout = aiohttp.ClientTimeout(
        total=None, sock_connect=_CONNECT_SECONDS, sock_read=_ANSWER_SECONDS
    )
    for scheme in ("gs", "gcs"):
        conf[scheme] = {"use_listings_cache": False, "requests_timeout": timeout} | conf.get(
            scheme, {}
        )
    # They log how they read files, and each error that they raise, with a traceback.
    for library in ("fsspec", "gcsfs"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", "GCS project not set")
