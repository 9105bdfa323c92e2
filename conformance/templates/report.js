// Adds a search for cases. Without JavaScript, the page shows all cases.
const find = document.getElementById("find");
if (find) {
  const searchBox = document.getElementById("words");
  const countOutput = document.getElementById("found");
  const toggleButton = document.getElementById("all");
  const boxes = [...find.querySelectorAll("input[type=checkbox]")];
  const areas = [...document.querySelectorAll("details.area")];
  const rows = areas.flatMap(area =>
    [...area.querySelectorAll("tbody tr")].map(row => ({ area, row, text: row.textContent.toLowerCase() })));
  const wasOpen = new Map(areas.map(area => [area, area.open]));

  const show = () => {
    const terms = searchBox.value.toLowerCase().split(/\s+/).filter(Boolean);
    const outcomes = new Set(boxes.filter(box => box.checked).map(box => box.value));
    const isFiltered = terms.length > 0 || outcomes.size < boxes.length;
    const visibleAreas = new Set();
    let count = 0;
    for (const { area, row, text } of rows) {
      row.hidden = !(outcomes.has(row.dataset.status) && terms.every(word => text.includes(word)));
      if (!row.hidden) {
        visibleAreas.add(area);
        count += 1;
      }
    }
    for (const area of areas) {
      area.hidden = !visibleAreas.has(area);
      area.open = isFiltered ? visibleAreas.has(area) : wasOpen.get(area);
    }
    countOutput.textContent = isFiltered ? `${count} of ${rows.length} cases` : `${rows.length} cases`;
  };

  find.hidden = false;
  find.addEventListener("input", show);
  find.addEventListener("submit", event => event.preventDefault());
  toggleButton.addEventListener("click", () => {
    const open = areas.some(area => !area.open);
    for (const area of areas) {
      area.open = open;
      wasOpen.set(area, open);
    }
    toggleButton.textContent = open ? "Close all" : "Open all";
  });
  document.addEventListener("keydown", event => {
    if (event.key === "/" && document.activeElement !== searchBox) {
      event.preventDefault();
      searchBox.focus();
    }
  });
  // Opens all areas for printing.
  addEventListener("beforeprint", () => areas.forEach(area => { area.open = true; }));
  addEventListener("afterprint", show);
  show();
}
