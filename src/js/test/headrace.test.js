// Tests of the package as it is installed, on an empty server: HEADRACE_SOCKET=/run/redis.sock npm test
import assert from 'node:assert/strict';
import { after, before, beforeEach, test } from 'node:test';
import protocol from 'headrace/protocol' with { type: 'json' };
import { connect, encodeDelay, NotKept, Queue, Worker } from 'headrace';

const socket = process.env.HEADRACE_SOCKET;
const skip = socket ? false : 'HEADRACE_SOCKET names no server';
let redis;
let queue;

before(async () => { if (socket) redis = await connect({ path: socket }); });
beforeEach(() => { if (socket) queue = new Queue(redis, protocol, `q${process.hrtime.bigint()}`); });
after(async () => { await redis?.close(); });

async function leased(limit = 10) {
  await queue.beat('w.1', 10_000, { register: true });
  return (await queue.lease('w.1', limit)).jobs;
}

test('a delay is ms from now, or a moment', () => {
  assert.equal(encodeDelay(0), '');
  assert.equal(encodeDelay(1500), '+1500');
  assert.equal(encodeDelay(new Date(7)), '@7');
  assert.throws(() => encodeDelay(-1), RangeError);
});

test('names are checked before anything is sent', () => {
  assert.throws(() => new Queue(null, protocol, 'no spaces'), RangeError);
});

test('options that only Python has are refused', () => {
  assert.throws(() => new Queue(null, protocol, 'q', { ordered: true }), NotKept);
  assert.throws(() => new Worker(new Queue(null, protocol, 'q', { lease: 1000 }), () => {}, { rate: 5 }), NotKept);
});

test('an id is taken until its job is done', { skip }, async () => {
  const jobs = [{ payload: 'a', id: 'one', headers: { language: 'en' } }];
  assert.deepEqual((await queue.enqueue(jobs)).map(one => one.added), [true]);
  assert.deepEqual((await queue.enqueue(jobs)).map(one => one.added), [false]);
  const [job] = await leased();
  assert.equal(job.id, 'one');
  assert.equal(job.payload.toString(), 'a');
  assert.equal(job.headers.language, 'en');
  assert.equal(job.attempt, 1);
  assert.equal((await queue.complete([job]))[0], true);
  assert.equal((await queue.complete([job]))[0], false);
  assert.deepEqual((await queue.enqueue(jobs)).map(one => one.added), [true]);
});

test('what is released comes first, and spends no attempt', { skip }, async () => {
  await queue.enqueue(['a', 'b'].map(payload => ({ payload })));
  const [job] = await leased(1);
  assert.equal((await queue.release([job]))[0], true);
  const [again] = await leased(1);
  assert.equal(again.payload.toString(), 'a');
  assert.equal(again.attempt, 1);
});

test('a signal is kept for a job that does not wait yet, and once', { skip }, async () => {
  await queue.enqueue([{ payload: 'a', id: 'one' }]);
  assert.equal(await queue.signal('nobody', 'approved'), 'unknown');
  assert.equal(await queue.signal('one', 'approved', { by: 'ada' }), 'kept');
  assert.equal(await queue.signal('one', 'approved', Buffer.from('x')), 'present');
  const [record] = await queue.steps('one');
  assert.deepEqual([record.name, record.kind, record.value], ['approved', 'signal', { by: 'ada' }]);
  await assert.rejects(queue.signal('one', 'large', 'x'.repeat(70_000)), RangeError);
});

test('a worker runs what is there, tries again what fails, and stops', { skip }, async () => {
  await queue.enqueue(['fine', 'fails once'].map(payload => ({ payload })));
  const done = [];
  const worker = new Worker(queue, async job => {
    if (job.payload.toString() === 'fails once' && job.attempt === 1) throw new Error('once');
    done.push(`${job.payload} ${job.attempt}`);
    if (done.length === 2) worker.stop();
  }, { heartbeat: 200, timeout: 1000, backoff: 1 });
  await worker.run();
  assert.deepEqual(done.sort(), ['fails once 2', 'fine 1']);
});
