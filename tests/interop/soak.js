// An actor of the soak, the twin of soak.py: node soak.js '{"role": …}'.
import { appendFileSync, readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { connect, Queue, random, Worker } from './headrace.js';

const orders = JSON.parse(process.argv[2]);
const { role, who, seed, socket, log, jobs, mine, lease, heartbeat, timeout } = orders;
const redis = await connect({ path: socket });
const queue = new Queue(redis, JSON.parse(readFileSync(orders.protocol, 'utf8')), orders.queue, { lease });
const write = (...words) => appendFileSync(log, `${words.join(' ')}\n`);

/** Numbers from 0 to 1, the same for the same seed. */
let state = seed;
function dice() {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return state / 2 ** 32;
}

let over = false;
process.on('SIGTERM', () => (over = true));

/** Half of the ids, and half of the other half, some twice in one call. */
async function produce() {
  for (let n = 0; n < jobs;) {
    const part = [];
    for (const end = Math.min(jobs, n + 1 + Math.floor(6 * dice())); n < end; n++) {
      if (n % 2 === mine || dice() < 0.5) part.push(`job-${n}`);
      if (dice() < 0.1 && part.length) part.push(part[0]);
    }
    if (!part.length) continue;
    const receipts = await queue.enqueue(part.map(id => ({ payload: `${who} ${id}`, id })));
    for (const { id, added } of receipts) write('add', who, id, added ? 1 : 0);
    await sleep(15 * dice());
  }
}

let completing = 0;
async function complete(some) {
  completing++;
  const verdicts = await queue.complete(some);
  some.forEach((job, i) => write('end', who, job.id, verdicts[i] ? 1 : 0));
  completing--;
}

/** After so many jobs it dies, but not between a completion and its verdict. */
let left = 40 + Math.floor(40 * dice());
async function live() {
  if (--left > 0) return;
  while (completing) await sleep(1);
  if (over) return;
  if (dice() < 0.5) process.exit(3);
  process.kill(process.pid, 'SIGKILL');
}

/** Works by hand, and badly. */
async function rough() {
  let worker;
  const begin = async () => {
    worker = `${who}.${random(6)}`;
    await queue.beat(worker, timeout, { register: true });
  };
  await begin();
  const duties = setInterval(async () => {
    await queue.beat(worker, timeout);
    await queue.reclaim(worker, timeout);
  }, heartbeat);
  while (!over) {
    const grant = await queue.lease(worker, 4);
    if (grant === null) await begin();
    if (!grant?.jobs.length) await sleep(20);
    for (const job of grant?.jobs ?? []) {
      write('run', who, job.id, job.token);
      const chance = dice();
      await sleep(chance < 0.99 ? 10 * dice() : 2.5 * lease);
      await live();
      if (chance < 0.05) await queue.release([job]);
      else if (chance < 0.1) await queue.retry([job], { delay: 50 * dice(), reason: 'again' });
      else for (let times = chance < 0.2 ? 2 : 1; times; times--) await complete([job]);
    }
  }
  clearInterval(duties);
  await sleep(2 * heartbeat); // a duty may be under way
  await queue.leave(worker);
}

/** Works as it should, but for dying now and then. */
async function steady() {
  const told = Object.assign(Object.create(queue), { complete });
  const worker = new Worker(told, async job => {
    write('run', who, job.id, job.token);
    await sleep(20 * dice());
    await live();
    if (dice() < 0.05) throw new Error('again');
  }, { name: who, concurrency: 2, heartbeat, timeout, backoff: 50 });
  process.on('SIGTERM', () => worker.stop());
  await worker.run();
}

write('up', who);
await { produce, rough, steady }[role]();
await redis.close();
