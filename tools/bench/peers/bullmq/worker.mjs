// Paces jobs by BullMQ's limiter and delivers each by a POST. The orders are the first argument, as JSON: path of Redis' socket, url, payload,
// max and duration of the limiter, arrivals. It says "ready" with the versions, and lets the jobs arrive when it reads a line.
import { createRequire } from 'node:module';
import http from 'node:http';
import readline from 'node:readline';
import { Queue, Worker } from 'bullmq';

const orders = JSON.parse(process.argv[2]);
const { version } = createRequire(import.meta.url)('bullmq/package.json');
const connection = { path: orders.socket, maxRetriesPerRequest: null };
const agent = new http.Agent({ keepAlive: true });

function deliver(job) {
  return new Promise((resolve, reject) => {
    const request = http.request(orders.url, { method: 'POST', agent, headers: { 'Content-Type': 'application/json' } }, (response) => {
      response.resume();
      response.on('end', resolve);
    });
    request.on('error', reject);
    request.end(job.data);
  });
}

const queue = new Queue('paced', { connection });
const worker = new Worker('paced', deliver, { connection, concurrency: 64, limiter: { max: orders.max, duration: orders.duration } });
worker.on('error', (err) => console.error(err));
await queue.waitUntilReady();
await worker.waitUntilReady();
console.log(`ready bullmq ${version} node ${process.versions.node}`);

readline.createInterface({ input: process.stdin }).once('line', () => {
  for (const { at_ns: at, jobs } of orders.arrivals) {
    setTimeout(() => queue.addBulk(Array.from({ length: jobs }, () => ({ name: 'order.create', data: orders.payload }))), at / 1e6);
  }
});
