"""Tests of the client against a running server: SLUICE_API is its intake, SLUICE_ADMIN its admin
listener. Both are started by TestClients of cmd/sluice."""

import base64
import hashlib
import hmac
import json
import os
import threading
import time
import unittest
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

from sluice import Client, InvalidSignature, QueueFull, SluiceError, Unavailable, verify

API, ADMIN = os.environ["SLUICE_API"], os.environ["SLUICE_ADMIN"]


def tune(tenant, **settings):
    """Change the settings of a tenant."""
    request = urllib.request.Request(
        f"{ADMIN}/v1/tenants/{tenant}",
        json.dumps(settings).encode(),
        {"Content-Type": "application/json"},
        method="PATCH",
    )
    urllib.request.urlopen(request).close()


class Jobs(unittest.TestCase):
    def test_submit_and_wait(self):
        jobs = Client(API, tenant="python")
        job = jobs.submit("order.create", {"sku": 1, "text": "ä\u2028"}, key="order-1")
        self.assertEqual(jobs.submit("order.create", {"sku": 1, "text": "ä\u2028"}, key="order-1")["id"], job["id"])
        done = jobs.wait(job["id"], timeout=30)
        self.assertEqual((done["state"], done["tenant"]), ("succeeded", "python"))
        self.assertEqual([one["state"] for one in jobs.states(job["id"])][-1], "succeeded")

    def test_submit_that_waits(self):
        done = Client(API, tenant="python-waits").submit("t", 1, wait=20)
        self.assertTrue(done["done"])

    def test_states(self):
        tune("python-states", rate="1/s", capacity=5)
        jobs = Client(API, tenant="python-states")
        jobs.submit("t", 1)
        states = [one["state"] for one in jobs.states(jobs.submit("t", 2)["id"])]
        self.assertEqual((states[0], states[-1]), ("queued", "succeeded"))

    def test_batch(self):
        items = Client(API, tenant="python-batch").submit_batch(
            [{"type": "t", "payload": n} for n in range(3)] + [{"type": "", "payload": 0}]
        )
        self.assertEqual([one["status"] for one in items], [202, 202, 202, 422])
        self.assertEqual(items[3]["errors"][0]["field"], "type")

    def test_cancel_and_not_found(self):
        tune("python-cancel", rate="1/h", capacity=5)
        jobs = Client(API, tenant="python-cancel")
        jobs.submit("t", 1)
        waiting = jobs.submit("t", 2)
        self.assertEqual(jobs.cancel(waiting["id"])["state"], "cancelled")
        with self.assertRaises(SluiceError) as refused:
            jobs.job("no/such job")
        self.assertEqual(refused.exception.status, 404)

    def test_full_queue(self):
        tune("python-full", rate="1/h", capacity=1)
        jobs = Client(API, tenant="python-full", retry_for=0)
        with self.assertRaises(QueueFull) as refused:
            for n in range(4):
                jobs.submit("t", n)
        self.assertEqual((refused.exception.status, refused.exception.kind), (429, "queue-full"))

    def test_full_queue_is_tried_again(self):
        tune("python-again", rate="2/s", capacity=1)
        jobs = Client(API, tenant="python-again", retry_for=30)
        ids = {jobs.submit("t", n)["id"] for n in range(4)}
        self.assertEqual(len(ids), 4)

    def test_timeout(self):
        tune("python-slow", rate="1/h", capacity=5)
        jobs = Client(API, tenant="python-slow")
        jobs.submit("t", 1)
        with self.assertRaises(TimeoutError):
            jobs.wait(jobs.submit("t", 2)["id"], timeout=0.2)

    def test_bad_base(self):
        with self.assertRaises(ValueError):
            Client("127.0.0.1:8080")


class Failing(BaseHTTPRequestHandler):
    """Answers as listed, and counts keys."""

    answers, keys = [], []

    def do_POST(self):
        Failing.keys.append(self.headers["Idempotency-Key"])
        self.rfile.read(int(self.headers["Content-Length"]))
        status, header, body = Failing.answers.pop(0)
        if status == 0:
            self.connection.close()  # an answer is lost
            return
        self.send_response(status)
        for name, value in header.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


class Retries(unittest.TestCase):
    def setUp(self):
        self.server = HTTPServer(("127.0.0.1", 0), Failing)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.base = f"http://127.0.0.1:{self.server.server_port}"
        Failing.keys = []

    def tearDown(self):
        self.server.shutdown()
        self.server.server_close()

    def test_one_key_for_all_attempts(self):
        Failing.answers = [
            (0, {}, b""),
            (503, {"Retry-After": "0"}, b'{"retry_after_ms": 3600000}'),
            (429, {}, b'{"retry_after_ms": 20}'),
            (202, {}, b'{"id": "1", "done": false}'),
        ]
        began = time.monotonic()
        self.assertEqual(Client(self.base, retry_for=20).submit("t", 1)["id"], "1")
        self.assertLess(time.monotonic() - began, 10)
        self.assertEqual((len(Failing.keys), len(set(Failing.keys))), (4, 1))

    def test_answers_of_others(self):
        Failing.answers = [(502, {}, b"<html>"), (503, {"Retry-After": "3600"}, b"not json")]
        with self.assertRaises(Unavailable) as refused:
            Client(self.base, retry_for=10).submit("t", 1)
        self.assertEqual((refused.exception.status, refused.exception.retry_after), (503, 3600))

    def test_no_retry_of_a_mistake(self):
        Failing.answers = [(422, {}, b'{"type": "urn:sluice:problem:invalid-request", "detail": "type: must be set"}')]
        with self.assertRaises(SluiceError) as refused:
            Client(self.base).submit("", 1)
        self.assertEqual((refused.exception.kind, len(Failing.keys)), ("invalid-request", 1))
        self.assertIn("must be set", str(refused.exception))


class Signatures(unittest.TestCase):
    secret = "whsec_" + base64.b64encode(b"k" * 32).decode()
    body = b'{"type":"job.succeeded","data":{"id":"1","tenant":"acme"}}'

    def headers(self, secret=b"k" * 32, at=1_000_000, id="msg"):
        mac = hmac.new(secret, f"{id}.{at}.".encode() + self.body, hashlib.sha256).digest()
        return {
            "Webhook-Id": id,
            "webhook-timestamp": str(at),
            "WEBHOOK-SIGNATURE": "v1a,AAAA v1,AAAA v1," + base64.b64encode(mac).decode(),
        }

    def test_right(self):
        old = "whsec_" + base64.b64encode(b"o" * 32).decode()
        event = verify(self.headers(), self.body, [old, self.secret], tenant="acme", now=1_000_100)
        self.assertEqual(event["data"]["id"], "1")

    def test_wrong(self):
        for what, arguments in {
            "another secret": dict(headers=self.headers(b"x" * 32)),
            "another body": dict(headers=self.headers(), body=self.body + b" "),
            "too old": dict(headers=self.headers(at=999_000)),
            "too early": dict(headers=self.headers(at=1_001_000)),
            "another tenant": dict(headers=self.headers(), tenant="shop"),
            "no signature": dict(headers={"webhook-id": "1"}),
            "no number": dict(headers={**self.headers(), "webhook-timestamp": "now"}),
        }.items():
            with self.subTest(what), self.assertRaises(InvalidSignature):
                verify(**{"body": self.body, "secrets": self.secret, "now": 1_000_000, **arguments})


if __name__ == "__main__":
    unittest.main()
