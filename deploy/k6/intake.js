// Jobs arrive at a constant rate, however long each answer takes (an open model): more than the tenant's rate, so that the queue fills, and when
// it is full the rest is refused. What is admitted leaves at the tenant's rate.
//
//   sluice echo &
//   sluice serve --dev --config deploy/k6/sluice.yaml &
//   k6 run -e TENANT=load deploy/k6/intake.js
//
// Variables (-e NAME=VALUE): API, where Sluice listens; TENANT, whose jobs they are; KEY, an API key where clients authenticate; RATE, jobs a
// second (100); DURATION (30s); P99, how long an answer may take in ms (100).
import http from 'k6/http';
import { check } from 'k6';
import exec from 'k6/execution';
import { Counter, Trend } from 'k6/metrics';

const api = __ENV.API || 'http://127.0.0.1:8080';
const rate = Number(__ENV.RATE || 100);

const admitted = new Counter('jobs_admitted');
const full = new Counter('jobs_refused_queue_full');
const position = new Trend('job_position');

export const options = {
  scenarios: {
    intake: {
      // As many clients as jobs in a second, made beforehand: answers may take so long before an arrival is dropped.
      executor: 'constant-arrival-rate', rate, timeUnit: '1s', duration: __ENV.DURATION || '30s', preAllocatedVUs: rate, maxVUs: rate,
    },
  },
  thresholds: {
    checks: ['rate==1'],
    dropped_iterations: ['count==0'], // else the load was not what it should be
    http_req_duration: [`p(99)<${__ENV.P99 || 100}`],
  },
};

const headers = { 'Content-Type': 'application/json', 'Sluice-Tenant': __ENV.TENANT || 'k6' };
if (__ENV.KEY) {
  headers['Authorization'] = `Bearer ${__ENV.KEY}`;
  delete headers['Sluice-Tenant'];
}

// Each job has a key of its own, in the next run too.
const run = Date.now();

http.setResponseCallback(http.expectedStatuses(202, 429));

export default function () {
  const n = exec.scenario.iterationInTest;
  const answer = http.post(`${api}/v1/jobs`, JSON.stringify({ type: 'order.create', payload: { n } }), {
    headers: Object.assign({ 'Idempotency-Key': `k6-${run}-${exec.vu.idInTest}-${n}` }, headers),
  });
  if (answer.status === 202) {
    admitted.add(1);
    position.add(answer.json('position') || 0);
    check(answer, { 'has the location of its job': (a) => /^\/v1\/jobs\/.+/.test(a.headers['Location']) });
    return;
  }
  full.add(1);
  check(answer, {
    'is 429 because the queue is full': (a) => a.status === 429 && a.json('type') === 'urn:sluice:problem:queue-full' && a.json('depth') >= a.json('capacity'),
    'says when to come back': (a) => Number(a.headers['Retry-After']) > 0,
  });
}
