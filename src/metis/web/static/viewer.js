"use strict";
// Keys: j and k move between rows, Enter opens the first link, / searches, g shows the list, ? helps.
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
  const rows = [...document.querySelectorAll(".row")];
  const at = rows.findIndex((row) => row.classList.contains("current"));
  const go = (index) => {
    if (!rows[index]) return;
    rows.forEach((row) => row.classList.remove("current"));
    rows[index].classList.add("current");
    rows[index].scrollIntoView({ block: "nearest" });
  };
  if (event.key === "j") go(Math.min(at + 1, rows.length - 1));
  else if (event.key === "k") go(Math.max(at - 1, 0));
  else if (event.key === "Enter" && at >= 0 && event.target === document.body) rows[at].querySelector("a")?.click();
  else if (event.key === "/") { document.querySelector("input[name=q]").focus(); event.preventDefault(); }
  else if (event.key === "g") location.href = `${document.body.dataset.base}/`;
  else if (event.key === "?") document.getElementById("help").showModal();
});
// The live tail: the server sends HTML that it has escaped, as it does for pages.
const live = document.querySelector("[data-live]");
if (live) {
  const source = new EventSource(live.dataset.live);
  source.onmessage = (event) => {
    const isAtEnd = innerHeight + scrollY >= document.body.scrollHeight - 80;
    const part = document.createElement("template");
    part.innerHTML = event.data;
    // A message that was shown while it was being written is sent again when it is complete.
    for (const item of part.content.querySelectorAll(":scope > [id]")) document.getElementById(item.id)?.remove();
    live.append(part.content);
    if (isAtEnd) scrollTo(0, document.body.scrollHeight);
  };
  addEventListener("pagehide", () => source.close());
}
// Plots: drag to zoom, double click to see everything again; the table below has the same figures.
for (const place of document.querySelectorAll("[data-plot]")) {
  const data = JSON.parse(place.dataset.plot);
  if (!data[0].length) continue;
  const colour = getComputedStyle(document.documentElement).getPropertyValue("--model").trim();
  const ink = getComputedStyle(document.body).color;
  const axis = { stroke: ink, grid: { stroke: "#8884" } };
  const paths = place.dataset.kind === "bars" ? uPlot.paths.bars({ size: [0.8, 40] }) : uPlot.paths.stepped({ align: 1 });
  new uPlot({
    width: place.clientWidth, height: 240, scales: { x: { time: Boolean(place.dataset.time) } },
    axes: [axis, axis], series: [{ label: place.dataset.time ? "day" : "seconds" }, { label: place.dataset.label, stroke: colour, fill: `${colour}44`, paths }],
  }, data, place);
}
