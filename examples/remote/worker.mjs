// A worker in plain Node (18 or newer), without dependencies:  node worker.mjs http://127.0.0.1:8787
//
// HOLDFAST_TOKEN is its token; without one it says `x-dev-user`, which a server with ENV local takes on its own machine.
// It keeps the contract: one exchange under way at a time, beats beside it, work that cannot renew its lease is stopped
// before the lease ends, everything may be asked again, and when it is drained it finishes what it has and leaves.
// An action hears of a stop (a lost lease, a cancel, its time limit) by its `signal`. One that does not listen is not
// waited for, but goes on: it belongs into a process that can be killed.

import { setTimeout as pause } from "node:timers/promises";

const actions = {
  "demo.add": async ({ a, b }) => a + b,
  "demo.sleep": async ({ seconds }, { signal }) => {
    await pause(seconds * 1000, undefined, { signal });
    return { slept: seconds };
  },
  "demo.refuse": async () => {
    throw Object.assign(new Error("no such order"), { code: "ORDER_UNKNOWN" });
  },
};

const url = process.argv[2] ?? process.env.HOLDFAST_URL ?? "http://127.0.0.1:8787";
const slots = Number(process.env.SLOTS ?? 10);
const stopSeconds = 10;
const token = process.env.HOLDFAST_TOKEN;
const who = token ? { authorization: `Bearer ${token}` } : { "x-dev-user": "node" };
const now = () => performance.now() / 1000; // monotonic: no clock that somebody sets decides about a lease
const held = new Map(); // task id → { task, stop, fence, hasBegun }
let worker = null;
let stopping = false;
let free = () => {};

class Refused extends Error {
  constructor(status, problem, seconds) {
    super(problem.detail ?? `status ${status}`);
    this.status = status;
    this.code = problem.code;
    this.seconds = seconds;
  }
  get mayPass() {
    return this.status === 408 || this.status === 429 || this.status >= 500;
  }
}

async function post(path, body, seconds = 30) {
  const answer = await fetch(url + path, {
    method: "POST",
    headers: { "content-type": "application/json", ...who },
    body: JSON.stringify(body),
    signal: AbortSignal.timeout(seconds * 1000),
  });
  if (answer.ok) return await answer.json();
  // A proxy in between may answer with anything: the status decides.
  const problem = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, problem ?? {}, Number(answer.headers.get("retry-after")) || 0);
}

async function insist(path, body) {
  for (let wait = 0.05; ; wait = Math.min(wait * 2, 2)) {
    try {
      return await post(path, body);
    } catch (error) {
      if (error instanceof Refused && !error.mayPass) throw error;
      await pause(Math.max(wait, error.seconds ?? 0) * 1000);
    }
  }
}

async function register() {
  worker = await insist("/internal/workers", {
    worker_id: `node-${process.pid}`,
    actions: Object.keys(actions),
    runtimes: ["node"],
    slots,
  });
  console.log(`registered ${worker.worker_id}`);
}

function guard(one, until) {
  // A timer of its own: whatever else waits for an answer, the work stops in time.
  clearTimeout(one.fence);
  one.fence = setTimeout(() => one.stop.abort("lost"), Math.max(0, until - now()) * 1000);
}

async function beat(entries) {
  const sent = now(); // from before the request left, so the fence is ahead of the server's
  const answer = await post(
    "/internal/heartbeats",
    {
      worker_id: worker.worker_id,
      task_ids: entries.map((one) => one.task.task_id),
      lease_tokens: entries.map((one) => one.task.lease_token),
    },
    worker.heartbeat_seconds,
  );
  const renewed = new Set(answer.renewed);
  for (const one of entries) {
    if (!renewed.has(one.task.task_id)) one.stop.abort("lost");
    else if (held.has(one.task.task_id)) guard(one, sent + answer.lease_seconds * 0.8);
  }
  for (const id of answer.canceled) held.get(id)?.stop.abort("canceled");
}

async function keepLeases() {
  while (!stopping || held.size) {
    await pause((worker.heartbeat_seconds / 2) * 1000, undefined, { ref: false });
    const entries = [...held.values()].filter((one) => one.hasBegun && !one.stop.signal.aborted);
    if (entries.length) await beat(entries).catch(() => {});
  }
}

async function deaf(signal) {
  // Ends when an action that was told to stop has not, and should have.
  if (!signal.aborted) await new Promise((resolve) => signal.addEventListener("abort", resolve, { once: true }));
  await pause(stopSeconds * 1000, undefined, { ref: false });
  throw new Error("it did not stop");
}

async function run(entry) {
  const { task, stop } = entry;
  const seconds = task.timeout_seconds ?? Infinity;
  // No timer runs longer than 24 days; the server ends what is past its limit, too.
  const limit = seconds < 2e6 ? setTimeout(() => stop.abort("timed_out"), seconds * 1000) : null;
  const lease = { task_id: task.task_id, attempt: task.attempt, lease_token: task.lease_token };
  let report;
  try {
    const work = actions[task.action](task.input, { signal: stop.signal, task });
    const outputs = await Promise.race([work, deaf(stop.signal)]);
    report = { ...lease, status: "completed", outputs };
  } catch (error) {
    const code = stop.signal.aborted ? undefined : (error.code ?? "failed");
    const failure = { code, message: String(error.message), type: error.name };
    const statuses = { canceled: "canceled", timed_out: "timed_out", stopping: "lost" };
    report = { ...lease, status: statuses[stop.signal.reason] ?? "failed", error: failure };
  }
  clearTimeout(limit);
  clearTimeout(entry.fence);
  // What lost its lease has no right to report; everything else is reported until the server decided.
  if (stop.signal.reason === "lost") console.log(`stopped ${task.task_id}`);
  else await insist("/internal/task-complete", report).catch((error) => console.log(`refused: ${error.message}`));
  held.delete(task.task_id);
  free();
}

async function begin(tasks) {
  const entries = tasks.map((task) => ({ task, stop: new AbortController(), fence: null, hasBegun: false }));
  for (const one of entries) held.set(one.task.task_id, one);
  try {
    if (entries.length) await beat(entries); // the answer may be old by now: begin with a whole lease
  } catch (error) {
    for (const one of entries) one.stop.abort("lost"); // never begun; it will be given again
    throw error;
  } finally {
    for (const one of entries) {
      one.hasBegun = !one.stop.signal.aborted;
      if (one.hasBegun) run(one);
      else held.delete(one.task.task_id);
    }
  }
}

async function leave() {
  stopping = true;
  await post("/internal/leave", { worker_id: worker.worker_id }, 5).catch(() => {});
  process.exit(0);
}

async function work() {
  await register();
  keepLeases();
  while (!stopping) {
    const limit = slots - held.size;
    const freed = new Promise((resolve) => (free = resolve));
    if (!limit) {
      await freed;
      continue;
    }
    try {
      // What is not named here and is ours is given again: the answer that gave it must have got lost.
      const body = { worker_id: worker.worker_id, held: [...held.keys()], limit, wait_seconds: held.size ? 1 : 20 };
      const { tasks, canceled, lost, draining } = await post("/internal/exchange", body, 40);
      if (stopping) return; // what was given just now is free again when it has left
      for (const id of lost) held.get(id)?.stop.abort("lost");
      for (const id of canceled) held.get(id)?.stop.abort("canceled");
      await begin(tasks);
      if (draining) {
        // Nothing more is given to it: finish what is here, and be gone.
        while (held.size) await pause(20);
        await leave();
      }
      // While something is being stopped every answer says so at once, and need not be asked for at once.
      if (!tasks.length && canceled.length + lost.length) await Promise.race([freed, pause(1000)]);
    } catch (error) {
      if (error.code === "worker_not_registered") await register();
      else if (error instanceof Refused && !error.mayPass) throw error;
      else await pause(Math.max(0.5, error.seconds ?? 0) * 1000);
    }
  }
}

for (const signal of ["SIGTERM", "SIGINT"]) {
  process.on(signal, async () => {
    stopping = true;
    for (const one of held.values()) one.stop.abort("stopping");
    for (const until = now() + stopSeconds; held.size && now() < until; ) await pause(20);
    if (worker) await leave();
    process.exit(0);
  });
}

await work();
