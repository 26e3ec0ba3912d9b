// The first page: jobs, the selected job's loss and its log, asked for once a second from /v1.
// Server text only ever goes through textContent.
"use strict";

const PERIOD_MS = 1000;
const POINTS = 500;
const LOG_BYTES = 16384;
const $ = (id) => document.getElementById(id);
const rows = new Map(); // job id -> its row's cells
const losses = new Map(); // job id -> {version: what it was read at, text}
let selected = location.hash.slice(1);
let drawn = null; // what the curve was drawn from, for a redraw on resize

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
const number = (x) => (typeof x === "number" ? x.toPrecision(4) : (x ?? ""));
const setText = (node, text) => {
  if (node.textContent !== String(text)) node.textContent = text;
};

// ---- the table ----

function makeRow(job) {
  const row = document.createElement("tr");
  const cells = Array.from({ length: 7 }, () => row.appendChild(document.createElement("td")));
  const button = cells[0].appendChild(document.createElement("button"));
  button.type = "button";
  button.addEventListener("click", () => select(job.id));
  cells[3].className = cells[5].className = "number";
  cells[6].className = "reason";
  const bar = document.createElement("progress");
  const steps = document.createElement("span");
  steps.className = "steps";
  return { row, cells, button, bar, steps };
}

function fillProgress(r, progress) {
  const { step = 0, steps = 0 } = progress ?? {};
  if (!(steps > 0)) {
    r.cells[4].replaceChildren();
    return;
  }
  if (!r.bar.parentNode) r.cells[4].append(r.bar, r.steps);
  r.bar.max = steps;
  r.bar.value = step;
  r.bar.setAttribute("aria-label", `step ${step} of ${steps}`);
  setText(r.steps, `${step} / ${steps}`);
}

function fillRow(r, job) {
  setText(r.button, job.name || job.id);
  r.button.title = job.id;
  r.button.setAttribute("aria-pressed", String(job.id === selected));
  r.row.classList.toggle("selected", job.id === selected);
  setText(r.cells[1], job.state);
  r.cells[1].className = job.state;
  setText(r.cells[2], strategyName(job));
  setText(r.cells[3], ranksOf(job));
  fillProgress(r, job.progress);
  setText(r.cells[5], losses.get(job.id)?.text ?? "");
  setText(r.cells[6], job.state === "succeeded" ? "" : (job.reason ?? ""));
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
      const last = doc.epochs?.at(-1)?.loss;
      const text = number(isFinal(job) ? (last ?? doc.steps?.at(-1)?.loss) : doc.steps?.at(-1)?.loss);
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
  turn();
}

function summarise(steps, epochs) {
  const finite = steps.filter((s) => Number.isFinite(s.loss));
  if (finite.length === 0) return "No loss has been reported.";
  const last = finite.at(-1);
  const e = epochs.at(-1) ?? {};
  const speed = last.samples_per_second ? `, ${Math.round(last.samples_per_second)} samples/s` : "";
  const name = (key) => key.replace("val_", "validation ").replace("_", " ");
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

async function showJob() {
  const job = await askJson(`/v1/jobs/${encodeURIComponent(selected)}`);
  const metrics = await askJson(`/v1/jobs/${job.id}/metrics?max_points=${POINTS}`);
  if (selected !== job.id) return;
  $("job").hidden = false;
  setText($("job-title"), `${job.name}: ${job.state}`);
  setText($("job-why"), [job.reason, job.strategy?.why].filter(Boolean).join(" "));
  drawn = metrics;
  drawCurve();
  setText($("summary"), summarise(metrics.steps ?? [], metrics.epochs ?? []));
  offerRanks(ranksOf(job));
  await showLog(job);
}

// ---- turns ----

let timer = 0;
let busy = false;
async function turn() {
  clearTimeout(timer);
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
    if (selected) await showJob();
  } catch (error) {
    setText($("status"), error instanceof TypeError ? "The server does not answer." : error.message);
    $("status").className = "bad";
  }
  busy = false;
  timer = setTimeout(turn, document.hidden ? 10 * PERIOD_MS : PERIOD_MS);
}

window.addEventListener("resize", drawCurve);
document.addEventListener("visibilitychange", () => document.hidden || turn());
$("rank").addEventListener("change", turn);
turn();
