// SPDX-License-Identifier: Apache-2.0
'use strict';
(async () => {
  const by = id => document.getElementById(id);
  const inflated = async holder => {
    const bytes = Uint8Array.from(atob(holder.dataset.deflated), c => c.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate-raw'))).text();
  };

  // An older browser shows the one row of each pair that is not compressed.
  const table = by('results-table');
  const rows_of_all = await inflated(by('all-rows')).catch(() => null);
  if (rows_of_all !== null) {
    Array.from(table.tBodies).forEach(body => body.remove());
    table.insertAdjacentHTML('beforeend', rows_of_all);
  }
  const bodies = Array.from(table.tBodies);
  const groups = bodies.map(body => Array.from(body.rows)), rows = groups.flat().filter(row => !row.matches('.chapter'));
  const form = by('controls'), search = by('search');
  const variants = {lesson: row => row.dataset.leads, all: () => true, baseline: row => row.dataset.role === 'baseline',
                    optimized: row => row.dataset.role === 'optimized' && !row.dataset.leads, library: row => row.dataset.role === 'library',
                    control: row => row.dataset.role === 'control'};
  const heads = Array.from(table.tHead.rows[0].cells);
  let sorted = {column: -1, direction: ''};
  form.hidden = false;

  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean), chosen = variants[by('variants').value];
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !(chosen(row) && words.every(word => text.includes(word)) &&
                     ['chapter', 'outcome'].every(name => !by(name).value || row.dataset[name] === by(name).value));
      shown += row.hidden ? 0 : 1;
    }
    // A chapter's heading says nothing over rows in another order, or over none.
    for (const group of groups)
      for (const row of group)
        if (row.matches('.chapter')) row.hidden = sorted.column >= 0 || group.every(other => other === row || other.hidden);
    by('shown').textContent = shown + ' of ' + rows.length + (rows.length === 1 ? ' row' : ' rows');
    by('none').hidden = shown > 0;
  };

  const key = (row, column, numeric) => {
    const cell = row.cells[column];
    if (!cell) return null;  // a row with a reason instead of numbers
    return numeric ? (cell.dataset.v === undefined ? null : Number(cell.dataset.v)) : cell.textContent.trim();
  };
  // Cells without a value stay at the end in both directions; equal ones keep the order of the run.
  const order = (column, direction) => {
    sorted = {column, direction};
    heads.forEach((head, i) => i === column ? head.setAttribute('aria-sort', direction) : head.removeAttribute('aria-sort'));
    if (column < 0) return groups.forEach((group, i) => bodies[i].append(...group));
    const numeric = heads[column].dataset.type === 'number', sign = direction === 'descending' ? -1 : 1;
    const empty = value => value === null || value === '';
    const keyed = rows.map(row => ({row, value: key(row, column, numeric)}));
    keyed.sort((a, b) => empty(a.value) || empty(b.value) ? empty(a.value) - empty(b.value)
                         : sign * (numeric ? a.value - b.value : a.value.localeCompare(b.value)));
    bodies[0].append(...keyed.map(entry => entry.row));
  };

  // The view is a part of the address, so that it can be passed on and survives going back.
  const defaults = {search: '', chapter: '', outcome: '', variants: 'lesson', sort: ''};
  const remember = () => {
    const state = new URLSearchParams();
    const now = {search: search.value, chapter: by('chapter').value, outcome: by('outcome').value, variants: by('variants').value,
                 sort: sorted.column < 0 ? '' : sorted.column + ' ' + sorted.direction};
    for (const name in now) if (now[name] !== defaults[name]) state.set(name, now[name]);
    const query = state.toString();
    try {
      history.replaceState(history.state, '', (query ? '?' + query : location.pathname) + location.hash);
    } catch { /* A page that was opened in a frame may have no address of its own. */ }
  };
  const restore = () => {
    const state = new URLSearchParams(location.search);
    for (const name of ['search', 'chapter', 'outcome', 'variants']) {
      by(name).value = state.get(name) ?? defaults[name];
      if (by(name).selectedIndex === -1) by(name).value = defaults[name];
    }
    const [column, direction] = (state.get('sort') ?? '').split(' ');
    if (column in heads && ['ascending', 'descending'].includes(direction)) order(Number(column), direction);
  };
  const change = () => { filter(); remember(); };

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
      change();
    });
  });
  form.addEventListener('input', change);
  form.addEventListener('submit', event => event.preventDefault());
  form.addEventListener('reset', () => setTimeout(() => { order(-1, ''); change(); }));

  // What is compressed takes its place when what it stands in is opened, or its note there stays.
  const places_of = digits => digits.match(/../g).map(two => parseInt(two, 36));
  const draw_dots = group => {
    const {x, y, clock} = group.dataset, places = places_of(x), heights = y && places_of(y), paths = {};
    places.forEach((place, i) => {
      const height = heights ? heights[i] : 5 + (places.length > 1 ? 30 * i / (places.length - 1) : 15);
      const name = clock ? 'dots clock' + clock[i] : 'dots';
      paths[name] = (paths[name] ?? '') + 'M' + place + ' ' + Math.round(height) + 'h0';
    });
    for (const name in paths) {
      const path = document.createElementNS('http://www.w3.org/2000/svg', 'path');
      path.setAttribute('class', name);
      path.setAttribute('d', paths[name]);
      group.append(path);
    }
  };
  const draw_line = line => {
    const heights = places_of(line.dataset.tenths);
    if (heights.length === 1) heights.push(heights[0]);
    line.setAttribute('points', heights.map((height, i) => Math.round(1000 * i / (heights.length - 1)) + ',' + height / 10).join(' '));
  };
  // A part holds several files of code, and is decompressed once.
  const parts = {};
  const file_of = async id => {
    const holder = document.querySelector(`[data-holds~="${id}"]`), ids = holder.dataset.holds.split(' ');
    return (await (parts[ids[0]] ??= inflated(holder).then(text => text.split('\f'))))[ids.indexOf(id)];
  };
  const fill_code = async code => {
    const lines = (await file_of(code.dataset.from)).split('\n');
    if (!code.dataset.lines) {
      code.innerHTML = lines.join('\n');
      code.previousElementSibling.textContent = lines.slice(0, -1).map((_, i) => i + 1 + '\n').join('');
      return;
    }
    const [first, count] = code.dataset.lines.split(' ').map(Number), part = lines.slice(first - 1, first - 1 + count);
    // A method lies as deep as its class; shown alone it starts at the margin.
    const margin = new RegExp('^ {0,' + part[0].search(/[^ ]|$/) + '}');
    code.innerHTML = part.map(line => line.replace(margin, '')).join('\n').replace(/<\/?mark>/g, '');
  };
  const unpack = async details => {
    const inside = selector => Array.from(details.querySelectorAll(selector)).filter(part => part.closest('details') === details);
    for (const part of inside('.packed:not([aria-busy])')) {
      part.setAttribute('aria-busy', 'true');
      const content = await inflated(part).catch(() => null);
      if (content === null) continue;
      part.outerHTML = content;
      inside('g[data-x]').forEach(draw_dots);
      inside('[data-tenths]').forEach(draw_line);
    }
    await Promise.all(inside('code[data-from]:empty').map(fill_code));
  };
  document.addEventListener('toggle', event => { if (event.target.open) unpack(event.target); }, true);
  document.querySelectorAll('details[open]').forEach(unpack);

  const open = () => {
    const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
    if (target && target.tagName === 'DETAILS') { target.open = true; target.scrollIntoView(); }
  };
  addEventListener('hashchange', open);
  document.addEventListener('click', event => {
    const link = event.target.closest('a[href^="#"]');
    if (link && (link.hash ?? link.getAttribute('href')) === location.hash) open();
  });
  restore();
  filter();
  open();
})();
