// The page of `spillway agent`: asks for figures every two seconds and draws them. It changes nothing.
// Text from figures is set as text, never as markup.
"use strict";

const INTERVAL_MS = 2000;
const SVG = "http://www.w3.org/2000/svg";

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function shape(name, attributes = {}, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function picture(width, height, label, shapes) {
  const drawn = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  drawn.append(...shapes);
  return drawn;
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) { count /= 1024; unit += 1; }
  return `${unit === 0 || count >= 100 ? Math.round(count) : count.toFixed(1)} ${units[unit]}`;
}

function time(microseconds) {
  if (microseconds === null || microseconds === undefined) return "-";
  return microseconds >= 1000 ? `${(microseconds / 1000).toFixed(1)} ms` : `${microseconds.toFixed(0)} us`;
}

function clock(unixSeconds) { return new Date(unixSeconds * 1000).toLocaleTimeString(); }

function fill(id, children, none) {
  document.getElementById(id).replaceChildren(...(children.length ? children : [element("p", { class: "none" }, none)]));
}

// Columns of a picture whose text is as large as that around it.
function width() { return Math.max(280, Math.min(700, document.querySelector("main").clientWidth - 66)); }

// A bar of parts: [class, share of the whole].
function bar(parts, label) {
  const shapes = [shape("rect", { class: "ground", width: 400, height: 12, rx: 3 })];
  let at = 0;
  for (const [name, share] of parts) {
    const width = Math.max(0, Math.min(400 - at, share * 400));
    shapes.push(shape("rect", { class: name, x: at, width, height: 12, rx: width > 6 ? 3 : 0 }));
    at += width;
  }
  const drawn = picture(400, 12, label, shapes);
  drawn.classList.add("bar");
  return drawn;
}

function row(name, drawn, figures) {
  return element("div", { class: "row" }, element("span", { class: "name" }, name), drawn,
    element("span", { class: "figures" }, figures));
}

function machines(data) {
  const rows = [];
  if (data.memory) {
    const used = data.memory.total_bytes - data.memory.available_bytes;
    const lent = data.lenders.reduce((sum, lender) => sum + lender.lent_bytes, 0);
    const whole = data.memory.total_bytes;
    const text = `${bytes(used)} used, ${bytes(lent)} of it lent, of ${bytes(whole)}`;
    rows.push(row(`${data.machine} (this machine)`,
      bar([["local", Math.max(0, used - lent) / whole], ["lent", lent / whole]], text), text));
  }
  for (const member of data.members || []) {
    const name = `${member.name || member.address}${member.is_self ? " (this machine)" : ""}`;
    if (!member.quota_bytes) {
      rows.push(row(name, element("span", {}, member.state), "lends nothing"));
      continue;
    }
    const text = `lends ${bytes(member.lent_bytes || 0)} of ${bytes(member.quota_bytes)}, ${member.state}`;
    rows.push(row(name, bar([["lent", (member.lent_bytes || 0) / member.quota_bytes]], text), text));
  }
  if (rows.length) {
    rows.unshift(element("p", { class: "hint" }, element("span", { class: "key local" }), "own programs",
      element("span", { class: "key lent" }), "lent to others"));
  }
  fill("machines", rows, "The memory of this machine is not known.");
}

function programs(data) {
  const most = Math.max(1, ...data.programs.map((program) => (program.local_bytes || 0) + program.lent_bytes));
  const rows = data.programs.map((program) => {
    const local = program.local_bytes || 0;
    const text = `${program.local_bytes === null ? "" : `${bytes(local)} local, `}${bytes(program.lent_bytes)} lent; ` +
      `in ${bytes(program.flow.bytes_in)}/s, out ${bytes(program.flow.bytes_out)}/s; p99 ${time(program.flow.p99_us)}`;
    const name = element("span", {}, `${program.name} `,
      element("span", { class: program.is_well ? "good" : "bad" }, program.is_well ? program.kind : program.health || program.state));
    return row(name, bar([["local", local / most], ["lent", program.lent_bytes / most]], text), text);
  });
  fill("programs", rows, "No program and no device of this user borrows memory.");
}

function flows(data) {
  const ends = [];
  for (const link of data.donors) {
    const slabs = data.slabs.find((slabs) => slabs.of === link.of);
    const place = slabs ? slabs.donors.indexOf(link.donor) : -1;
    const rate = place >= 0 ? slabs.pages_per_s_by_donor[place] : 0;
    ends.push({ from: link.of, to: link.donor, rate, lost: link.state !== "connected",
      text: `${link.state}, ${link.transport || "-"}, ${link.slabs} slabs, ${Math.round(rate)} pages/s${link.note ? ", " + link.note : ""}` });
  }
  for (const borrower of data.borrowers) {
    ends.push({ from: `${borrower.volume} at ${borrower.peer}`, to: `${borrower.donor} (this machine)`, rate: 0, lost: false,
      text: `${borrower.transport}, ${bytes(borrower.lent_bytes)} lent` });
  }
  const most = Math.max(1, ...ends.map((end) => end.rate));
  const rows = ends.map((end) => {
    const line = shape("path", { class: end.lost ? "flow lost" : "flow", d: "M0 6 H400", "stroke-width": 1 + 9 * Math.sqrt(end.rate / most) });
    return row(`${end.from} \u2192 ${end.to}`, picture(400, 12, end.text, [line]), end.text);
  });
  fill("flows", rows, "Nothing is borrowed or lent.");
}

function slabs(data) {
  const parts = data.slabs.map((volume) => {
    const most = Math.max(1, ...volume.pages_per_s);
    const columns = Math.floor(width() / 11);
    const shapes = volume.pages_per_s.map((rate, index) => {
      const held = volume.donor_of_square[index] !== null;
      const [x, y] = [1 + (index % columns) * 11, 1 + Math.floor(index / columns) * 11];
      const square = shape("rect", { class: held ? "square held" : "square", x, y, width: 9, height: 9, rx: 1.5 });
      if (held) square.setAttribute("fill-opacity", (0.2 + 0.8 * Math.sqrt(rate / most)).toFixed(2));
      const donor = held ? volume.donors[volume.donor_of_square[index]] : "no donor";
      square.append(shape("title", {}, `${donor}, ${rate.toFixed(1)} pages/s`));
      return square;
    });
    const rows = Math.ceil(volume.pages_per_s.length / columns);
    return element("div", {}, element("p", { class: "hint" }, `${volume.of}: a square is ${bytes(volume.square_bytes)}`),
      picture(width(), 2 + rows * 11, `slabs of ${volume.of}`, shapes));
  });
  fill("slabs", parts, "There is no volume.");
}

function hour(data) {
  const points = data.hour.filter((point) => point.p99_us !== null);
  if (!points.length) { fill("hour", [], "No page has come in yet."); return; }
  const [first, last] = [data.hour[0].at_unix_s, data.hour[data.hour.length - 1].at_unix_s];
  const most = Math.max(10, ...points.map((point) => point.p99_us));
  const right = width() - 10;
  const x = (at) => 60 + (right - 60) * (last > first ? (at - first) / (last - first) : 1);
  const y = (value) => 150 - 130 * Math.log10(1 + value) / Math.log10(1 + most);
  const shapes = [];
  for (let value = 10; value <= most * 10 && y(value) >= 15; value *= 10) {
    shapes.push(shape("path", { class: "axis", d: `M60 ${y(value)} H${right}` }), shape("text", { x: 54, y: y(value) + 4, "text-anchor": "end" }, time(value)));
  }
  for (const name of ["p50", "p99"]) {
    const line = points.map((point, index) => `${index ? "L" : "M"}${x(point.at_unix_s).toFixed(1)} ${y(point[`${name}_us`]).toFixed(1)}`);
    shapes.push(shape("path", { class: name, d: line.length > 1 ? line.join(" ") : `${line[0]} h2` }));
  }
  shapes.push(shape("text", { x: 60, y: 168 }, clock(first)), shape("text", { x: right, y: 168, "text-anchor": "end" }, clock(last)));
  fill("hour", [element("p", { class: "hint" }, "Latency of page-ins:", element("span", { class: "key local" }), "p50",
    element("span", { class: "key lent" }), "p99"), picture(width(), 174, "latency over the last hour", shapes)], "");
}

function events(data) {
  const rows = data.events.map((event) => element("li", event.is_trouble && event.began ? { class: "bad" } : {},
    element("time", {}, clock(event.at_unix_s)), `${event.began ? "began" : "ended"}: ${event.text}`));
  fill("events", rows, "Nothing has changed since the agent started.");
}

function show(data) {
  document.getElementById("machine").textContent = data.machine;
  document.getElementById("summary").textContent = `In ${bytes(data.total.bytes_in)}/s, out ${bytes(data.total.bytes_out)}/s, ` +
    `page-ins p50 ${time(data.total.p50_us)}, p99 ${time(data.total.p99_us)}. Release ${data.release}.`;
  const degraded = document.getElementById("degraded");
  degraded.hidden = data.degraded.length === 0;
  degraded.querySelector("ul").replaceChildren(...data.degraded.map((text) => element("li", {}, text)));
  for (const part of [machines, programs, flows, slabs, hour, events]) part(data);
}

async function turn() {
  try {
    const answer = await fetch("/page.json", { cache: "no-store" });
    if (!answer.ok) throw new Error(await answer.text());
    show(await answer.json());
  } catch (error) {
    document.getElementById("summary").textContent = `The agent does not answer (${error.message}). The figures are old.`;
  }
  setTimeout(turn, INTERVAL_MS);
}

turn();
