// A worker in plain Node (18 or newer), without dependencies:  node worker.mjs http://127.0.0.1:8787
//
// HOLDFAST_TOKEN is its token; without one it says `x-dev-user`, which a server with ENV local takes on its own machine.
// It keeps the contract: one exchange under way at a time, beats beside it, work that cannot renew its lease is stopped
// before the lease ends, and everything may be asked again.

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
const token = process.env.HOLDFAST_TOKEN;
const who = token ? { authorization: `Bearer ${token}` } : { "x-dev-user": "node" };
const now = () => performance.now() / 1000; // monotonic: no clock that somebody sets decides about a lease
const held = new Map(); // task id → { task, stop, fenceAt }
let worker = null;
let stopping = false;
let free = () => {};

class Refused extends Error {
  constructor(problem) {
    super(problem.detail);
    this.code = problem.code;
  }
}

async function post(path, body, seconds = 30) {
  const answer = await fetch(url + path, {
    method: "POST",
    headers: { "content-type": "application/json", ...who },
    body: JSON.stringify(body),
    signal: AbortSignal.timeout(seconds * 1000),
  });
  const said = await answer.json();
  if (!answer.ok) throw new Refused(said);
  return said;
}

async function insist(path, body) {
  for (let wait = 50; ; wait = Math.min(wait * 2, 2000)) {
    try {
      return await post(path, body);
    } catch (error) {
      if (error instanceof Refused && !/unavailable|unreachable|unknown|exhausted/.test(error.code)) throw error;
      await pause(wait);
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
    else one.fenceAt = sent + answer.lease_seconds * 0.8;
  }
  for (const id of answer.canceled) held.get(id)?.stop.abort("canceled");
}

async function keepLeases() {
  while (!stopping || held.size) {
    await pause((worker.heartbeat_seconds / 2) * 1000, undefined, { ref: false });
    const entries = [...held.values()].filter((one) => !one.stop.signal.aborted);
    if (entries.length) await beat(entries).catch(() => {});
    for (const one of entries) if (now() >= one.fenceAt) one.stop.abort("lost");
  }
}

async function run(entry) {
  const { task, stop } = entry;
  const lease = { task_id: task.task_id, attempt: task.attempt, lease_token: task.lease_token };
  let report;
  try {
    const outputs = await actions[task.action](task.input, { signal: stop.signal, task });
    report = { ...lease, status: "completed", outputs };
  } catch (error) {
    const failure = { code: error.code ?? "failed", message: String(error.message), type: error.name };
    report = { ...lease, status: stop.signal.aborted ? "canceled" : "failed", error: failure };
    if (stop.signal.reason === "stopping") report.status = "lost";
  }
  // What lost its lease has no right to report; everything else is reported until the server answered.
  if (stop.signal.reason !== "lost") {
    await insist("/internal/task-complete", report).catch((error) => console.log(`refused: ${error.message}`));
  }
  held.delete(task.task_id);
  free();
}

async function work() {
  await register();
  keepLeases();
  while (!stopping) {
    const limit = slots - held.size;
    if (!limit) {
      await new Promise((resolve) => (free = resolve));
      continue;
    }
    try {
      // What is not named here and is ours is given again: the answer that gave it must have got lost.
      const body = { worker_id: worker.worker_id, held: [...held.keys()], limit, wait_seconds: held.size ? 1 : 20 };
      const { tasks } = await post("/internal/exchange", body, 40);
      const entries = tasks.map((task) => ({ task, stop: new AbortController(), fenceAt: 0 }));
      for (const one of entries) held.set(one.task.task_id, one);
      if (entries.length) await beat(entries); // the answer may be old by now: begin with a whole lease
      for (const one of entries) {
        if (one.fenceAt) run(one);
        else held.delete(one.task.task_id);
      }
    } catch (error) {
      for (const [id, one] of held) if (!one.fenceAt) held.delete(id); // never begun; it will be given again
      if (error.code === "worker_not_registered") await register();
      else await pause(500);
    }
  }
}

for (const signal of ["SIGTERM", "SIGINT"]) {
  process.on(signal, async () => {
    stopping = true;
    for (const one of held.values()) one.stop.abort("stopping");
    while (held.size) await pause(20);
    await post("/internal/leave", { worker_id: worker.worker_id }).catch(() => {});
    process.exit(0);
  });
}

await work();
