"""``python -m lessons.drawings``: write every drawing beside this file."""

import argparse
from pathlib import Path

from lessons.drawings import all_drawings

argparse.ArgumentParser(
    prog="python -m lessons.drawings", description="Write every drawing anew."
).parse_args()
for name, svg in all_drawings().items():
    Path(__file__).with_name(name).write_text(svg, encoding="utf-8")
