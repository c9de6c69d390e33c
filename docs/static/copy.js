// A button on each block of code, which copies it without the output or the prompts of a console.
for (const block of document.querySelectorAll(".bd-article div.highlight")) {
  const text = block.querySelector("pre");
  const parent = block.parentElement.className;
  // formulas, output and listings of whole files are not typed
  if (!navigator.clipboard || !text || /highlight-(none|default|text)/.test(parent) || text.querySelector("[id^='L-']")) continue;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text.innerText.trimEnd() + "\n");
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  block.append(button);
}
