// A client of headrace, written from docs/reference/redis-protocol.md. What is fixed there comes as data: `protocol` is
// what `headrace protocol` prints. Times are milliseconds; payloads are strings or Buffers, and arrive as Buffers.
import { randomBytes } from 'node:crypto';
import { hostname } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { ClientClosedError, createClient, ErrorReply, RESP_TYPES } from 'redis';

const BYTES = { typeMapping: { [RESP_TYPES.BLOB_STRING]: Buffer } };

export const random = bytes => randomBytes(bytes).toString('hex');

/** Something that Python's queues, jobs or calls have, and this client does not keep: nothing was changed by it. */
export class NotKept extends Error {
  name = 'NotKept';
}

/** Refuse names that nobody takes: they may be options that only Python's client has. */
function refuse(others, what) {
  const [name] = Object.keys(others);
  if (name !== undefined) throw new NotKept(`${what}: this client has no ${name}; leave it out, or use Python's client`);
}

const AROUND = /^(Compressed|Encrypted|Offloaded)\(/; // codecs that hide what another has written

const TERMS = 'fair= or limits=';
const HAS_TERMS = 5; // what `lease` answers then

/** What a queue may have that this client does not keep: for whom, whether `facts` say so, and its name in Python. */
const OF_QUEUES = [
  ['all', facts => facts.sharded, 'shards='],
  ['all', facts => AROUND.test(facts.codec), 'a codec around another'],
  ['producer', facts => facts.max_waiting, 'max_waiting='],
  ['producer', facts => facts.unique_for, 'unique_for='],
  ['worker', facts => facts.levels > 0, 'priorities='],
  ['worker', facts => facts.ordered, 'ordered=True'],
  ['worker', facts => facts.rate, 'rate='],
  ['worker', facts => facts.terms, TERMS],
];

/** Headers of jobs for which a completion does more than this client can. */
const OF_JOBS = { 'headrace-flow': 'a stage of a flow', 'headrace-unique': 'unique_for=' };

/** A connection. What was not answered is asked again by `Queue.call`, and by nobody else. */
export async function connect(socket, options = {}) {
  const redis = createClient({ socket: { socketTimeout: 10_000, ...socket }, disableOfflineQueue: true, ...options });
  redis.on('error', () => {}); // it reconnects, and calls in flight are rejected
  return redis.connect();
}

/** '' none, '+ms' from the server's now, '@ms' a moment of its clock: a Date, or ms since the epoch as `{ at }`. */
export function encodeDelay(delay) {
  if (delay instanceof Date) return encodeDelay({ at: delay.getTime() });
  if (typeof delay === 'object' && delay !== null) return `@${Math.ceil(delay.at)}`;
  if (delay && !(delay > 0 && delay < Infinity)) throw new RangeError(`delay ${delay}: give 0 or more ms, or a Date`);
  return delay ? `+${Math.ceil(delay)}` : '';
}

export class Queue {
  constructor(redis, protocol, name, { namespace = protocol.defaults.namespace, ...settings } = {}) {
    const { names } = protocol;
    const others = Object.entries(settings).filter(([option]) => !(option in protocol.defaults));
    refuse(Object.fromEntries(others), `queue ${name}`);
    if (!(new RegExp(names.queue).test(name) && name.length <= names.queue_characters)) {
      throw new RangeError(`queue name ${JSON.stringify(name)}: it must match ${names.queue}`);
    }
    if (!new RegExp(names.namespace).test(namespace)) {
      throw new RangeError(`namespace ${JSON.stringify(namespace)}: it must match ${names.namespace}`);
    }
    Object.assign(this, { redis, protocol, name, namespace });
    this.settings = { ...protocol.defaults, ...settings };
    this.own = settings;
    this.lanes = [];
    this.checked = {}; // who asked `check`, and when
  }

  // -- names ----------------------------------------------------------------------------------------

  fill(template, variables) {
    const all = { namespace: this.namespace, group: this.name.split('/')[0], queue: this.name, ...variables };
    return template.replace(/<(\w+)>/g, (_, variable) => all[variable]);
  }

  key(part) {
    return this.fill(this.protocol.key, { part });
  }

  resultKey(id) {
    return this.fill(this.protocol.result, { id: this.checkId(id) });
  }

  checkId(id) {
    const { never_in_id: never, id_bytes: most } = this.protocol.names;
    const fine = typeof id === 'string' && id && id.isWellFormed() && Buffer.byteLength(id) <= most;
    if (!fine || new RegExp(never).test(id)) {
      throw new RangeError(`id ${JSON.stringify(id)}: give 1-${most} bytes of UTF-8 without control characters`);
    }
    return id;
  }

  checkWorker(name) {
    const { names, parked, idle } = this.protocol;
    if (!new RegExp(names.worker).test(name) || [parked, idle].includes(name)) {
      throw new RangeError(`worker name ${JSON.stringify(name)}: it must match ${names.worker}, and not be reserved`);
    }
    return name;
  }

  // -- calls ----------------------------------------------------------------------------------------

  /** A script call as a command: `args` by name, `items` and `more` for the variable tails of its ARGV and KEYS. */
  command(name, { lane, call = '', args = {}, items = [], more = [] }) {
    const script = this.protocol.scripts[name];
    const keys = script.keys.map(part => {
      if (part === 'lane') return this.fill(this.protocol.lane, { lane });
      return part === 'result' ? this.resultKey(args.id) : this.key(part);
    });
    const argv = script.args.flatMap(arg => {
      if (arg.endsWith('...')) return items;
      const value = arg === 'call' ? call : args[arg];
      if (value === undefined) throw new TypeError(`${name}: no value for its argument ${arg}`);
      return [value];
    });
    const words = [...keys, ...more, ...argv].map(word => (Buffer.isBuffer(word) ? word : String(word)));
    return { script, words: [String(keys.length + more.length), ...words] };
  }

  /** Send a command once. */
  async send({ script, words }) {
    try {
      return await this.redis.sendCommand(['EVALSHA', script.sha1, ...words], BYTES);
    } catch (error) {
      if (!(error instanceof ErrorReply && error.message.startsWith('NOSCRIPT'))) throw error;
      return await this.redis.sendCommand(['EVAL', script.source, ...words], BYTES);
    }
  }

  heals(error) {
    if (!(error instanceof ErrorReply)) return !(error instanceof ClientClosedError || error instanceof TypeError);
    return this.protocol.again.some(word => new RegExp(`\\b${word}\\b`).test(error.message.slice(0, 300)));
  }

  /** Call a script; ask again, under the same number, while that can help. */
  async call(name, args = {}, items = [], more = []) {
    const lane = this.lanes.pop() ?? { name: random(8), calls: 0 };
    lane.calls += 1;
    const command = this.command(name, { lane: lane.name, call: lane.calls, args, items, more });
    let times = 0;
    const reply = await this.repeated(() => (times++, this.send(command)));
    if (times === 1) this.lanes.push(lane); // else a copy may still be on its way: draw a new one
    return reply;
  }

  /** What `ask` brings, which is called again while that can help. */
  async repeated(ask) {
    const end = performance.now() + this.settings.budget;
    for (let pause = 20; ; pause = Math.min(2 * pause, 2000)) {
      try {
        return await ask();
      } catch (error) {
        if (!this.heals(error) || performance.now() > end) throw error;
        await sleep(pause * Math.random());
      }
    }
  }

  exists(key) {
    return this.repeated(() => this.redis.sendCommand(['EXISTS', key]));
  }

  // -- features that this client refuses --------------------------------------------------------------

  /** What the users of the queue have declared, by Python's names, and its shards and levels. */
  async facts() {
    const [sharded, about] = await Promise.all([this.exists(this.fill(this.protocol.shards)), this.call('about')]);
    const facts = { sharded, levels: about[2] };
    for (let i = 4; i < about.length; i += 2) facts[about[i]] = String(about[i + 1]);
    for (const option of ['max_waiting', 'unique_for']) if (facts[option] === 'None') delete facts[option];
    return { ...facts, ordered: facts.ordered === 'yes' };
  }

  notKept(what, role) {
    return new NotKept(`queue ${this.name} has ${what}, which this client does not keep: use a ${role} in Python`);
  }

  /** Throw `NotKept` if the queue has something that a `producer` or `worker` of this client would break. */
  async check(role, { age = 1000 } = {}) {
    if (performance.now() - this.checked[role] < age) return;
    const facts = await this.facts();
    for (const [whose, has, what] of OF_QUEUES) {
      if (['all', role].includes(whose) && has(facts)) {
        throw this.notKept(what, role);
      }
    }
    const attempts = facts.max_attempts === 'None' ? 0 : Number(facts.max_attempts);
    if (facts.max_attempts && !('max_attempts' in this.own)) this.settings.max_attempts = attempts;
    this.checked[role] = performance.now();
  }

  /** Throw `NotKept` if one of these jobs, leased just now, is not for this client. */
  async checkJobs(jobs) {
    await this.check('worker', { age: 0 });
    const runs = await this.exists(this.key('steps'));
    for (const job of jobs) {
      const named = Object.keys(OF_JOBS).find(header => header in job.headers);
      const what = named ? OF_JOBS[named] : runs && (await this.steps(job.id)).length > 0 && 'steps';
      if (what) throw new NotKept(`job ${job.id} has ${what}, which this client does not keep: use a worker in Python`);
    }
  }

  // -- producing ------------------------------------------------------------------------------------

  /** Jobs, each a payload or `{ payload, id, delay, headers }`, as arguments of `enqueue`: one list a job. */
  encode(job) {
    if (typeof job === 'string' || Buffer.isBuffer(job)) return this.encode({ payload: job });
    const { fields, limits } = this.protocol;
    const { payload, id: given, delay: after, headers: texts, ...others } = job;
    refuse(others, 'enqueue');
    if (!Buffer.isBuffer(payload) && !(typeof payload === 'string' && payload.isWellFormed())) {
      throw new TypeError(`payload ${typeof payload}: give a string of Unicode, or a Buffer; JSON.stringify makes one`);
    }
    const delay = encodeDelay(after);
    const id = given === undefined ? (delay ? random(12) : '') : this.checkId(given);
    const headers = Object.entries(texts ?? {});
    if (headers.length > limits.headers) throw new RangeError(`headers: at most ${limits.headers}`);
    for (const [name, text] of headers) {
      if (!name || fields.includes(name)) throw new RangeError(`header name ${JSON.stringify(name)} is taken`);
      if (typeof text !== 'string' || !(name + text).isWellFormed()) throw new TypeError(`header ${name}: give text`);
    }
    const flat = ['data', payload, ...(id ? ['id', id] : []), ...headers.flat()];
    return [id, delay, String(flat.length), ...flat];
  }

  /** Add jobs; for each its `id`, and whether it was `added`: a job whose id is taken is left as it is. */
  async enqueue(jobs) {
    const { limits } = this.protocol;
    const receipts = [];
    const encoded = jobs.map(job => this.encode(job));
    await this.check('producer');
    while (encoded.length) {
      let bytes = 0;
      const fits = words => (bytes += words.reduce((sum, word) => sum + Buffer.byteLength(word), 0)) <= limits.bytes;
      const end = encoded.findIndex((words, at) => at === limits.jobs || (!fits(words) && at > 0));
      const part = encoded.splice(0, end < 0 ? encoded.length : end);
      const plain = part.every(words => words.length === 5); // '', '', 2, 'data' and the payload
      const items = plain ? part.map(words => words[4]) : part.flat();
      const reply = await this.call('enqueue', { form: plain ? 'plain' : 'full' }, items);
      receipts.push(...decodeReceipts(reply, plain ? 'plain' : 'full'));
    }
    return receipts;
  }

  // -- runs: jobs whose handlers, in Python, take steps ---------------------------------------------

  /** The records of the run `id`, in their order: steps, sleeps, waits, and signals that no wait has taken. */
  async steps(id) {
    const rows = await this.call('steps', { id: this.checkId(id), enq: '' });
    return rows.map(([name, kind, began, ended, attempt, value, due]) => ({
      name: String(name), kind: String(kind), began, ended, attempt, value: decodeRecorded(value), due,
    }));
  }

  /** Send data, a Buffer or a value of JSON, to a job: it 'woke', or the signal is 'kept', 'present', or 'unknown'. `by`
   * names its sender. */
  async signal(id, name, data, by = `${hostname()}:${process.pid}`) {
    const { limits } = this.protocol;
    const value = data === undefined ? [] : [encodeRecorded(data)];
    if (typeof name !== 'string' || !name || [...name].length > limits.step_characters) {
      throw new RangeError(`signal ${JSON.stringify(name)}: give 1-${limits.step_characters} characters`);
    }
    if (value[0]?.length > limits.step_bytes) throw new RangeError(`signal ${name}: at most ${limits.step_bytes} bytes`);
    const outcome = await this.call('signal', { id: this.checkId(id), name, by }, value);
    if (outcome < 0) throw new RangeError(`signal ${name}: the run has as many records as it may`);
    return ['unknown', 'present', 'kept', 'woke'][outcome];
  }

  // -- leasing and settling -------------------------------------------------------------------------

  /** Up to `limit` jobs, and the ms until a delayed one is due (-1: none); null if `worker` was declared dead. Throws
   * `NotKept`, and takes no job, where Python has to do the work. */
  async lease(worker, limit, { duration = '', ttl = 0, woken = false, apart = true, ...others } = {}) {
    refuse(others, 'lease');
    await this.check('worker');
    const { lease, max_attempts, dead_limit } = this.settings;
    const args = { worker: this.checkWorker(worker), limit, duration, lease, ttl, max_attempts, dead_limit };
    const more = { woken: woken ? 1 : 0, heir_of: '', apart: apart ? 1 : 0 };
    const reply = await this.call('lease', { ...args, ...more });
    if (reply[0] === HAS_TERMS) throw this.notKept(TERMS, 'worker'); // declared after the check
    const grant = decodeLease(reply, worker, this.protocol);
    if (!grant?.jobs.length) return grant;
    try {
      await this.checkJobs(grant.jobs);
    } catch (error) {
      await this.release(grant.jobs); // to the front, for another worker; it spends no attempt
      throw error;
    }
    return grant;
  }

  /** Block until there may be something to lease, for `ms` at most; on a connection of its own. */
  async wait(redis, ms, { paused = false } = {}) {
    const command = paused ? this.protocol.wait_paused : this.protocol.wait;
    const words = command.map(word => this.fill(word, { ms: Math.max(1, Math.ceil(ms)) }));
    await redis.sendCommand(words, BYTES).catch(() => sleep(10)); // the `lease` that follows heals what it can
  }

  /** For each job whether this call completed it: the first one does, or with `fenced` only its present holder. */
  async complete(jobs, { fenced = false, ...others } = {}) {
    refuse(others, 'complete');
    const named = jobs.some(job => job.named);
    const items = jobs.map(job => job.entry);
    if (fenced) items.push(...jobs.map(job => job.count));
    if (named) items.push(...jobs.map(job => (job.named ? job.id : '')));
    const args = { worker: fenced ? jobs[0].worker : '', limit: jobs.length, with_ids: named ? 1 : 0 };
    return this.verdicts('complete', { ...args, results: 0, follows: 0 }, items);
  }

  release(jobs) {
    return this.verdicts('release', { worker: jobs[0].worker, pause: 0 }, jobs.flatMap(fence));
  }

  async retry(jobs, { delay, spend = true, reason = '', ...others } = {}) {
    refuse(others, 'retry');
    const { max_attempts, dead_limit } = this.settings;
    const items = jobs.flatMap(job => [...fence(job), encodeDelay(delay), spend ? 1 : 0, reason]);
    return this.verdicts('retry', { worker: jobs[0].worker, max_attempts, dead_limit }, items);
  }

  deadLetter(jobs, reason) {
    const args = { worker: jobs[0].worker, dead_limit: this.settings.dead_limit };
    return this.verdicts('dead_letter', args, jobs.flatMap(job => [...fence(job), reason]));
  }

  async renew(jobs, { duration = '', ttl = 0, ...others } = {}) {
    refuse(others, 'renew');
    return this.verdicts('renew', { worker: jobs[0].worker, duration, ttl }, jobs.flatMap(fence));
  }

  async verdicts(name, args, items) {
    return (await this.call(name, args, items)).map(verdict => verdict !== 0);
  }

  // -- a worker's life ------------------------------------------------------------------------------

  /** Say that `worker` lives, for `timeout` ms; false if it was declared dead. */
  async beat(worker, timeout, { register = false } = {}) {
    const args = { worker: this.checkWorker(worker), timeout, lease: this.settings.lease, register: register ? 1 : 0 };
    return (await this.call('beat', args)) === 1;
  }

  /** Put the jobs of the dead, and of expired leases, to the front; promote what is due. */
  async reclaim(worker, timeout) {
    const reply = await this.call('reclaim', { worker, timeout, lease: this.settings.lease, limit: 400, ageing: 0 });
    const [moved, again, declared, more, promoted] = reply;
    return { moved, again, declared, more: more === 1, promoted };
  }

  /** Give back what `worker` holds, untouched, and forget it. */
  async leave(worker) {
    let more = 1;
    while (more) [, more] = await this.call('leave', { worker, limit: 400, idle: 0 });
  }

  async cancel(id) {
    const reply = await this.call('cancel', { id: this.checkId(id), ttl: this.settings.result_ttl });
    return reply === 1 || Array.isArray(reply); // a list names its open children, which go on
  }
}

const fence = job => [job.entry, job.count];

const integer = (bytes, pattern) => (bytes !== undefined && pattern.test(bytes) ? Number(bytes) : 0);

/** A recorded value: a byte for its format, JSON or bytes, and then its data. */
const encodeRecorded = value =>
  Buffer.concat(Buffer.isBuffer(value) ? [Buffer.from('b'), value] : [Buffer.from('j'), Buffer.from(JSON.stringify(value))]);

/** The value of a record; null: none. A value that a codec of Python's has written is a Buffer. */
function decodeRecorded(value) {
  if (value === null) return null;
  const data = value.subarray(1);
  return String(value.subarray(0, 1)) === 'j' ? JSON.parse(data) : data;
}

/** The receipts in a reply of `enqueue`. */
export function decodeReceipts(reply, form) {
  if (form === 'full') {
    const receipt = (_, i) => ({ id: String(reply[2 * i]), added: reply[2 * i + 1] === 1 });
    return Array.from({ length: reply.length / 2 }, receipt);
  }
  if (reply.length !== 2 || typeof reply[1] !== 'number') return reply.map(id => ({ id: String(id), added: true }));
  const [ms, first] = String(reply[0]).split('-');
  return Array.from({ length: reply[1] }, (_, i) => ({ id: `${ms}-${Number(first) + i}`, added: true }));
}

/** A job from an entry; `wrong` says why it is none. */
export function decodeJob(entry, fields, count, releases, worker, protocol) {
  const own = {};
  const headers = {};
  for (let i = 0; i < fields.length; i += 2) {
    const name = String(fields[i]);
    if (protocol.fields.includes(name)) own[name] ??= fields[i + 1];
    else headers[name] = String(fields[i + 1]);
  }
  const token = integer(own.attempt, /^\d{1,9}$/) + count;
  return {
    id: String(own.id ?? entry),
    named: own.id !== undefined,
    payload: own.data ?? Buffer.alloc(0),
    headers,
    attempt: Math.max(1, token - releases),
    token,
    enqueuedAt: own.enq === undefined ? Number(entry.split('-')[0]) : integer(own.enq, /^\d{1,15}$/),
    entry,
    count,
    worker,
    ...(own.data === undefined && { wrong: 'no payload: the entry has no field data' }),
  };
}

/** What a reply of `lease` brought. */
export function decodeLease([known, nextDue, taken, fresh], worker, protocol) {
  if (known === 0) return null;
  const jobs = taken.map(([entry, fields, count, releases]) =>
    decodeJob(String(entry), fields, count, releases, worker, protocol));
  for (let i = 0; i < fresh.length; i += 2) {
    jobs.push(decodeJob(String(fresh[i]), ['data', fresh[i + 1]], 1, 0, worker, protocol));
  }
  return { jobs, nextDue, paused: known === 2, alone: taken.some(row => row[4]) };
}

/** Runs `handler(job, lost)` on the jobs of a queue: what it returns completes a job, what it throws retries it. */
export class Worker {
  constructor(queue, handler, options = {}) {
    const { name = 'node', concurrency = 10, heartbeat, timeout, backoff = 1000, ...others } = options;
    refuse(others, 'Worker');
    Object.assign(this, { queue, handler, concurrency, backoff, prefix: name, held: new Map(), stopping: false });
    this.heartbeat = heartbeat ?? queue.settings.heartbeat;
    this.timeout = timeout ?? queue.settings.timeout;
    this.stopped = new AbortController();
  }

  /** Work until `stop`; then finish the jobs that run, and leave. Rejects with `NotKept` where Python has to do the work. */
  async run() {
    await this.queue.check('worker', { age: 0 });
    this.blocking = this.queue.redis.duplicate();
    this.blocking.on('error', () => {});
    await this.blocking.connect();
    await this.begin();
    const duties = Promise.all([this.every(this.heartbeat, () => this.beat()), this.keep()]);
    try {
      await this.fetch().finally(() => Promise.all([...this.held.values()].map(({ done }) => done))); // renewed meanwhile
    } finally {
      this.stopped.abort();
      await duties;
      await this.queue.leave(this.name);
      await this.blocking.close();
    }
  }

  stop() {
    this.stopping = true;
  }

  /** A new name, registered before it leases anything. What an earlier one held runs elsewhere by now. */
  async begin() {
    for (const { lost } of this.held.values()) lost.abort();
    this.held.clear();
    this.name = `${this.prefix}.${random(6)}`;
    this.registered = this.queue.beat(this.name, this.timeout, { register: true });
    await this.registered;
  }

  async beat() {
    const { name } = this;
    if (!(await this.queue.beat(name, this.timeout)) && name === this.name) await this.begin();
  }

  async every(ms, duty) {
    while (!this.stopped.signal.aborted) {
      await duty();
      await sleep(ms, null, { signal: this.stopped.signal }).catch(() => {});
    }
  }

  async fetch() {
    let woken = false;
    while (!this.stopping) {
      await this.registered;
      const { name } = this;
      const room = this.concurrency - this.held.size;
      if (room === 0) {
        await Promise.race([...this.held.values()].map(({ done }) => done));
        continue;
      }
      const grant = await this.queue.lease(name, room, { woken });
      woken = false;
      if (grant === null || name !== this.name) {
        if (name === this.name) await this.begin();
        continue;
      }
      for (const job of grant.jobs) this.start(job);
      if (grant.alone && this.held.size > 0) { // nothing more until it holds nothing
        const all = Promise.all([...this.held.values()].map(({ done }) => done));
        await (grant.nextDue < 0 ? all : Promise.race([all, sleep(grant.nextDue)]));
        continue;
      }
      if (grant.jobs.length < room && !this.stopping) {
        const ms = grant.nextDue < 0 ? 1000 : Math.min(1000, grant.nextDue);
        await this.queue.wait(this.blocking, ms, { paused: grant.paused });
        woken = true;
      }
    }
  }

  start(job) {
    const held = { job, since: performance.now(), lost: new AbortController() };
    this.held.set(job.entry, held);
    held.done = this.work(job, held.lost.signal).finally(() => {
      if (this.held.get(job.entry) === held) this.held.delete(job.entry);
    });
  }

  async work(job, lost) {
    if (job.wrong) return void (await this.queue.deadLetter([job], job.wrong));
    try {
      await this.handler(job, lost);
    } catch (error) {
      if (lost.aborted) return;
      const delay = this.backoff * 2 ** Math.min(job.attempt - 1, 10) * Math.random();
      return void (await this.queue.retry([job], { delay, reason: String(error) }));
    }
    if (!lost.aborted) await this.queue.complete([job]);
  }

  /** Renew what has had its lease for a third of it; put back the jobs of the dead, and of expired leases. */
  async keep() {
    const { lease } = this.queue.settings;
    await this.every(Math.min(0.75 * this.heartbeat, lease / 6), async () => {
      const now = performance.now();
      const due = [...this.held.values()].filter(held => now - held.since >= lease / 3);
      if (due.length) {
        const kept = await this.queue.renew(due.map(({ job }) => job));
        due.forEach((held, i) => (kept[i] ? (held.since = now) : held.lost.abort()));
      }
      for (let more = true, again = -1; more || again >= 0; ) {
        ({ more, again } = await this.queue.reclaim(this.name, this.timeout));
        if (again > 0) await sleep(again);
      }
    });
  }
}
