// SPDX-License-Identifier: Apache-2.0
#include "report/html_parts.hpp"

namespace aisp::report::html {

const char* const page_style = R"(
:root{color-scheme:light dark;--back:#f6f7fa;--card:#fff;--text:#1c2330;--soft:#566073;--edge:#dfe3ea;--blue:#0b5cad;--tint:#eaf2fb;
--green:#14713b;--greenback:#e2f4e8;--red:#b3261e;--redback:#fcebea;--amber:#855300;--amberback:#fdf1dc;--orange:#b04a00;--purple:#7a3fb0;
--code:#fbfcfe;--kernel:#fff7e8;--c:#5f6b7e;--s:#14713b;--n:#a03d00;--k:#7a3fb0;--u:#0b5cad}
@media(prefers-color-scheme:dark){:root{--back:#0d1017;--card:#151a24;--text:#e7ebf3;--soft:#a3adbf;--edge:#2a3140;--blue:#6bb3ff;--tint:#17263a;
--green:#6fdc96;--greenback:#12301f;--red:#ff9a92;--redback:#3a1917;--amber:#f5c069;--amberback:#33260d;--orange:#ff9d52;--purple:#c79bf2;
--code:#10141d;--kernel:#241d10;--c:#8d98ab;--s:#8fd9a8;--n:#ffb784;--k:#d0aef5;--u:#7fbdff}}
*{box-sizing:border-box}
html{scroll-padding-top:3.4rem;-webkit-text-size-adjust:100%}
body{margin:0;background:var(--back);color:var(--text);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;overflow-wrap:break-word}
main{max-width:1240px;margin:0 auto;padding:0 20px 60px}
nav{scrollbar-width:none;position:sticky;top:0;z-index:5;display:flex;gap:4px;overflow-x:auto;padding:8px max(20px,calc(50vw - 600px));background:var(--card);border-bottom:1px solid var(--edge)}
nav a{padding:4px 10px;border-radius:6px;color:var(--soft);text-decoration:none;white-space:nowrap}
nav a:hover{background:var(--tint);color:var(--blue)}
a{color:var(--blue)}
:focus-visible{outline:2px solid var(--blue);outline-offset:2px}
h1{font-size:26px;line-height:1.2;margin:28px 0 8px}h2{font-size:20px;margin:44px 0 12px}
h3{font-size:16px;margin:20px 0 8px}h4{font-size:15px;margin:26px 0 6px}h5{font-size:14px;margin:0 0 8px}
p{margin:4px 0}.note,small,.place{color:var(--soft)}.note{font-size:14px}small{font-size:12px;white-space:nowrap}
code,pre{font:12.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(165px,1fr));gap:12px;margin-top:18px}
.tile{background:var(--card);border:1px solid var(--edge);border-radius:10px;padding:12px 16px;display:flex;flex-direction:column}
.tile strong{font-size:24px;line-height:1.25;font-variant-numeric:tabular-nums}.tile span{font-size:13px;color:var(--soft)}
.tile.main{background:var(--tint);border-color:var(--blue)}.tile.bad{background:var(--redback);border-color:var(--red)}.tile.bad strong{color:var(--red)}
.badge{display:inline-block;padding:0 8px;border-radius:99px;font-size:12px;line-height:20px;font-weight:600;white-space:nowrap;background:var(--edge);color:var(--text)}
.badge.passed,.badge.faster{background:var(--greenback);color:var(--green)}
.badge.failed,.badge.crashed,.badge.timeout,.badge.slower{background:var(--redback);color:var(--red)}
.badge.unclear,.badge.kernel{background:var(--amberback);color:var(--amber)}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
th,td{padding:6px 10px;text-align:left;vertical-align:top;border-bottom:1px solid var(--edge)}
thead th{font-size:13px;color:var(--soft);font-weight:600;white-space:nowrap;vertical-align:bottom}
tbody th{font-weight:500;color:var(--soft);white-space:nowrap;width:1%}
.number{text-align:right}td.number{white-space:nowrap}
.scroll{overflow-x:auto;background:var(--card);border:1px solid var(--edge);border-radius:10px}
.scroll tr:last-child>*,#results-table tbody tr:last-child>*{border-bottom:0}
.scroll td{overflow-wrap:normal;min-width:5em}
#manifest td,.more .scroll td{overflow-wrap:anywhere}
#results-table th,#results-table td{padding:6px 9px}#results-table td:last-child{white-space:nowrap}
#results-table td:nth-child(-n+3){white-space:nowrap}
#results-table tbody tr:hover{background:var(--tint)}
#results-table tr.wrong td:first-child{box-shadow:inset 3px 0 var(--red)}
#results-table tr[data-role=best]{font-weight:500}
#results-table tr[data-role=baseline]{color:var(--soft)}
#results-table tr[data-role=baseline] td:first-child{font-weight:600}
th button{all:unset;cursor:pointer;white-space:nowrap;padding:2px 0}th button:focus-visible{outline:2px solid var(--blue);outline-offset:3px;border-radius:3px}
th button:hover{color:var(--blue)}th button::after{content:"\2195";display:inline-block;width:1.1em;text-align:center;opacity:.45}
th[aria-sort=ascending] button::after{content:"\2191";opacity:1;color:var(--blue)}th[aria-sort=descending] button::after{content:"\2193";opacity:1;color:var(--blue)}
.controls{display:flex;flex-wrap:wrap;gap:10px 14px;align-items:end;margin-bottom:12px}
.controls[hidden]{display:none}
.controls label{display:flex;flex-direction:column;font-size:13px;color:var(--soft);gap:2px}
.controls input,.controls select,.controls button{font:inherit;font-size:14px;color:var(--text);background:var(--card);border:1px solid var(--edge);border-radius:8px;padding:6px 10px;min-height:36px}
.controls input{width:240px}.controls button{cursor:pointer}.controls button:hover{border-color:var(--blue)}
.controls output{font-size:14px;color:var(--soft);padding:7px 0}
.figure svg{display:block;min-width:820px;width:100%;height:auto}
.more{margin:8px 0}.more>summary{cursor:pointer;padding:4px 0;color:var(--blue)}
.pair{background:var(--card);border:1px solid var(--edge);border-radius:10px;margin:8px 0;content-visibility:auto;contain-intrinsic-size:auto 50px}
.pair>summary{cursor:pointer;padding:10px 16px;display:grid;grid-template-columns:14px minmax(190px,max-content) auto minmax(0,1fr);column-gap:10px;align-items:baseline;list-style:none}
.pair>summary::-webkit-details-marker{display:none}
.pair>summary::before{content:"\25B8";color:var(--soft)}.pair[open]>summary::before{content:"\25BE"}
.pair>summary:hover h3{color:var(--blue)}
.pair>summary h3{margin:0;font-size:15px}.pair>summary .figure{font-weight:600;font-variant-numeric:tabular-nums}
.pair>summary .lesson{grid-column:4;color:var(--soft);font-size:14px;overflow:hidden;text-overflow:ellipsis;white-space:nowrap;text-align:right}
.pair>summary .result{white-space:nowrap}
.pair[open]>summary .lesson{visibility:hidden}
.pair>.body{padding:0 16px 20px;border-top:1px solid var(--edge)}
.teaches{font-size:16px;margin:12px 0}.reason{color:var(--red);margin:8px 0}
.notes{margin:8px 0;padding-left:20px;font-size:14px;color:var(--soft)}
.samples{display:grid;gap:14px;margin-top:10px}
.sample .label,.state .label{display:flex;flex-wrap:wrap;gap:2px 10px;align-items:baseline;font-size:14px}
.role{font-size:12px;color:var(--soft)}.words{margin-left:auto;color:var(--soft);font-size:13px;font-variant-numeric:tabular-nums}
.strip,.chart{display:block;width:100%;height:44px;background:var(--code);border:1px solid var(--edge);border-radius:4px}.chart{height:72px}
.scale{display:flex;justify-content:space-between;font-size:12px;color:var(--soft);font-variant-numeric:tabular-nums}
.dots{fill:none;stroke:var(--soft);stroke-width:4;stroke-linecap:round;vector-effect:non-scaling-stroke;stroke-opacity:.6}
.baseline .dots{stroke:var(--orange)}.best .dots{stroke:var(--blue)}.library .dots{stroke:var(--purple)}
.interval{fill:var(--text);fill-opacity:.13}.median{fill:none;stroke:var(--text);stroke-width:2;vector-effect:non-scaling-stroke}
.states{display:grid;grid-template-columns:1fr 1fr;gap:20px;margin:8px 0}
.clock,.power{fill:none;stroke-width:2;stroke-linejoin:round;vector-effect:non-scaling-stroke;stroke:var(--blue)}.power{stroke:var(--orange)}
.sides{display:grid;grid-template-columns:minmax(0,1fr) minmax(0,1fr);gap:16px;margin-top:8px}
.part{border:1px solid var(--edge);border-radius:8px;margin-bottom:10px;overflow:hidden;background:var(--code)}
.part.kernel{border-left:4px solid var(--amber)}
.part .head{padding:6px 12px;font-size:13px;border-bottom:1px solid var(--edge);background:var(--card)}.part.kernel .head{background:var(--kernel)}
pre{margin:0;padding:10px 12px;overflow:auto;max-height:70vh;tab-size:2;overflow-wrap:normal}
pre i{font-style:normal}pre .c{color:var(--c)}pre .s{color:var(--s)}pre .n{color:var(--n)}pre .k{color:var(--k)}pre .u,pre .d{color:var(--u)}
pre mark{display:inline-block;min-width:100%;background:var(--kernel);color:inherit}
pre.file{display:flex;gap:14px;border:1px solid var(--edge);border-radius:8px;background:var(--code)}
.numbers{color:var(--c);opacity:.7;text-align:right;user-select:none}
.problem{border-left:4px solid var(--edge);padding:2px 0 2px 14px;margin:14px 0}.problem h3{margin:4px 0}
.problem.failed,.problem.crashed,.problem.timeout{border-color:var(--red)}
.problem ul{margin:6px 0;padding-left:20px}.advice{color:var(--soft)}
.problem li,.problem p{white-space:pre-wrap}
@media(max-width:760px){
main{padding:0 14px 40px}nav{padding:8px 10px}h1{font-size:21px}
.tiles{grid-template-columns:1fr 1fr;gap:8px}.tile{padding:10px 12px}.tile strong{font-size:20px}.tile.main{grid-column:1/-1}
.sides,.states{grid-template-columns:minmax(0,1fr)}
.controls label{flex:1 1 44%}.controls label:first-child{flex-basis:100%}.controls input,.controls select{width:100%}
.pair>summary{grid-template-columns:14px minmax(0,1fr) auto;padding:10px 12px}
.pair>summary .lesson{grid-column:2/-1;white-space:normal;text-align:left}.pair[open]>summary .lesson{display:none}
.pair>.body{padding:0 12px 16px}
#results-table,#results-table tbody{display:block}
#results-table thead{display:block;border-bottom:1px solid var(--edge)}
#results-table thead tr{display:flex;flex-wrap:wrap;gap:0 6px;padding:6px 10px}
#results-table thead th{border:0;padding:4px 6px}
#results-table tbody tr{display:grid;grid-template-columns:minmax(0,1fr) minmax(0,1fr);gap:2px 12px;padding:10px 12px;border-bottom:1px solid var(--edge)}
#results-table tbody tr[hidden]{display:none}
#results-table td{border:0;padding:0;text-align:left;min-width:0}
#results-table td:empty{display:none}
#results-table td:nth-child(n+4)::before{content:attr(data-h);display:block;font-size:12px;line-height:1.3;color:var(--soft);font-weight:400}
#results-table td:nth-child(3){display:none}
#results-table td:nth-child(-n+2){white-space:normal;overflow-wrap:anywhere;grid-column:1/-1}
.pair .scroll table,#roofline .scroll table{min-width:1080px}#results-table td:last-child{white-space:normal}
#results-table tr.wrong td:first-child{box-shadow:none}#results-table tr.wrong{box-shadow:inset 3px 0 var(--red)}
td.number{white-space:normal}
}
@media print{nav,.controls{display:none}.pair{break-inside:avoid}}
)";

const char* const page_script = R"(
'use strict';
(() => {
  const table = document.getElementById('results-table'), body = table.tBodies[0], rows = Array.from(body.rows);
  const by = id => document.getElementById(id);
  const form = by('controls'), search = by('search'), filters = ['chapter', 'outcome', 'role'];
  form.hidden = false;
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !(words.every(word => text.includes(word)) &&
                     filters.every(name => !by(name).value || row.dataset[name] === by(name).value));
      shown += row.hidden ? 0 : 1;
    }
    by('shown').textContent = shown + ' of ' + rows.length + (rows.length === 1 ? ' row' : ' rows');
    by('none').hidden = shown > 0;
  };
  form.addEventListener('input', filter);
  form.addEventListener('submit', event => event.preventDefault());
  form.addEventListener('reset', () => setTimeout(() => { order(-1, ''); filter(); }));

  const heads = Array.from(table.tHead.rows[0].cells);
  const key = (row, column, numeric) => {
    const cell = row.cells[column];
    return numeric ? (cell.dataset.v === undefined ? null : Number(cell.dataset.v)) : cell.textContent.trim();
  };
  // Cells without a value stay at the end in both directions; equal ones keep the order of the run.
  const order = (column, direction) => {
    heads.forEach((head, i) => i === column ? head.setAttribute('aria-sort', direction) : head.removeAttribute('aria-sort'));
    if (column < 0) return body.append(...rows);
    const numeric = heads[column].dataset.type === 'number', sign = direction === 'descending' ? -1 : 1;
    const empty = value => value === null || value === '';
    const keyed = rows.map(row => ({row, value: key(row, column, numeric)}));
    keyed.sort((a, b) => empty(a.value) || empty(b.value) ? empty(a.value) - empty(b.value)
                         : sign * (numeric ? a.value - b.value : a.value.localeCompare(b.value)));
    body.append(...keyed.map(entry => entry.row));
  };
  heads.forEach((head, column) => {
    const button = document.createElement('button');
    button.type = 'button';
    button.textContent = head.textContent;
    head.replaceChildren(button);
    // Numbers start with the greatest, as who sorts speedups looks for those.
    const first = head.dataset.type === 'number' ? 'descending' : 'ascending';
    button.addEventListener('click', () => {
      const now = head.getAttribute('aria-sort');
      order(column, now === null ? first : now === 'ascending' ? 'descending' : 'ascending');
    });
  });

  const open = () => {
    const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
    if (target && target.tagName === 'DETAILS') { target.open = true; target.scrollIntoView(); }
  };
  addEventListener('hashchange', open);
  document.addEventListener('click', event => {
    const link = event.target.closest('a[href^="#"]');
    if (link && link.hash === location.hash) open();
  });
  open();
  filter();
})();
)";

}  // namespace aisp::report::html
