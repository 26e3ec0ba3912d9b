// The first page: jobs, the selected job's loss and its log, asked for once a second from /v1.
// Server text only ever goes through textContent.
"use strict";

const PERIOD_MS = 1000;
const POINTS = 500;
const LOG_BYTES = 16384;
const $ = (id) => document.getElementById(id);
const rows = new Map(); // job id -> its row's cells
const losses = new Map(); // job id -> {version: what it was read at, text}
let selected = location.hash.startsWith("#job_") ? location.hash.slice(1) : "";
let drawn = null; // what the curve was drawn from, for a redraw on resize
let seen = {}; // the selected job's step a turn ago: its speed is taken from there
let kept = {}; // the artifacts of an ended job, which stay as they are

async function ask(path) {
  const reply = await fetch(path, { signal: AbortSignal.timeout(5000), cache: "no-store" });
  if (reply.ok) return reply;
  const problem = await reply.json().catch(() => ({}));
  throw new Error(problem.detail || `The server answered ${reply.status} to ${path}.`);
}
const askJson = async (path) => (await ask(path)).json();

const isFinal = (job) => ["succeeded", "failed", "cancelled"].includes(job.state);
const strategyName = (job) => job.strategy?.name ?? job.strategy ?? "";
const ranksOf = (job) => job.strategy?.ranks ?? job.ranks ?? 1;
const number = (x) =>
  typeof x !== "number" ? (x ?? "") : x && Math.abs(x) < 1e-3 ? x.toExponential(2) : x.toPrecision(4);
const setText = (node, text) => {
  if (node.textContent !== String(text)) node.textContent = text;
};
const strategyText = (job) =>
  strategyName(job) && `${strategyName(job)}, ${ranksOf(job)} rank${ranksOf(job) === 1 ? "" : "s"}`;

// ---- the table ----

function element(parent, tag, className = "") {
  const node = parent.appendChild(document.createElement(tag));
  node.className = className;
  return node;
}

function makeRow(job) {
  const row = document.createElement("tr");
  const [name, state, progress, loss] = ["job", "", "progress", "number"].map((c) => element(row, "td", c));
  const button = element(name, "button");
  button.type = "button";
  row.addEventListener("click", () => select(job.id));
  return {
    row, button, state, loss, progress,
    strategy: element(name, "div", "soft"), reason: element(name, "div", "soft"),
    bar: document.createElement("progress"), steps: document.createElement("div"),
  };
}

function fillProgress(r, progress) {
  const { step = 0, steps = 0 } = progress ?? {};
  if (!(steps > 0)) {
    r.progress.replaceChildren();
    return;
  }
  if (!r.bar.parentNode) r.progress.append(r.bar, r.steps);
  r.bar.max = steps;
  r.bar.value = step;
  r.bar.setAttribute("aria-label", `step ${step} of ${steps}`);
  setText(r.steps, `${step} / ${steps}`);
}

function fillRow(r, job) {
  setText(r.button, job.name || job.id);
  r.button.title = `${job.name} (${job.id})`;
  r.button.setAttribute("aria-pressed", String(job.id === selected));
  r.row.classList.toggle("selected", job.id === selected);
  setText(r.strategy, strategyText(job));
  const reason = ["succeeded", "running"].includes(job.state) ? "" : (job.reason ?? "");
  setText(r.reason, reason);
  r.reason.title = reason;
  setText(r.state, job.state);
  r.state.className = job.state;
  fillProgress(r, job.progress);
  setText(r.loss, losses.get(job.id)?.text ?? "");
}

function showJobs(jobs) {
  const body = $("jobs");
  const present = new Set(jobs.map((job) => job.id));
  for (const [id, r] of rows) {
    if (!present.has(id)) {
      r.row.remove();
      rows.delete(id);
    }
  }
  jobs.forEach((job, i) => {
    if (!rows.has(job.id)) rows.set(job.id, makeRow(job));
    const r = rows.get(job.id);
    fillRow(r, job);
    if (body.children[i] !== r.row) body.insertBefore(r.row, body.children[i] ?? null);
  });
  $("empty").hidden = jobs.length > 0;
}

// The last loss of the jobs that moved; at most ten requests a turn.
async function readLosses(jobs) {
  const stale = jobs.filter((job) => {
    const version = `${job.state} ${job.progress?.step ?? 0}`;
    return job.progress?.step > 0 && losses.get(job.id)?.version !== version;
  });
  await Promise.all(
    stale.slice(0, 10).map(async (job) => {
      const doc = await askJson(`/v1/jobs/${job.id}/metrics?max_points=1`);
      const text = number(doc.steps?.at(-1)?.loss);
      losses.set(job.id, { version: `${job.state} ${job.progress.step}`, text });
    }),
  );
}

// ---- the selected job ----

function select(id) {
  selected = id;
  history.replaceState(null, "", `#${id}`);
  $("log").textContent = "";
  $("rank").replaceChildren();
  turn().then(() => {
    // beside the list there is nothing to scroll; below it, on a narrow screen, the job is out of sight
    if ($("back").offsetParent) $("job").scrollIntoView({ block: "start" });
  });
}

// Of single steps the speed jumps about: over all of these.
function speedOf(steps) {
  const times = steps.map((s) => 1 / s.samples_per_second).filter((t) => t > 0 && Number.isFinite(t));
  return times.length ? Math.round(times.length / times.reduce((a, b) => a + b)) : 0;
}

// Over the steps since the turn before; of an ended job, over all of them.
async function readSpeed(job, steps) {
  const step = job.progress?.step ?? 0;
  if (isFinal(job) || step < 1) return speedOf(steps);
  const since = seen.id === job.id && seen.step < step ? seen.step : Math.max(0, step - 1000);
  seen = { id: job.id, step };
  return speedOf((await askJson(`/v1/jobs/${job.id}/metrics?after_step=${since}&max_points=200`)).steps ?? []);
}

function summarise(steps, epochs, samplesPerSecond) {
  const finite = steps.filter((s) => Number.isFinite(s.loss));
  if (finite.length === 0) return "No loss has been reported.";
  const last = finite.at(-1);
  const e = epochs.at(-1) ?? {};
  const speed = samplesPerSecond ? `, ${samplesPerSecond} samples/s` : "";
  const name = (key) => key.replace(/^loss$/, "epoch loss").replace("val_", "validation ");
  const figures = Object.keys(e)
    .filter((k) => /^(val_)?(loss|accuracy|mae)$/.test(k))
    .map((k) => `${name(k)} ${number(e[k])}`);
  return (
    `Loss went from ${number(finite[0].loss)} at step ${finite[0].step} to ${number(last.loss)} at ` +
    `step ${last.step}${speed}.` + (figures.length ? ` Epoch ${e.epoch}: ${figures.join(", ")}.` : "")
  );
}

function drawCurve() {
  const steps = (drawn?.steps ?? []).filter((s) => Number.isFinite(s.loss));
  $("curve").hidden = steps.length < 2;
  if (steps.length < 2) return;
  const canvas = $("curve");
  const { width, height } = canvas.getBoundingClientRect();
  const scale = window.devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const g = canvas.getContext("2d");
  if (width < 80) return;
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
  const values = steps.map((s) => s.loss);
  const low = Math.min(0, ...values), high = Math.max(...values);
  const first = steps[0].step, last = steps.at(-1).step;
  const x = (step) => 48 + ((width - 56) * (step - first)) / (last - first || 1);
  const y = (loss) => 8 + (height - 30) * (1 - (loss - low) / (high - low || 1));
  g.scale(scale, scale);
  g.font = "12px system-ui, sans-serif";
  g.strokeStyle = color("--line");
  g.fillStyle = color("--soft");
  for (let i = 0; i <= 4; i++) {
    const value = low + ((high - low) * i) / 4;
    g.beginPath();
    g.moveTo(48, y(value));
    g.lineTo(width - 8, y(value));
    g.stroke();
    g.textAlign = "right";
    g.fillText(value.toPrecision(3), 42, y(value) + 4);
  }
  g.textAlign = "left";
  g.fillText(`step ${first}`, 48, height - 4);
  g.textAlign = "right";
  g.fillText(`${last}`, width - 8, height - 4);
  g.strokeStyle = color("--blue");
  g.lineWidth = 1.5;
  g.beginPath();
  steps.forEach((s, i) => (i ? g.lineTo(x(s.step), y(s.loss)) : g.moveTo(x(s.step), y(s.loss))));
  g.stroke();
}

function offerRanks(count) {
  const list = $("rank");
  while (list.options.length > count) list.remove(list.options.length - 1);
  while (list.options.length < count) list.add(new Option(String(list.options.length)));
}

async function showLog(job) {
  const rank = $("rank").value || "0";
  const reply = await ask(`/v1/jobs/${job.id}/logs?rank=${rank}&tail=${LOG_BYTES}`);
  const text = await reply.text();
  const log = $("log");
  if (selected !== job.id || log.textContent === text) return;
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  log.textContent = text;
  if (atEnd) log.scrollTop = log.scrollHeight;
}

const seconds = (from, to) => {
  const s = (Date.parse(to) - Date.parse(from)) / 1000;
  return s < 100 ? `${s.toFixed(1)} s` : s < 6000 ? `${(s / 60).toFixed(1)} min` : `${(s / 3600).toFixed(1)} h`;
};

function timesText(job) {
  const { submitted_at: a, started_at: b, finished_at: c } = job;
  if (!a) return "";
  const ended = c ? (b ? `, ended after ${seconds(b, c)}` : `, ended ${seconds(a, c)} later`) : "";
  return new Date(a).toLocaleString() + (b ? `, started ${seconds(a, b)} later` : "") + ended;
}

const size = (n) => (n < 1024 ? `${n} B` : n < 1048576 ? `${(n / 1024).toFixed(0)} KiB` : `${(n / 1048576).toFixed(1)} MiB`);

async function showArtifacts(job) {
  const key = `${job.id} ${job.state} ${job.version}`;
  if (kept.key === key) return;
  const doc = job.attempt > 0 ? await askJson(`/v1/jobs/${job.id}/artifacts`) : {};
  if (selected !== job.id) return;
  const lines = (doc.artifacts ?? []).map(({ name, bytes }) => {
    const line = document.createElement("div");
    const link = element(line, "a");
    link.href = `/v1/jobs/${job.id}/artifacts/${encodeURIComponent(name)}`;
    link.download = link.textContent = name;
    line.append(`, ${size(bytes)}`);
    return line;
  });
  const more = (doc.left_out_count ?? 0) - (doc.left_out ?? []).length;
  const left = (doc.left_out ?? []).map(({ name, why }) => `Left out: ${name}: ${why}`);
  if (more > 0) left.push(`${more} more were left out.`);
  $("artifacts").replaceChildren(...lines, ...left.map((text) => Object.assign(document.createElement("div"), { textContent: text })));
  kept = isFinal(job) ? { key } : {};
}

// A line of the list of facts; none where there is nothing to say.
function setFact(id, text) {
  setText($(id), text);
  $(id).hidden = $(id).previousElementSibling.hidden = !text;
}

async function showJob() {
  const job = await askJson(`/v1/jobs/${encodeURIComponent(selected)}`);
  const metrics = await askJson(`/v1/jobs/${job.id}/metrics?max_points=${POINTS}`);
  const speed = await readSpeed(job, metrics.steps ?? []);
  if (selected !== job.id) return;
  $("job").hidden = false;
  setText($("job-title"), `${job.name}: ${job.state}`);
  $("job-title").title = job.id;
  setFact("reason", job.reason);
  setFact("plan", [strategyText(job), job.strategy?.why].filter(Boolean).join(". "));
  setFact("times", timesText(job));
  setFact("devices", (job.devices ?? []).map((d) => `${d.node}:${d.device}`).join(", "));
  drawn = metrics;
  drawCurve();
  setText($("summary"), summarise(metrics.steps ?? [], metrics.epochs ?? [], speed));
  await showArtifacts(job);
  $("artifacts").hidden = $("artifacts").previousElementSibling.hidden = !$("artifacts").firstChild;
  offerRanks(ranksOf(job));
  await showLog(job);
}

// ---- the nodes ----

const NODES_EVERY = 5; // turns
let nodesIn = 0;

// "3 of 8 gpu free", and the same of cpu
function devicesText(devices) {
  return ["gpu", "cpu"].flatMap((kind) => {
    const all = devices.filter((d) => d.kind === kind);
    const free = all.filter((d) => d.state === "free").length;
    return all.length ? [`${free} of ${all.length} ${kind} free`] : [];
  }).join(", ");
}

// Why it takes no jobs, and why devices of it are not given away.
function notesOf(node) {
  const devices = node.devices ?? [];
  const idle = devices.filter((d) => d.idle_s).map((d) => `Device ${d.index} is leased and has been idle for ${Math.floor(d.idle_s / 60)} min.`);
  return [node.trouble, ...devices.map((d) => d.why_not), ...idle].filter(Boolean);
}

function makeNodeRow(node) {
  const row = document.createElement("tr");
  const name = element(row, "td", "job");
  element(name, "div").textContent = node.name;
  for (const note of notesOf(node)) {
    const line = element(name, "div", "soft");
    line.textContent = line.title = note;
  }
  element(row, "td", node.drain ? "pending" : "").textContent = node.state + (node.drain ? ", drained" : "");
  element(row, "td").textContent = devicesText(node.devices ?? []);
  return row;
}

async function showNodes() {
  if (nodesIn-- > 0) return;
  nodesIn = NODES_EVERY - 1;
  const { nodes } = await askJson("/v1/nodes?limit=200");
  $("nodes-section").hidden = nodes.length === 0;
  $("nodes").replaceChildren(...nodes.map(makeNodeRow));
}

// ---- turns ----

let timer = 0;
let busy = false;
let again = false; // something was chosen during a turn
async function turn() {
  clearTimeout(timer);
  again = busy;
  if (busy) return;
  busy = true;
  try {
    const { jobs } = await askJson("/v1/jobs?limit=50");
    if (!selected && jobs.length) selected = jobs[0].id;
    await readLosses(jobs);
    showJobs(jobs);
    const running = jobs.filter((job) => !isFinal(job)).length;
    setText($("status"), `${running} active of the newest ${jobs.length}`);
    $("status").className = "";
    await showNodes();
    if (selected) await showJob();
  } catch (error) {
    setText($("status"), error instanceof TypeError ? "The server does not answer." : error.message);
    $("status").className = "bad";
  }
  busy = false;
  timer = setTimeout(turn, again ? 0 : document.hidden ? 10 * PERIOD_MS : PERIOD_MS);
}

window.addEventListener("resize", drawCurve);
document.addEventListener("visibilitychange", () => document.hidden || turn());
$("rank").addEventListener("change", turn);
turn();
