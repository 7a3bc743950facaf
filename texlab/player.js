// The canvas player: draws one step of frames that were all sent once, so that stepping never asks Python.
// One canvas a panel. Traits and units: player.py.

const OKABE_ITO = [null, "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"];
const WHITE_TEXT = new Set([5]); // black on the blue would be 4.2:1
const MUTED = 8, OUTSIDE = 9; // a grey of the theme; hatched "not in memory"
const SMALLEST_CELL = 13, BREAK = 7; // px

const div = (parent, className, text = "") => {
  const node = document.createElement("div");
  node.className = className;
  node.textContent = text;
  parent.append(node);
  return node;
};

function theme(el) {
  const css = getComputedStyle(el);
  const get = (name, otherwise) => css.getPropertyValue(name).trim() || otherwise;
  const dark = document.body.dataset.jpThemeLight === "false";
  return {
    cell: get("--jp-layout-color1", dark ? "#111" : "#fff"),
    grid: get("--jp-border-color2", dark ? "#444" : "#ddd"),
    muted: dark ? "#4a4a4a" : "#d6d6d6",
    text: get("--jp-ui-font-color1", dark ? "#fff" : "#111"),
    faint: get("--jp-ui-font-color2", dark ? "#bbb" : "#555"),
    strong: get("--jp-ui-font-color0", dark ? "#fff" : "#000"),
    font: get("--jp-ui-font-family", "system-ui, sans-serif"),
  };
}

function drawMark(g, mark, x, y, s, colour) {
  g.save();
  g.beginPath();
  g.rect(x, y, s, s);
  g.clip();
  g.strokeStyle = g.fillStyle = colour;
  g.lineWidth = 1;
  g.beginPath();
  if (mark === "hatch") for (let k = -s; k < s; k += 5) g.moveTo(x + k, y + s), g.lineTo(x + k + s, y);
  else if (mark === "cross") (g.globalAlpha = 0.45), g.moveTo(x, y), g.lineTo(x + s, y + s), g.moveTo(x, y + s), g.lineTo(x + s, y);
  else if (mark === "outline") (g.lineWidth = 4), g.rect(x, y, s, s);
  g.stroke();
  if (mark === "corner") {
    const k = s * 0.3;
    g.beginPath(), g.moveTo(x + s - k, y), g.lineTo(x + s, y), g.lineTo(x + s, y + k), g.fill();
  }
  g.restore();
}

const fill = (marks, colour) => (marks[colour] === "outline" ? null : OKABE_ITO[colour]) || null;

// One cell's colour and mark (a second sign beside colour).
function drawCell(g, look, marks, x, y, s, colour) {
  const mark = marks[colour] || (colour === OUTSIDE ? "hatch" : ""), filled = fill(marks, colour);
  g.fillStyle = filled || (colour === MUTED ? look.muted : look.cell);
  g.fillRect(x, y, s, s);
  if (!mark) return;
  const ink = filled ? inkOn(colour) : mark === "outline" ? OKABE_ITO[colour] || look.strong : look.grid;
  drawMark(g, mark, x, y, s, ink);
}

const inkOn = (colour) => (WHITE_TEXT.has(colour) ? "#fff" : "#000");

// Offsets of n cells of size s, with a gap in front of every index in `breaks`; the last entry is the end.
function offsets(n, s, breaks) {
  const gaps = new Set(breaks);
  const out = [0];
  for (let i = 0, at = 0; i < n; i++) {
    if (i && gaps.has(i)) out[i] = at += BREAK;
    out.push((at += s));
  }
  return out;
}

class Panel {
  constructor(parent, spec, index, start) {
    Object.assign(this, { spec, index, start, count: spec.rows * spec.cols });
    this.el = div(parent, "tlp-panel");
    div(this.el, "tlp-title", spec.title || spec.name);
    this.note = div(this.el, "tlp-note");
    this.scroll = div(this.el, "tlp-scroll");
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("role", "img");
    this.scroll.append(this.canvas);
  }

  layout(available, look) {
    const { rows, cols, x, y, cell = 22, row_labels, col_labels, row_breaks = [], col_breaks = [] } = this.spec;
    const g = this.canvas.getContext("2d");
    g.font = `11px ${look.font}`;
    const widest = (labels) => Math.max(0, ...(labels || []).map((t) => g.measureText(t).width));
    this.left = (y ? 18 : 0) + (row_labels ? Math.ceil(widest(row_labels)) + 6 : 0) + 2;
    this.top = (x ? 17 : 0) + (col_labels ? 15 : 0) + 2;
    const fits = Math.floor((available - this.left - 4 - BREAK * col_breaks.length) / cols);
    const s = (this.cell = Math.max(Math.min(cell, SMALLEST_CELL), Math.min(cell, fits)));
    this.xs = offsets(cols, s, col_breaks);
    this.ys = offsets(rows, s, row_breaks);
    this.everyCol = Math.ceil((widest(col_labels) + 5) / s) || 1;
    this.everyRow = Math.ceil(12 / s);
    const width = this.left + this.xs[cols] + 3, height = this.top + this.ys[rows] + 3;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.ceil(width * ratio);
    this.canvas.height = Math.ceil(height * ratio);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.size = [width, height, ratio];
    this.base = document.createElement("canvas"); // the cells without frames and rings: a step redraws what differs
    this.base.width = this.canvas.width;
    this.base.height = this.canvas.height;
    this.shown = new Int32Array(this.count).fill(-1);
    const base = this.base.getContext("2d");
    base.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.labels(base, look);
  }

  draw(state, look) {
    const { cols, outline = [], notes } = this.spec;
    const { left, top, xs, ys, cell: s } = this;
    const [width, height, ratio] = this.size;
    const start = state.step * state.cells + this.start;
    this.cells(look, state, start);
    const g = this.canvas.getContext("2d");
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, width, height);
    g.drawImage(this.base, 0, 0, this.base.width / ratio, this.base.height / ratio);
    this.runs(g, look, start, state.frames, new Set(outline));
    const links = state.links, hot = state.hot;
    if (hot >= 0)
      for (let i = 0; i < this.count; i++)
        if (this.start + i === hot || (links.length && links[hot] >= 0 && links[this.start + i] === links[hot])) {
          g.beginPath(); // a ring: heavy squares already mean runs
          g.arc(left + xs[i % cols] + s / 2 + 0.5, top + ys[Math.floor(i / cols)] + s / 2 + 0.5, s / 2 - 1.5, 0, 2 * Math.PI);
          g.lineWidth = 4;
          g.strokeStyle = look.cell;
          g.stroke();
          g.lineWidth = 2.5;
          g.strokeStyle = look.strong;
          g.stroke();
        }
    const note = (notes && notes[state.step]) || "";
    this.note.textContent = note;
    this.canvas.setAttribute("aria-label", [this.spec.title || this.spec.name, note, state.caption].filter(Boolean).join(". "));
  }

  // Bring `base` up to date with the frame that starts at `start`.
  cells(look, { frames, tags, marks }, start) {
    const { cols } = this.spec, { left, top, xs, ys, cell: s } = this;
    const g = this.base.getContext("2d");
    g.textAlign = "center";
    g.textBaseline = "middle";
    let font = "";
    for (let i = 0; i < this.count; i++) {
      const colour = frames[start + i], tag = tags.length ? tags[start + i] : -1, key = colour + 16 * (tag + 1);
      if (this.shown[i] === key) continue;
      this.shown[i] = key;
      const x = left + xs[i % cols], y = top + ys[Math.floor(i / cols)];
      g.fillStyle = look.grid;
      g.fillRect(x, y, s + 1, s + 1);
      drawCell(g, look, marks, x + 1, y + 1, s - 1, colour);
      if (tag < 0) continue;
      const text = String(tag), filled = fill(marks, colour);
      const size = Math.min(12, s * (text.length < 3 ? 0.62 : 1.45 / text.length));
      const wanted = `${filled ? 600 : 400} ${size}px ${look.font}`;
      if (wanted !== font) g.font = font = wanted; // setting a font is the slow part
      g.fillStyle = filled ? inkOn(colour) : look.text;
      g.fillText(text, x + s / 2 + 0.5, y + s / 2 + 1);
    }
  }

  labels(g, look) {
    const { x, y, row_labels, col_labels } = this.spec, { left, top, xs, ys, cell: s } = this;
    g.fillStyle = look.faint;
    g.textBaseline = "middle";
    g.font = `11px ${look.font}`;
    g.textAlign = "center";
    for (let c = 0; col_labels && c < col_labels.length; c += this.everyCol) g.fillText(col_labels[c], left + xs[c] + s / 2, top - 8);
    g.textAlign = "right";
    for (let r = 0; row_labels && r < row_labels.length; r += this.everyRow) g.fillText(row_labels[r], left - 5, top + ys[r] + s / 2 + 1);
    g.textAlign = "left";
    if (x) g.fillText(`${x} →`, left, 9);
    if (y) {
      g.save();
      g.translate(9, top);
      g.rotate(-Math.PI / 2);
      g.textAlign = "right";
      g.fillText(`← ${y}`, 0, 0);
      g.restore();
    }
  }

  // A heavy frame around neighbouring cells of a row whose colour is in `colours`: one frame, one contiguous run.
  runs(g, look, start, frames, colours) {
    const { rows, cols, col_breaks = [] } = this.spec, gaps = new Set(col_breaks);
    g.strokeStyle = look.strong;
    g.lineWidth = 2;
    for (let r = 0; r < rows; r++)
      for (let c = 0; c < cols; c++) {
        if (!colours.has(frames[start + r * cols + c])) continue;
        const first = c;
        while (c + 1 < cols && !gaps.has(c + 1) && colours.has(frames[start + r * cols + c + 1])) c++;
        const from = this.left + this.xs[first], to = this.left + this.xs[c] + this.cell;
        g.strokeRect(from + 0.5, this.top + this.ys[r] + 0.5, to - from, this.cell);
      }
  }

  // Index of the cell under a pointer event, or -1.
  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const find = (at, size) => at.findIndex((p, i) => i + 1 < at.length && size >= p && size < p + this.cell);
    const c = find(this.xs, event.clientX - box.left - this.left), r = find(this.ys, event.clientY - box.top - this.top);
    return c < 0 || r < 0 ? -1 : r * this.spec.cols + c;
  }
}

function render({ model, el }) {
  const root = div(el, "tlp");
  root.tabIndex = 0;
  root.setAttribute("role", "group");
  const caption = div(root, "tlp-caption");
  caption.setAttribute("aria-live", "polite");
  const legend = div(root, "tlp-legend"), area = div(root, "tlp-panels"), tip = div(root, "tlp-tip");
  let panels = [], look = theme(root), steps = 1, points = new Int32Array(0), dragging = false;
  const state = { step: 0, cells: 0, frames: [], tags: [], links: [], marks: {}, hot: -1, caption: "" };

  const array = (name, Type) => {
    const view = model.get(name);
    const bytes = new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
    return new Type(bytes.slice().buffer); // a copy is aligned; the message's buffer need not be
  };

  function drawLegend() {
    legend.replaceChildren();
    for (const [colour, text] of model.get("legend")) {
      const item = div(legend, "tlp-item");
      const swatch = document.createElement("canvas");
      swatch.width = swatch.height = 32;
      const g = swatch.getContext("2d");
      g.scale(2, 2);
      g.fillStyle = look.grid;
      g.fillRect(0, 0, 16, 16);
      drawCell(g, look, state.marks, 1, 1, 14, colour);
      item.append(swatch, text);
    }
  }

  function load() {
    const specs = model.get("panels");
    state.frames = array("frame_bytes", Uint8Array);
    state.tags = array("tag_bytes", Int16Array);
    state.links = array("link_bytes", Int32Array);
    points = array("point_bytes", Int32Array);
    state.hot = -1;
    state.marks = Object.fromEntries(model.get("legend").map(([colour, , mark]) => [colour, mark]));
    area.replaceChildren();
    let start = 0;
    panels = specs.map((spec, i) => {
      const panel = new Panel(area, spec, i, start);
      start += panel.count;
      listen(panel);
      return panel;
    });
    state.cells = start;
    steps = Math.max(1, start ? Math.floor(state.frames.length / start) : 1);
    root.setAttribute("aria-label", `${model.get("label") || "Picture"}. Arrow keys step, Home and End jump, space plays.`);
    root.dataset.bytes = state.frames.length;
    tip.hidden = true;
    arrange();
  }

  function arrange() {
    look = theme(root);
    drawLegend();
    const available = (area.clientWidth || 900) - 2;
    for (const panel of panels) panel.layout(available, look);
    reserve();
    draw();
  }

  // Keep the room of the longest caption and note, so that stepping never moves what is below.
  function reserve() {
    const longest = (texts) => (texts || []).reduce((a, b) => (b.length > a.length ? b : a), "");
    const fix = (node, texts) => {
      node.style.minHeight = "";
      node.textContent = longest(texts);
      node.style.minHeight = `${node.offsetHeight}px`;
    };
    fix(caption, model.get("captions"));
    for (const panel of panels) fix(panel.note, panel.spec.notes);
  }

  function draw() {
    const started = performance.now();
    state.step = Math.min(steps - 1, Math.max(0, model.get("step")));
    state.caption = (model.get("captions") || [])[state.step] || (panels.length ? `step ${state.step}` : "");
    caption.textContent = state.caption;
    for (const panel of panels) panel.draw(state, look);
    root.dataset.step = state.step;
    root.dataset.drawMs = (performance.now() - started).toFixed(1);
  }

  function go(step) {
    const next = Math.min(steps - 1, Math.max(0, step));
    if (next === model.get("step")) return;
    model.set("step", next);
    model.save_changes();
  }

  function hover(panel, event) {
    const i = panel.at(event), hot = i < 0 ? -1 : panel.start + i;
    if (hot !== state.hot) {
      state.hot = hot;
      for (const p of panels) p.draw(state, look);
    }
    tip.hidden = i < 0;
    if (i < 0) return;
    const { name, cols, tips, tag_name } = panel.spec, at = state.step * state.cells + hot;
    const lines = [(tips && tips[i]) || `${name}[${Math.floor(i / cols)}, ${i % cols}]`];
    if (state.tags.length && state.tags[at] >= 0 && tag_name) lines.push(`${tag_name} ${state.tags[at]}`);
    const meaning = model.get("legend").find(([colour]) => colour === state.frames[at]);
    if (meaning) lines.push(meaning[1]);
    if (panel.index === 0 && points.length && points[i] >= 0) lines.push("click or drag: go there");
    tip.textContent = lines.join("\n");
    const box = root.getBoundingClientRect();
    const right = event.clientX - box.left + 14;
    tip.style.left = `${Math.max(0, Math.min(right, root.clientWidth - tip.offsetWidth - 4))}px`;
    tip.style.top = `${event.clientY - box.top + 16}px`;
  }

  function listen(panel) {
    const pick = (event) => {
      const i = panel.at(event);
      if (i >= 0 && points[i] >= 0) go(points[i]);
    };
    const pickable = panel.index === 0 && points.length > 0;
    if (pickable) panel.canvas.style.cursor = "pointer";
    panel.canvas.addEventListener("pointermove", (e) => { if (dragging && pickable) pick(e); hover(panel, e); });
    panel.canvas.addEventListener("pointerleave", (e) => hover(panel, e));
    panel.canvas.addEventListener("pointerdown", (e) => { root.focus({ preventScroll: true }); dragging = true; if (pickable) pick(e); });
  }

  const release = () => (dragging = false);
  window.addEventListener("pointerup", release);

  const keys = (event) => {
    if (!root.contains(event.target) || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    const step = state.step, page = Math.max(1, model.get("page"));
    const target = { ArrowRight: step + 1, ArrowLeft: step - 1, ArrowDown: step + page, ArrowUp: step - page,
      PageDown: step + page, PageUp: step - page, Home: 0, End: steps - 1 }[event.key];
    if (target !== undefined) go(target);
    else if (event.key === " ") (model.set("playing", !model.get("playing")), model.save_changes());
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  // JupyterLab takes keys at the document, while they travel down: ours must be taken before that, at the window.
  window.addEventListener("keydown", keys, true);

  // Several traits change in one message: read them once, after all of them have arrived.
  let pending = false, alive = true;
  const reload = () => {
    if (pending) return;
    pending = true;
    queueMicrotask(() => ((pending = false), alive && load()));
  };
  const stale = () => root.classList.toggle("tlp-stale", model.get("stale"));
  const data = ["panels", "frame_bytes", "tag_bytes", "link_bytes", "point_bytes", "captions", "legend"];
  for (const name of data) model.on(`change:${name}`, reload);
  model.on("change:step", draw);
  model.on("change:stale", stale);

  const themes = new MutationObserver(() => setTimeout(() => alive && arrange(), 50)); // the style sheet follows the attribute
  themes.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "class"] });
  let width = 0;
  const resize = new ResizeObserver(() => {
    if (Math.abs(area.clientWidth - width) < 2) return;
    width = area.clientWidth;
    arrange();
  });
  load();
  stale();
  resize.observe(area);

  return () => {
    alive = false;
    themes.disconnect();
    resize.disconnect();
    window.removeEventListener("pointerup", release);
    window.removeEventListener("keydown", keys, true);
    for (const name of data) model.off(`change:${name}`, reload);
    model.off("change:step", draw);
    model.off("change:stale", stale);
  };
}

export default { render };
