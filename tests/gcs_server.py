"""A server that gcsfs and TensorStore take for Google Cloud Storage, with faults on request.

    python -m tests.gcs_server BUCKET [--fail_every=10] [--latency=0.1]

It is gcp-storage-emulator, with what TensorStore needs and the emulator lacks: generations in the
headers of answers, and the preconditions `ifGenerationMatch` and `ifGenerationNotMatch`. It prints
its port. Of every `fail_every` requests one is answered by status 503: by turns without doing
anything, and after doing what was asked for, as if the answer had been lost. It can also kill a
process at the moment when its request arrives (`tests.bucket_server.die_at`).
"""

import argparse
import io
import itertools
import json
import logging
import os
import re
import signal
import threading
import time
from functools import partial, partialmethod
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from gcp_storage_emulator.handlers.buckets import create_bucket
from gcp_storage_emulator.server import RequestHandler, Router
from gcp_storage_emulator.storage import Storage

_query = threading.local()  # `value`: the query of the request that a thread serves


class PreconditionError(Exception):
    """An object does not have the generation that a request names."""


class CheckedStorage(Storage):  # type: ignore[misc]
    """The emulator's objects, changed only if the request's precondition holds."""

    def find_generation(self, bucket: str, name: str) -> str:
        return str(self.objects.get(bucket, {}).get(name, {}).get("generation", 0))

    def create_file(self, bucket: str, name: str, *rest: Any) -> None:
        self._check(bucket, name)
        super().create_file(bucket, name, *rest)

    def delete_file(self, bucket: str, name: str) -> None:
        self._check(bucket, name)
        super().delete_file(bucket, name)

    def _check(self, bucket: str, name: str) -> None:
        [wanted] = _query.value.get("ifGenerationMatch", [None])
        if wanted not in (None, self.find_generation(bucket, name)):
            raise PreconditionError


class Handler(RequestHandler):  # type: ignore[misc]
    """Answers one request, with the faults that the flags ask for."""

    lock = threading.Lock()
    count = itertools.count(1)
    moments: list[dict[str, Any]] = []  # noqa: RUF012
    uploads: dict[str, bytes] = {}  # answers by path, which has a number  # noqa: RUF012

    def __init__(self, flags: argparse.Namespace, *rest: Any):
        self.flags = flags
        self.generation = "0"  # of the object that is read
        self.rfile: io.BytesIO
        self.wfile: io.BytesIO
        super().__init__(*rest)

    def serve(self, method: str) -> None:
        time.sleep(self.flags.latency)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        end = b"\n--==0==--"  # of what gcsfs sends
        if body.endswith(end):
            # The emulator takes a last byte "\r" of the content for part of the end of a line.
            body = body.removesuffix(end) + b"\r" + end
            self.headers.replace_header("Content-Length", str(len(body)))
        if self.path == "/moment":
            self.moments.append(json.loads(body))
            self.refuse(200)
            return
        if self.kill(
            f"{method} {unquote(self.path)} {unquote(body[:400].decode(errors='replace'))}"
        ):
            return
        number, every = next(self.count), self.flags.fail_every
        fails = every and number % every == 0
        answer = b""
        if not fails or number // every % 2:
            answer = self.carry_out(method, body)
        if fails:
            self.refuse(503)
        else:
            self.wfile.write(answer)

    def carry_out(self, method: str, body: bytes) -> bytes:
        """Returns the emulator's answer, or the same as before to a repeated part of an upload."""
        with self.lock:
            if self.path in self.uploads:
                return self.uploads[self.path]
            client, self.wfile, self.rfile = self.wfile, io.BytesIO(), io.BytesIO(body)
            self.answer(method)
            answer, self.wfile = self.wfile.getvalue(), client
            if "upload_id=" in self.path:
                self.uploads[self.path] = answer
            return answer

    def kill(self, request: str) -> bool:
        """Kills a process that is to die at this request; returns whether there was one."""
        for moment in self.moments:
            if re.search(moment["pattern"], request):
                self.moments.remove(moment)
                os.kill(moment["pid"], signal.SIGKILL)
                return True
        return False

    def answer(self, method: str) -> None:
        parts = urlsplit(self.path)
        _query.value = parse_qs(parts.query)
        head, _, name = parts.path.partition("/o/")
        if method == "GET" and name:
            self.generation = self.storage.find_generation(
                head.rpartition("/b/")[-1], unquote(name)
            )
            if _query.value.get("ifGenerationNotMatch") == [self.generation]:
                self.refuse(304)
                return
            if _query.value.get("ifGenerationMatch", [self.generation]) != [self.generation]:
                self.refuse(412)
                return
        try:
            Router(self).handle(method)
        except PreconditionError:
            self.refuse(412)

    def end_headers(self) -> None:
        if self.generation != "0":
            self.send_header("x-goog-generation", self.generation)
        super().end_headers()

    def refuse(self, status: int) -> None:
        self.generation = "0"
        content = b"" if status == 304 else b'{"error": {"message": "from the test"}}'
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = partialmethod(serve, "GET")  # noqa: N815
    do_POST = partialmethod(serve, "POST")  # noqa: N815
    do_PUT = partialmethod(serve, "PUT")  # noqa: N815
    do_DELETE = partialmethod(serve, "DELETE")  # noqa: N815
    do_PATCH = partialmethod(serve, "PATCH")  # noqa: N815


class Server(ThreadingHTTPServer):
    """Serves requests at the same time, without reports of clients that were killed."""

    def handle_error(self, *_: Any) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("bucket")
    parser.add_argument("--fail_every", type=int, default=0)
    parser.add_argument("--latency", type=float, default=0.0)
    flags = parser.parse_args()
    logging.disable(logging.CRITICAL)  # the emulator reports each object that it does not find
    storage = CheckedStorage(use_memory_fs=True)
    create_bucket(flags.bucket, storage)
    server = Server(("localhost", 0), partial(Handler, flags, storage))
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
