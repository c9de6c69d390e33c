"""``python -m lessons.drawings``: write every drawing beside this file."""

from pathlib import Path

from lessons.drawings import all_drawings

for name, svg in all_drawings().items():
    Path(__file__).with_name(name).write_text(svg, encoding="utf-8")
