// Without this the page is whole; with it, cases can be searched.
const find = document.getElementById("find");
if (find) {
  const words = document.getElementById("words");
  const found = document.getElementById("found");
  const all = document.getElementById("all");
  const boxes = [...find.querySelectorAll("input[type=checkbox]")];
  const areas = [...document.querySelectorAll("details.area")];
  const rows = areas.flatMap(area =>
    [...area.querySelectorAll("tbody tr")].map(row => ({ area, row, text: row.textContent.toLowerCase() })));
  const opened = new Map(areas.map(area => [area, area.open]));

  const show = () => {
    const asked = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const outcomes = new Set(boxes.filter(box => box.checked).map(box => box.value));
    const narrowed = asked.length > 0 || outcomes.size < boxes.length;
    const left = new Set();
    let count = 0;
    for (const { area, row, text } of rows) {
      row.hidden = !(outcomes.has(row.dataset.status) && asked.every(word => text.includes(word)));
      if (!row.hidden) {
        left.add(area);
        count += 1;
      }
    }
    for (const area of areas) {
      area.hidden = !left.has(area);
      area.open = narrowed ? left.has(area) : opened.get(area);
    }
    found.textContent = narrowed ? `${count} of ${rows.length} cases` : `${rows.length} cases`;
  };

  find.hidden = false;
  find.addEventListener("input", show);
  find.addEventListener("submit", event => event.preventDefault());
  all.addEventListener("click", () => {
    const open = areas.some(area => !area.open);
    for (const area of areas) {
      area.open = open;
      opened.set(area, open);
    }
    all.textContent = open ? "Close all" : "Open all";
  });
  document.addEventListener("keydown", event => {
    if (event.key === "/" && document.activeElement !== words) {
      event.preventDefault();
      words.focus();
    }
  });
  // On paper nothing can be opened.
  addEventListener("beforeprint", () => areas.forEach(area => { area.open = true; }));
  addEventListener("afterprint", show);
  show();
}
