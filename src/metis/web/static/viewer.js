"use strict";
// Keys: j and k move between rows, Enter opens the first link, / searches, g goes to the list.
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
  else if (event.key === "Enter" && at >= 0) rows[at].querySelector("a")?.click();
  else if (event.key === "/") { document.querySelector("input[name=q]").focus(); event.preventDefault(); }
  else if (event.key === "g") location.href = "/";
});
