// A queue that is spoken to by lines:
//   node agent.js '{"protocol": PATH, "socket": {…}, "queue": NAME, "settings": {…}}'
// A line is [METHOD, ARGUMENT…], the answer {"ok": …} or {"error": …}; payloads are text. `crash` is a power cut.
// `trust`: what a role was checked for counts from now on, so that what is declared next comes between two checks.
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { connect, Queue } from './headrace.js';

const { protocol, socket, queue: name, settings } = JSON.parse(process.argv[2]);
const redis = await connect(socket);
const queue = new Queue(redis, JSON.parse(readFileSync(protocol, 'utf8')), name, settings);
const methods = {
  crash: () => process.kill(process.pid, 'SIGKILL'),
  trust: role => void (queue.checked[role] = Infinity),
  waited: async ms => {
    const blocking = await connect(socket);
    await queue.wait(blocking, ms);
    await blocking.close();
  },
};
const text = (key, value) => (value?.type === 'Buffer' ? Buffer.from(value.data).toString() : value);

for await (const line of createInterface(process.stdin)) {
  const [method, ...args] = JSON.parse(line);
  const answer = await Promise.resolve()
    .then(() => (methods[method] ? methods[method](...args) : queue[method](...args)))
    .then(ok => ({ ok: ok ?? null }), error => ({ error: `${error.name}: ${error.message}` }));
  console.log(JSON.stringify(answer, text));
}
await redis.close();
