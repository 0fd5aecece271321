// The worker of docs/how-to/consume-from-another-language.md: node example.js SOCKET
import { readFileSync } from 'node:fs';
import { connect, Queue, Worker } from './headrace.js';

const protocol = JSON.parse(readFileSync(new URL('headrace.json', import.meta.url)));
const redis = await connect({ path: process.argv[2] });
const emails = new Queue(redis, protocol, 'emails');

const worker = new Worker(emails, async job => {
  console.log(job.id, job.attempt, job.payload.toString(), job.headers.language);
}, { concurrency: 20, heartbeat: 2000, timeout: 10_000 });

process.on('SIGTERM', () => worker.stop());
await worker.run();
await redis.close();
