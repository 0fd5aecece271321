// Checks headrace.js against vectors.json, and prints the differences as JSON:
//   node vectors.js PROTOCOL VECTORS SOCKET RESP
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { ErrorReply, RESP_TYPES } from 'redis';
import { connect, decodeLease, decodeReceipts, Queue } from './headrace.js';

const [protocol, vectors] = process.argv.slice(2, 4).map(path => JSON.parse(readFileSync(path, 'utf8')));
const redis = await connect({ path: process.argv[4] }, { RESP: Number(process.argv[5]) });
const queue = new Queue(redis, protocol, 'shop/orders');
const differences = [];

async function check(what, body) {
  try {
    await body();
  } catch (error) {
    differences.push(`${what}: ${error.message}`);
  }
}

/** Bytes as the vectors have them. */
function asJson(value) {
  if (Array.isArray(value)) return value.map(asJson);
  if (!Buffer.isBuffer(value)) return value;
  const text = value.toString();
  return Buffer.from(text).equals(value) ? text : { hex: value.toString('hex') };
}

function asBytes(value) {
  if (Array.isArray(value)) return value.map(asBytes);
  if (typeof value === 'string') return Buffer.from(value);
  return value?.hex === undefined ? value : Buffer.from(value.hex, 'hex');
}

// -- names, keys

const accept = {
  queue: name => new Queue(redis, protocol, name),
  namespace: namespace => new Queue(redis, protocol, 'q', { namespace }),
  worker: name => queue.checkWorker(name),
  id: id => queue.checkId(id),
  header: name => queue.encode({ payload: '', headers: { [name]: '' } }),
};
for (const [kind, { valid, invalid }] of Object.entries(vectors.names)) {
  for (const name of valid) await check(`${kind} ${name}`, () => accept[kind](name));
  for (const name of invalid) await check(`${kind} ${name}`, () => assert.throws(() => accept[kind](name), RangeError));
}
for (const { namespace, queue: name, lane, result, ...parts } of vectors.keys) {
  await check(`keys of ${name}`, () => {
    const other = new Queue(redis, protocol, name, { namespace });
    for (const [part, key] of Object.entries(parts)) assert.equal(other.key(part), key);
    assert.equal(other.resultKey('an id'), result);
    assert.equal(other.fill(protocol.lane, { lane: '1f' }), lane);
  });
}

// -- what is sent, and what replies mean

const operations = {
  enqueue: (q, { new: jobs }) => q.enqueue(jobs.map(job => ({ ...job, payload: asBytes(job.payload) }))),
  lease: (q, { worker, limit, ...options }) => q.lease(worker, limit, options),
  complete: (q, { jobs, fenced }) => q.complete(jobs, { fenced }),
  release: (q, { jobs }) => q.release(jobs),
  retry: (q, { jobs, ...options }) => q.retry(jobs, options),
  dead_letter: (q, { jobs, reason }) => q.deadLetter(jobs, reason),
  renew: (q, { jobs, ...options }) => q.renew(jobs, options),
  beat: (q, { worker, timeout, register }) => q.beat(worker, timeout, { register }),
  reclaim: (q, { worker, timeout }) => q.reclaim(worker, timeout),
  leave: (q, { worker }) => q.leave(worker),
  cancel: (q, { id }) => q.cancel(id),
};
const SENT = new Error('sent');
for (const { operation, keys, argv, ...given } of vectors.operations) {
  await check(`operation ${operation} ${JSON.stringify(given)}`, async () => {
    const mute = new Queue(redis, protocol, 'shop/orders', { budget: -1 });
    mute.lanes.push({ name: 'l', calls: 0 });
    mute.check = async () => {}; // only the operation is sent
    let sent;
    mute.send = async command => {
      sent = command;
      throw SENT;
    };
    await assert.rejects(operations[operation](mute, given), SENT);
    assert.equal(sent.script, protocol.scripts[operation]);
    const expected = [keys.length, ...keys, ...argv].map(word => (word.hex ? word : String(word)));
    assert.deepEqual(asJson(sent.words), expected);
  });
}
for (const { form, reply, receipts } of vectors.receipts) {
  await check(`receipts ${reply}`, () => assert.deepEqual(decodeReceipts(asBytes(reply), form), receipts));
}
for (const { reply, jobs } of vectors.leases) {
  await check(`lease ${JSON.stringify(reply)}`, () => {
    const found = decodeLease(asBytes(reply), 'w', protocol)?.jobs.map(({ worker, wrong, payload, ...job }) => {
      assert.equal(worker, 'w');
      return { ...job, payload: asJson(payload), readable: wrong === undefined };
    });
    assert.deepEqual(found ?? null, jobs);
  });
}

// -- stories

class Symbols {
  entries = [];

  fill(word) {
    return asBytes(word?.hex ? word : String(word).replace(/<e(\d+)>/g, (_, number) => this.entries[number - 1]));
  }

  matches(expected, found) {
    if (Array.isArray(expected)) {
      return Array.isArray(found) && expected.length === found.length
        && expected.every((item, at) => this.matches(item, found[at]));
    }
    if (expected?.error) return typeof found?.error === 'string' && found.error.includes(expected.error);
    if (expected === '<ms>') return /^\d+$/.test(found);
    const [, number, ms] = /^<e(\d+)(\.ms)?>$/.exec(expected) ?? [];
    if (number === undefined) return JSON.stringify(expected) === JSON.stringify(found);
    if (Number(number) === this.entries.length + 1 && !ms) this.entries.push(found);
    const entry = this.entries[number - 1];
    return found === (ms ? entry?.split('-')[0] : entry);
  }
}

async function reply(send) {
  try {
    return asJson(await send());
  } catch (error) {
    if (!(error instanceof ErrorReply)) throw error;
    return { error: error.message };
  }
}

for (const [title, steps] of Object.entries(vectors.stories)) {
  await redis.sendCommand(['FLUSHALL']);
  const symbols = new Symbols();
  for (const step of steps) {
    if (step.sleep) {
      await sleep(step.sleep);
    } else if (step.wait) {
      await queue.wait(redis, step.wait);
    } else {
      const words = (step.command ?? [...step.keys, ...step.argv]).map(word => symbols.fill(word));
      const typeMapping = { [RESP_TYPES.BLOB_STRING]: Buffer };
      const found = await reply(() => step.command
        ? redis.sendCommand(words, { typeMapping })
        : queue.send({ script: protocol.scripts[step.script], words: [String(step.keys.length), ...words] }));
      if (!symbols.matches(step.reply, found)) {
        const [is, not] = [found, step.reply].map(value => JSON.stringify(value));
        differences.push(`${title}: ${step.script ?? step.command}: ${is}, not ${not}`);
      }
    }
  }
}
await redis.close();
console.log(JSON.stringify(differences));
