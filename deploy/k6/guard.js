// One client sends about 30 logins a minute where a guard lets pass 20: the first 20 are answered with 202, those that follow with 429.
//
//   sluice echo &
//   sluice serve --dev --config deploy/k6/sluice.yaml &
//   k6 run deploy/k6/guard.js
//
// Variables (-e NAME=VALUE): API, where Sluice listens; TENANT, whose requests they are; KEY, an API key where clients authenticate;
// REQUESTS a minute (30); PASS of them pass (20). A second run within a minute finds the address blocked.
import http from 'k6/http';
import { check } from 'k6';
import { Counter } from 'k6/metrics';

const api = __ENV.API || 'http://127.0.0.1:8080';
const requests = Number(__ENV.REQUESTS || 30);
const pass = Number(__ENV.PASS || 20);

const passed = new Counter('guard_passed');
const refused = new Counter('guard_refused');

export const options = {
  scenarios: {
    client: { executor: 'constant-arrival-rate', rate: requests, timeUnit: '1m', duration: '1m', preAllocatedVUs: 1, maxVUs: 5 },
  },
  thresholds: {
    checks: ['rate==1'],
    guard_passed: [`count==${pass}`],
    guard_refused: [`count>=${requests - pass}`],
  },
};

const headers = { 'Content-Type': 'application/json', 'Sluice-Tenant': __ENV.TENANT || 'k6' };
if (__ENV.KEY) {
  headers['Authorization'] = `Bearer ${__ENV.KEY}`;
  delete headers['Sluice-Tenant'];
}

http.setResponseCallback(http.expectedStatuses(202, 429));

export default function () {
  const answer = http.post(`${api}/v1/jobs`, JSON.stringify({ type: 'user.login', payload: { user: 1 } }), { headers });
  if (answer.status === 202) {
    passed.add(1);
    check(answer, { 'has the location of its job': (a) => /^\/v1\/jobs\/.+/.test(a.headers['Location']) });
    return;
  }
  refused.add(1);
  check(answer, {
    'is 429': (a) => a.status === 429,
    'says which guard it was': (a) => a.status === 429 && a.json('type') === 'urn:sluice:problem:rate-limited' && a.json('guard') === 'logins',
    'says when to come back': (a) => Number(a.headers['Retry-After']) > 0,
  });
}
