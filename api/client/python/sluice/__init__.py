"""Client of the Sluice API: submit jobs, wait for them, and verify what Sluice sends.

Needs Python 3.9 and nothing else. A Client may be used by several threads.
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import http.client
import json
import random
import ssl
import time
import urllib.parse
import uuid
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Union

__all__ = ["Client", "InvalidSignature", "QueueFull", "SluiceError", "Unavailable", "verify"]

Job = Dict[str, Any]  # as in the schema Job of /openapi.json

_LONGEST_WAIT = 30  # seconds that the server waits for a job in one request
_MOST_BYTES = 64 << 20  # of one answer


class SluiceError(Exception):
    """An answer that is not a success.

    status  HTTP status
    kind    last part of the problem's type, such as "queue-full"; empty if the answer is none
    problem the whole problem (RFC 9457), a dict
    retry_after  seconds until the request may succeed; None if the server does not say
    """

    def __init__(self, status: int, problem: Mapping[str, Any], retry_after: Optional[float]):
        self.status = status
        self.problem = dict(problem)
        self.kind = str(problem.get("type", "")).rpartition(":")[2]
        self.retry_after = retry_after
        text = problem.get("detail") or problem.get("title") or "no reason given"
        super().__init__(f"{text} ({status} {self.kind})".rstrip())


class QueueFull(SluiceError):
    """The tenant's queue, its pool or the store is full, or requests come too fast: 429."""


class Unavailable(SluiceError):
    """The server, or its store, cannot answer now: 502, 503 or 504."""


class InvalidSignature(Exception):
    """A request is not from Sluice, or it is too old."""


def _failure(status: int, headers: Mapping[str, str], body: bytes) -> SluiceError:
    problem: Dict[str, Any] = {}
    try:
        parsed = json.loads(body)
        if isinstance(parsed, dict):
            problem = parsed
    except ValueError:
        pass
    kind = QueueFull if status == 429 else Unavailable if status in (502, 503, 504) else SluiceError
    return kind(status, problem, _seconds(headers.get("retry-after"), problem))


def _seconds(header: Optional[str], problem: Mapping[str, Any]) -> Optional[float]:
    """How long to wait: Retry-After, which gives each client a turn of its own, or retry_after_ms."""
    if not header:
        ms = problem.get("retry_after_ms")
        return ms / 1000 if isinstance(ms, (int, float)) and ms > 0 else None
    if header.strip().isdigit():
        return float(header)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


class Client:
    """Client(base) calls the intake of one server, such as "http://127.0.0.1:8080".

    token     API key or JWT; None without authentication
    tenant    whose jobs they are; None: that of the token, or the server's "default"
    retry_for seconds for which a call is repeated after 429, 503 and lost connections, each time
              after what Retry-After says. 0: never. Only calls that may be repeated are: a
              submission has an idempotency key, made by the client if you give none.
    timeout   seconds without a byte of an answer after which a connection counts as lost
    context   for https: certificates to trust and to show
    """

    def __init__(
        self,
        base: str,
        token: Optional[str] = None,
        tenant: Optional[str] = None,
        retry_for: float = 60,
        timeout: float = 15,
        context: Optional[ssl.SSLContext] = None,
    ):
        url = urllib.parse.urlsplit(base)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError(f"base: {base!r}: must start with http:// or https:// and name a host")
        self._url, self._token, self._tenant = url, token, tenant
        self._retry_for, self._timeout, self._context = retry_for, timeout, context

    def submit(
        self,
        type: str,
        payload: Any,
        *,
        key: Optional[str] = None,
        wait: int = 0,
        **options: Any,
    ) -> Job:
        """Submit one job and return it.

        payload is sent as JSON. key makes repeated submissions one job. wait is how many seconds
        to wait for the end of the job, at most 30. options are the other fields of the schema
        Submission: route, delay_ms, max_wait_ms, cost, callback_url, headers, path.
        """
        body = {"type": type, "payload": payload, **options}
        headers = {"Idempotency-Key": json.dumps(key or uuid.uuid4().hex)}
        if wait:
            headers["Prefer"] = f"wait={min(wait, _LONGEST_WAIT)}"
        return self._call("POST", "/v1/jobs", body, headers, longest=wait)

    def submit_batch(self, jobs: Iterable[Mapping[str, Any]], atomic: bool = False) -> List[Dict[str, Any]]:
        """Submit up to 1,000 jobs of one tenant; each is a dict of the schema BatchJob.

        Return a result of each, in order: status 202 or 200 with job, or a problem of its own,
        such as status 429. A job without an idempotency_key gets one.
        """
        keyed = [{"idempotency_key": uuid.uuid4().hex, **job} for job in jobs]
        return self._call("POST", "/v1/jobs/batch", {"atomic": atomic, "jobs": keyed}, {})["items"]

    def job(self, id: str) -> Job:
        """Read a job: its state, its position and, once it is done, the answer of the upstream."""
        return self._call("GET", _path(id))

    def wait(self, id: str, timeout: float = 300) -> Job:
        """Wait for the end of a job. TimeoutError if it has not ended within timeout seconds."""
        end = time.monotonic() + timeout
        while True:
            left = max(0, min(_LONGEST_WAIT, int(end - time.monotonic()) + 1))
            job = self._call("GET", _path(id), None, {"Prefer": f"wait={left}"}, longest=left)
            if job["done"]:
                return job
            if time.monotonic() >= end:
                raise TimeoutError(f"job {id} is {job.get('state')} after {timeout} s")

    def states(self, id: str) -> Iterator[Job]:
        """Yield the job each time that its state or its position changes, until it is done."""
        last = ""
        while True:
            headers = {"Accept": "text/event-stream"}
            if last:
                headers["Last-Event-ID"] = last
            connection, response = self._open("GET", _path(id) + "/events", None, headers, 0)
            try:
                for event, number, data in _events(response):
                    last = number or last
                    if event == "state":
                        job = json.loads(data)
                        yield job
                        if job["done"]:
                            return
            except (OSError, http.client.HTTPException):
                pass  # go on behind the last event
            finally:
                connection.close()

    def cancel(self, id: str) -> Job:
        """Cancel a waiting job. SluiceError of the kind "job-state-conflict" if it has left the queue."""
        return self._call("DELETE", _path(id))

    def replay(self, id: str) -> Job:
        """Queue a dead job again. After a lost answer this may be a "job-state-conflict"."""
        return self._call("POST", _path(id) + "/replay", {})

    def answer(self, id: str) -> bytes:
        """Read the whole stored answer of the upstream to a forwarded request."""
        connection, response = self._open("GET", _path(id) + "/response", None, {}, 0)
        try:
            return response.read(_MOST_BYTES)
        finally:
            connection.close()

    def _call(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Optional[Mapping[str, str]] = None,
        longest: float = 0,
    ) -> Any:
        connection, response = self._open(method, path, body, headers or {}, longest)
        try:
            return json.loads(response.read(_MOST_BYTES))
        finally:
            connection.close()

    def _open(self, method: str, path: str, body: Any, headers: Mapping[str, str], longest: float) -> Any:
        """Send a request until it succeeds, is refused for good, or retry_for is over."""
        content = None if body is None else json.dumps(body).encode()
        sent = dict(headers)
        if content is not None:
            sent["Content-Type"] = "application/json"
        if self._token:
            sent["Authorization"] = "Bearer " + self._token
        if self._tenant is not None:
            sent["Sluice-Tenant"] = self._tenant
        end, attempt = time.monotonic() + self._retry_for, 0
        while True:
            pause = min(5.0, 0.1 * 2**attempt) * random.uniform(0.5, 1)
            connection = self._connect(longest)
            try:
                connection.request(method, (self._url.path.rstrip("/")) + path, content, sent)
                response = connection.getresponse()
                if 200 <= response.status < 300:
                    return connection, response
                failure: Exception = _failure(
                    response.status, {k.lower(): v for k, v in response.getheaders()}, response.read(_MOST_BYTES)
                )
                connection.close()
                if response.status not in (429, 502, 503, 504) or failure.kind == "never-fits":
                    raise failure
                pause = failure.retry_after or pause
            except (OSError, http.client.HTTPException) as lost:
                connection.close()
                failure = lost
            attempt += 1
            if time.monotonic() + pause > end:
                raise failure
            time.sleep(pause)

    def _connect(self, longest: float) -> http.client.HTTPConnection:
        timeout = self._timeout + longest
        if self._url.scheme == "https":
            return http.client.HTTPSConnection(
                self._url.hostname or "", self._url.port, timeout=timeout, context=self._context
            )
        return http.client.HTTPConnection(self._url.hostname or "", self._url.port, timeout=timeout)


def _path(id: str) -> str:
    return "/v1/jobs/" + urllib.parse.quote(id, safe="")


def _events(response: http.client.HTTPResponse) -> Iterator[Any]:
    """Yield name, id and data of each event of a stream (HTML, section 9.2)."""
    name, number, data = "message", "", []
    for raw in response:
        line = raw.decode().rstrip("\r\n")
        if not line:
            if data:
                yield name, number, "\n".join(data)
            name, data = "message", []
            continue
        field, _, value = line.partition(":")
        value = value[1:] if value.startswith(" ") else value
        if field == "event":
            name = value
        elif field == "id":
            number = value
        elif field == "data":
            data.append(value)


def verify(
    headers: Mapping[str, str],
    body: bytes,
    secrets: Union[str, Sequence[str]],
    tenant: Optional[str] = None,
    tolerance: float = 300,
    now: Optional[float] = None,
) -> Dict[str, Any]:
    """Check that a callback is from Sluice and return its event, or raise InvalidSignature.

    headers and body are those of the request; body are its bytes before any parsing. secrets are
    one or more "whsec_…", of which one must fit (Standard Webhooks). tenant must be that of the
    job, if it is given: where all tenants share a secret, only this tells them apart. tolerance is
    how many seconds the signature may be old or early.
    """
    lower = {name.lower(): value for name, value in headers.items()}
    try:
        id, at, signed = lower["webhook-id"], lower["webhook-timestamp"], lower["webhook-signature"]
        age = abs((time.time() if now is None else now) - int(at))
    except (KeyError, ValueError):
        raise InvalidSignature("the request is not signed") from None
    if age > tolerance:
        raise InvalidSignature("the signature is too old or too early")
    text = f"{id}.{at}.".encode() + body
    given = [part[3:] for part in signed.split() if part.startswith("v1,")]
    for secret in [secrets] if isinstance(secrets, str) else secrets:
        key = base64.b64decode(secret[6:] if secret.startswith("whsec_") else secret)
        right = base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode()
        if any(hmac.compare_digest(right.encode(), one.encode()) for one in given):
            event = json.loads(body)
            if tenant is not None and event.get("data", {}).get("tenant") != tenant:
                raise InvalidSignature("the event is of another tenant")
            return event
    raise InvalidSignature("no signature fits")
