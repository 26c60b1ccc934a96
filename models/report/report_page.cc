#include "models/report/report_page.h"

#include <fmt/format.h>

#include "models/report/svg_plot.h"

namespace lockstep::models {
namespace {

// Light and dark by prefers-color-scheme.
constexpr std::string_view kStyle = R"css(
:root {
  color-scheme: light dark;
  --bg: #f5f6f8; --card: #ffffff; --ink: #17202b; --soft: #56616f; --edge: #e1e5ea; --grid: #eceff2;
  --train: #3f7fd6; --train-ink: #2a65b5; --val: #e0661a; --val-ink: #b34c0a;
  --good: #1d8a4e; --watch: #a8650a; --bad: #c62f2f; --unknown: #6b7683;
  --good-tint: #e8f5ed; --watch-tint: #fdf3e0; --bad-tint: #fcebea; --unknown-tint: #eef1f4;
  --data: #8a6fd1; --forward: #3f7fd6; --backward: #1f9e95; --exposed: #c2528b; --update: #e0a125;
  --eval: #e0661a; --sample: #c55aa0; --checkpoint: #7d8894; --report: #b9c1ca;
  --lr: #8a6fd1; --lr-ink: #6a4db8; --norm: #1f9e95; --norm-ink: #12756e;
  --speed: #3f7fd6; --speed-ink: #2a65b5; --memory: #c55aa0; --memory-ink: #a03d7e;
  --run0: #3f7fd6; --run1: #e0661a; --run2: #1d8a4e; --run3: #c2528b; --run4: #8a6fd1;
  --run5: #a8650a; --run6: #1f9e95; --run7: #c62f2f; --run8: #7d8894; --run9: #e0a125;
}
@media (prefers-color-scheme: dark) {
  :root {
    --bg: #11151a; --card: #191f26; --ink: #e7ebf0; --soft: #9ba7b5; --edge: #2a323c; --grid: #242b34;
    --train: #6ba4f0; --train-ink: #8bb8f5; --val: #f58b45; --val-ink: #f9a76f;
    --good: #4cc283; --watch: #e0a84a; --bad: #f0726d; --unknown: #98a4b2;
    --good-tint: #16291f; --watch-tint: #2c2415; --bad-tint: #311c1c; --unknown-tint: #1f262e;
    --data: #a48fe6; --forward: #6ba4f0; --backward: #45bfb5; --exposed: #e07fb0; --update: #e8b84f;
    --eval: #f58b45; --sample: #dd82bd; --checkpoint: #8b97a4; --report: #5b6673;
    --lr: #a48fe6; --lr-ink: #b9a8ee; --norm: #45bfb5; --norm-ink: #67d3ca;
    --speed: #6ba4f0; --speed-ink: #8bb8f5; --memory: #dd82bd; --memory-ink: #e8a0ce;
    --run0: #6ba4f0; --run1: #f58b45; --run2: #4cc283; --run3: #e07fb0; --run4: #a48fe6;
    --run5: #e0a84a; --run6: #45bfb5; --run7: #f0726d; --run8: #8b97a4; --run9: #e8d04f;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--bg); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif;
  font-variant-numeric: tabular-nums;
}
main { max-width: 1240px; margin: 0 auto; padding: 28px 24px 48px; }
h1, h2, h3, p, figure, pre, dl, dd { margin: 0; }
.top { display: flex; flex-wrap: wrap; gap: 4px 16px; align-items: baseline; margin-bottom: 16px; }
.top h1 { font-size: 20px; font-weight: 650; overflow-wrap: anywhere; }
.top .when { color: var(--soft); font-size: 13px; margin-left: auto; }
.chip { border-radius: 99px; padding: 1px 10px; font-size: 13px; border: 1px solid var(--edge); background: var(--card); color: var(--soft); }
.card { background: var(--card); border: 1px solid var(--edge); border-radius: 12px; padding: 16px 18px; min-width: 0; }
.verdict { display: flex; gap: 18px; align-items: center; border-left-width: 6px; padding: 20px 22px; flex-wrap: wrap; }
.verdict.good { border-left-color: var(--good); background: var(--good-tint); }
.verdict.watch { border-left-color: var(--watch); background: var(--watch-tint); }
.verdict.bad { border-left-color: var(--bad); background: var(--bad-tint); }
.verdict.unknown { border-left-color: var(--unknown); background: var(--unknown-tint); }
.verdict .say { flex: 1 1 420px; min-width: 0; }
.verdict h2 { font-size: 26px; line-height: 1.25; font-weight: 680; letter-spacing: -0.01em; }
.verdict p { margin-top: 4px; font-size: 16px; max-width: 74ch; }
.mark { width: 46px; height: 46px; flex: none; }
.good .mark circle, i.good { fill: var(--good); background: var(--good); }
.watch .mark circle, i.watch { fill: var(--watch); background: var(--watch); }
.bad .mark circle, i.bad { fill: var(--bad); background: var(--bad); }
.unknown .mark circle, i.unknown { fill: var(--unknown); background: var(--unknown); }
.mark path { fill: none; stroke: var(--card); stroke-width: 3.4; stroke-linecap: round; stroke-linejoin: round; }
.progress { flex: 0 1 230px; font-size: 13px; color: var(--soft); }
.progress b { color: var(--ink); font-size: 15px; font-weight: 600; }
.progress .bar { height: 6px; border-radius: 3px; background: var(--edge); margin: 7px 0 6px; overflow: hidden; }
.progress .bar span { display: block; height: 100%; background: var(--train); border-radius: 3px; }
.tiles { display: grid; grid-template-columns: repeat(6, 1fr); gap: 12px; margin: 14px 0; }
.tile { padding: 13px 15px 12px; }
.tile .label { font-size: 13px; color: var(--soft); display: flex; align-items: center; gap: 7px; white-space: nowrap; }
.tile i { width: 9px; height: 9px; border-radius: 50%; flex: none; }
.tile .value { font-size: 25px; font-weight: 650; line-height: 1.3; letter-spacing: -0.01em; white-space: nowrap; }
.tile .value small { font-size: 13px; font-weight: 400; color: var(--soft); letter-spacing: 0; margin-left: 4px; }
.tile p { font-size: 12.5px; line-height: 1.4; color: var(--soft); }
.charts { display: grid; grid-template-columns: 1fr 1fr; gap: 14px; }
.wide { grid-column: 1 / -1; }
figcaption, .head { display: flex; flex-wrap: wrap; gap: 2px 14px; align-items: baseline; margin-bottom: 6px; }
h3, .head h2 { font-size: 15px; font-weight: 650; }
.note { font-size: 13px; color: var(--soft); }
.legend { margin-left: auto; display: flex; flex-wrap: wrap; gap: 2px 14px; font-size: 13px; color: var(--soft); }
.legend span { display: inline-flex; align-items: center; gap: 6px; }
.legend b, td b { width: 12px; height: 4px; border-radius: 2px; display: inline-block; }
td b { height: 10px; border-radius: 3px; margin-right: 8px; }
.plot { display: block; width: 100%; height: auto; touch-action: pan-y; }
.scroll { overflow-x: auto; position: relative; }
.plot text { font-size: 12px; fill: var(--soft); }
.plot .end { font-size: 13px; font-weight: 650; }
.plot .rule-label { font-size: 11.5px; }
.grid line { stroke: var(--grid); }
.axis { stroke: var(--edge); }
.rule { stroke: var(--soft); stroke-dasharray: 4 4; opacity: .65; }
.line { fill: none; stroke-width: 2.2; stroke-linejoin: round; stroke-linecap: round; }
.line.faint { stroke-width: 1; opacity: .38; }
.band { opacity: .16; }
.area { opacity: .9; }
.dot { stroke: var(--card); stroke-width: 1.2; }
.hover line { stroke: var(--soft); opacity: .6; }
.hover circle { stroke: var(--card); stroke-width: 1.5; }
.tip { position: fixed; z-index: 2; pointer-events: none; background: var(--card); color: var(--ink); border: 1px solid var(--edge); border-radius: 8px; padding: 7px 10px; font-size: 12.5px; line-height: 1.45; box-shadow: 0 4px 16px rgb(0 0 0 / .16); white-space: nowrap; }
.tip div { display: flex; gap: 8px; align-items: center; }
.tip div b { width: 9px; height: 9px; border-radius: 50%; }
.tip div span { margin-left: auto; padding-left: 14px; font-weight: 600; }
.split { display: flex; height: 26px; border-radius: 6px; overflow: hidden; margin: 12px 0 10px; gap: 2px; }
.split span { min-width: 2px; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
td, th { padding: 3.5px 0; text-align: right; font-weight: 400; border-top: 1px solid var(--grid); white-space: nowrap; }
td:first-child, th:first-child { text-align: left; }
th { color: var(--soft); font-size: 12.5px; border-top: 0; }
.runs td, .runs th { padding-left: 18px; }
.runs td:first-child, .runs th:first-child { padding-left: 0; }
.runs a { color: inherit; }
td.key { color: var(--soft); padding-right: 14px; vertical-align: top; }
td.set { text-align: right; font-family: ui-monospace, "DejaVu Sans Mono", Menlo, monospace; font-size: 12.5px; white-space: normal; overflow-wrap: anywhere; }
td.changed { font-weight: 650; color: var(--train-ink); }
section { margin-top: 14px; }
pre { font: 13px/1.5 ui-monospace, "DejaVu Sans Mono", Menlo, monospace; white-space: pre-wrap; overflow-wrap: anywhere; max-height: 30em; overflow-y: auto; background: var(--bg); border-radius: 8px; padding: 12px 14px; margin-top: 8px; }
pre mark { background: none; color: var(--soft); }
details { margin-top: 8px; }
summary { cursor: pointer; color: var(--soft); font-size: 13.5px; }
.columns { columns: 3 300px; column-gap: 34px; }
.columns > div { break-inside: avoid; margin-bottom: 14px; }
.columns h3 { margin: 2px 0; }
.facts { display: grid; grid-template-columns: max-content 1fr; gap: 3px 18px; font-size: 13.5px; }
.facts dt { color: var(--soft); }
.facts dd { overflow-wrap: anywhere; }
footer { margin-top: 20px; color: var(--soft); font-size: 13px; }
@media (max-width: 1080px) { .tiles { grid-template-columns: repeat(3, 1fr); } }
@media (max-width: 860px) { .charts { grid-template-columns: minmax(0, 1fr); } }
@media (max-width: 600px) {
  main { padding: 16px 12px 32px; }
  .tiles { grid-template-columns: repeat(2, 1fr); }
  .tile .label, .tile .value { white-space: normal; }
  .plot { min-width: 520px; }
  .wide .plot { min-width: 800px; }
  .verdict { padding: 16px; }
  .verdict .say { flex-basis: 200px; }
  .verdict h2 { font-size: 21px; }
  .legend { margin-left: 0; }
}
)css";

constexpr std::string_view kScript = R"js(
(() => {
  const ns = document.querySelector('svg').namespaceURI;
  const digits = (v, n) => Number(v.toPrecision(n)).toString();
  const scaled = (v, base, units) => {
    let i = 0;
    while (Math.abs(v) >= base && i + 1 < units.length) { v /= base; ++i; }
    return digits(v, 4) + units[i];
  };
  const formats = {
    plain: v => digits(v, 5),
    scientific: v => v === 0 ? '0' : v.toExponential(2),
    count: v => scaled(v, 1000, ['', 'k', 'M', 'B', 'T']),
    bytes: v => scaled(v, 1024, [' B', ' KiB', ' MiB', ' GiB', ' TiB']),
    ms: v => v >= 1000 ? digits(v / 1000, 4) + ' s' : digits(v, 4) + ' ms',
  };
  const charts = [...document.querySelectorAll('svg.plot')].map(svg => ({
    svg, layer: svg.querySelector('.hover'), data: JSON.parse(svg.nextElementSibling.textContent),
  }));
  const tip = document.createElement('div');
  tip.className = 'tip';
  tip.hidden = true;
  document.body.append(tip);

  // The point of a line nearest to a step; xs ascend.
  const nearest = (xs, x) => {
    let low = 0, high = xs.length - 1;
    while (low < high) {
      const mid = (low + high) >> 1;
      if (xs[mid] < x) low = mid + 1; else high = mid;
    }
    return low > 0 && x - xs[low - 1] < xs[low] - x ? low - 1 : low;
  };
  const element = (name, attributes) => {
    const e = document.createElementNS(ns, name);
    for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
    return e;
  };
  const pixel = (d, x) => d.left + x / d.last * (d.right - d.left);

  const show = step => {
    for (const { layer, data: d } of charts) {
      const x = pixel(d, step);
      layer.replaceChildren(element('line', { x1: x, x2: x, y1: d.top, y2: d.bottom }));
      for (const line of d.lines) {
        if (!line.x.length) continue;
        const i = nearest(line.x, step);
        const dot = element('circle', { cx: pixel(d, line.x[i]), cy: line.py[i], r: 3.5 });
        dot.style.fill = `var(${line.color})`;
        layer.append(dot);
      }
    }
  };
  const tell = (d, step, event) => {
    const head = document.createElement('div');
    head.textContent = 'step ' + Math.round(step);
    const rows = d.lines.filter(line => line.x.length).map(line => {
      const row = document.createElement('div'), key = document.createElement('b');
      const value = document.createElement('span'), i = nearest(line.x, step);
      key.style.background = `var(${line.color})`;
      const off = Math.abs(line.x[i] - step) > d.last / 50 ? ` @${line.x[i]}` : '';
      value.textContent = formats[d.format](line.y[i]) + off;
      row.append(key, line.name, value);
      return row;
    });
    tip.replaceChildren(head, ...rows);
    tip.hidden = false;
    const width = tip.offsetWidth, right = event.clientX + 18 + width > innerWidth;
    tip.style.left = (right ? event.clientX - width - 18 : event.clientX + 18) + 'px';
    tip.style.top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8) + 'px';
  };
  const hide = () => {
    tip.hidden = true;
    for (const { layer } of charts) layer.replaceChildren();
  };
  for (const { svg, data: d } of charts) {
    svg.addEventListener('pointermove', event => {
      const box = svg.getBoundingClientRect();
      const x = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
      if (x < d.left - 8 || x > d.right + 8) return hide();
      const step = Math.min(Math.max((x - d.left) / (d.right - d.left), 0), 1) * d.last;
      show(step);
      tell(d, step, event);
    });
    svg.addEventListener('pointerleave', hide);
  }
  document.documentElement.dataset.charts = charts.length;
})();
)js";

}  // namespace

std::string PageHead(std::string_view title, int seconds) {
  std::string s =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
  if (seconds > 0) s += fmt::format("<meta http-equiv=\"refresh\" content=\"{}\">\n", seconds);
  return s + fmt::format("<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n<main>\n",
                         EscapeHtml(title), kStyle);
}

std::string PageEnd(std::string_view footer) {
  return fmt::format("<footer>{}</footer>\n</main>\n<script>{}</script>\n</body>\n</html>\n",
                     EscapeHtml(footer), kScript);
}

}  // namespace lockstep::models
