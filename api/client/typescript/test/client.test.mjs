// Tests of the client against a running server: SLUICE_API is its intake, SLUICE_ADMIN its admin
// listener. Both are started by TestClients of cmd/sluice.
import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import http from "node:http";
import test from "node:test";

import { Client, InvalidSignature, QueueFull, SluiceError, Unavailable, verify } from "../sluice.mjs";

const { SLUICE_API: api, SLUICE_ADMIN: admin } = process.env;

const tune = async (tenant, settings) => {
  const response = await fetch(`${admin}/v1/tenants/${tenant}`, {
    method: "PATCH", headers: { "Content-Type": "application/json" }, body: JSON.stringify(settings),
  });
  assert.equal(response.status, 200);
};

test("submit, wait and follow", async () => {
  const jobs = new Client(api, { tenant: "node" });
  const order = { type: "order.create", payload: { sku: 1 } };
  const job = await jobs.submit(order, { key: "order-1" });
  assert.equal((await jobs.submit(order, { key: "order-1" })).id, job.id);
  assert.equal((await jobs.wait(job.id, { timeout: 30 })).state, "succeeded");
  const states = [];
  for await (const now of jobs.states(job.id)) states.push(now.state);
  assert.equal(states.at(-1), "succeeded");
  assert.ok((await jobs.submit(order, { wait: 20 })).done);
});

test("batch", async () => {
  const jobs = [0, 1, 2].map((n) => ({ type: "t", payload: n }));
  const items = await new Client(api, { tenant: "node-batch" }).submitBatch([...jobs, { type: "", payload: 0 }]);
  assert.deepEqual(items.map((item) => item.status), [202, 202, 202, 422]);
});

test("cancel, refusals and full queues", async () => {
  await tune("node-full", { rate: "1/h", capacity: 1 });
  const jobs = new Client(api, { tenant: "node-full", retryFor: 0 });
  await jobs.wait((await jobs.submit({ type: "t", payload: 1 })).id);
  const waiting = await jobs.submit({ type: "t", payload: 2 });
  await assert.rejects(jobs.submit({ type: "t", payload: 3 }), (e) => e instanceof QueueFull && e.kind === "queue-full" && e.status === 429);
  await assert.rejects(jobs.wait(waiting.id, { timeout: 0.2 }), { name: "TimeoutError" });
  assert.equal((await jobs.cancel(waiting.id)).state, "cancelled");
  await assert.rejects(jobs.job("no/such job"), (e) => e instanceof SluiceError && e.status === 404);
  await assert.rejects(jobs.job(waiting.id, { signal: AbortSignal.abort() }), { name: "AbortError" });
  assert.throws(() => new Client("ftp://127.0.0.1"), TypeError);
});

test("misspelt options", async () => {
  for (const options of [{ apiKey: "k" }, "k"]) assert.throws(() => new Client(api, options), TypeError);
  const jobs = new Client(api, { tenant: "node" });
  await assert.rejects(jobs.submit({ type: "t", payload: 1 }, { idempotencyKey: "x" }), /option idempotencyKey: unknown/);
  await assert.rejects(jobs.wait({ id: "x" }), /id: must be a text/);
  for (const call of ["job", "cancel", "replay", "wait"]) {
    await assert.rejects(async () => jobs[call]("x", { abort: 1 }), /option abort: unknown/);
  }
  await assert.rejects(verify(new Headers(), "{}", "whsec_AAAA", { tenent: "node" }), /option tenent: unknown/);
});

test("a full queue is tried again", async () => {
  await tune("node-again", { rate: "2/s", capacity: 1 });
  const jobs = new Client(api, { tenant: "node-again", retryFor: 30 });
  const ids = new Set();
  for (let n = 0; n < 4; n++) ids.add((await jobs.submit({ type: "t", payload: n })).id);
  assert.equal(ids.size, 4);
});

// failing starts a server with these answers, and tells the keys of its requests.
const failing = async (t, answers) => {
  const keys = [];
  const server = http.createServer((request, response) => {
    keys.push(request.headers["idempotency-key"]);
    request.resume().on("end", () => {
      const [status, headers, body] = answers.shift();
      if (!status) return request.socket.destroy();
      response.writeHead(status, headers).end(body);
    });
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => server.close());
  return { keys, base: `http://127.0.0.1:${server.address().port}` };
};

test("one key for all attempts", async (t) => {
  const { keys, base } = await failing(t, [
    [0], [503, { "Retry-After": "0" }, '{"retry_after_ms": 3600000}'], [429, {}, '{"retry_after_ms": 20}'], [202, {}, '{"id": "1"}'],
  ]);
  assert.equal((await new Client(base, { retryFor: 20 }).submit({ type: "t", payload: 1 })).id, "1");
  assert.deepEqual([keys.length, new Set(keys).size], [4, 1]);
});

test("answers of others, and mistakes", async (t) => {
  const { keys, base } = await failing(t, [
    [502, {}, "<html>"], [503, { "Retry-After": "3600" }, "not json"],
    [422, {}, '{"type": "urn:sluice:problem:invalid-request", "detail": "type: must be set"}'],
  ]);
  const jobs = new Client(base, { retryFor: 10 });
  await assert.rejects(jobs.submit({ type: "t", payload: 1 }), (e) => e instanceof Unavailable && e.retryAfter === 3600);
  await assert.rejects(jobs.submit({ type: "", payload: 1 }), (e) => e.kind === "invalid-request" && /must be set/.test(e.message));
  assert.equal(keys.length, 3);
});

test("signatures", async () => {
  const secret = (letter) => `whsec_${Buffer.from(letter.repeat(32)).toString("base64")}`;
  const body = '{"type":"job.succeeded","data":{"id":"1","tenant":"acme"}}';
  const headers = (letter = "k", at = 1_000_000) => ({
    "webhook-id": "msg", "webhook-timestamp": String(at),
    "webhook-signature": `v1a,AAAA v1,%% v1,${createHmac("sha256", letter.repeat(32)).update(`msg.${at}.${body}`).digest("base64")}`,
  });
  const now = 1_000_000;
  assert.equal((await verify(headers(), body, [secret("o"), secret("k")], { tenant: "acme", now })).data.id, "1");
  assert.equal((await verify(new Headers(headers()), Buffer.from(body), secret("k"), { now })).data.id, "1");
  for (const wrong of [
    () => verify(headers("x"), body, secret("k"), { now }),
    () => verify(headers(), `${body} `, secret("k"), { now }),
    () => verify(headers("k", 999_000), body, secret("k"), { now }),
    () => verify(headers("k", 1_001_000), body, secret("k"), { now }),
    () => verify(headers(), body, secret("k"), { now, tenant: "shop" }),
    () => verify({ "webhook-id": "1" }, body, secret("k"), { now }),
  ]) await assert.rejects(wrong, InvalidSignature);
});
