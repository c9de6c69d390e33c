"""The one style of the course's drawings: boxes, grids, arrows and texts as SVG, in light, dark and
on paper.

Colours are names: ``a``, ``b``, ``c`` for things of three kinds, ``lit`` for what a drawing is
about, ``pad`` for what does not count. A drawing is at most ``WIDEST`` wide, so that its text can
be read on a phone.
"""

from collections.abc import Sequence
from xml.sax.saxutils import escape

WIDEST = 520
STYLE = """\
svg { --paper: #ffffff; --ink: #17202a; --soft: #52606d; --line: #7b8794; --panel: #f2f5f8;
  --a: #cfe3f7; --b: #fbd9b8; --c: #cdebd3; --lit: #ffdf7d; --pad: #e3e7eb; --strong: #b3261e; }
@media screen and (prefers-color-scheme: dark) {
  svg { --paper: #16191d; --ink: #edf1f5; --soft: #b3bfcb; --line: #8593a0; --panel: #22272d;
    --a: #1d4a75; --b: #75440f; --c: #1c5a33; --lit: #7a5f00; --pad: #363c43; --strong: #ff9b8f; } }
.paper { fill: var(--paper); }
text { font: 15px "Helvetica Neue", Helvetica, Arial, "Liberation Sans", sans-serif; fill: var(--ink); }
.small { font-size: 13px; } .soft { fill: var(--soft); } .bold { font-weight: bold; }
.mono { font-family: Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 13px; } .strong { fill: var(--strong); }
rect, circle { stroke: var(--line); }
.panel { fill: var(--panel); } .none { fill: none; } .dashed { fill: none; stroke-dasharray: 5 4; }
.a { fill: var(--a); } .b { fill: var(--b); } .c { fill: var(--c); } .lit { fill: var(--lit); }
.pad { fill: var(--pad); }
rect.lit { stroke: var(--ink); stroke-width: 2; }
path { fill: none; stroke: var(--soft); stroke-width: 1.6; } path.head { fill: var(--soft); stroke: none; }
path.force { stroke: var(--strong); stroke-width: 2.4; } path.head.force { fill: var(--strong); stroke: none; }
"""


class Pen:
    """One drawing. ``title`` names it, ``desc`` tells someone who cannot see it what it shows."""

    def __init__(self, width: int, height: int, title: str, desc: str):
        if width > WIDEST:
            raise ValueError(f"{title}: {width} wide, at most {WIDEST} can be read on a phone")
        self.head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img" aria-labelledby="title desc">\n'
            f'<title id="title">{escape(title)}</title>\n<desc id="desc">{escape(desc)}</desc>\n'
            f"<style>\n{STYLE}</style>\n"
        )
        self.parts = [
            f'<rect class="paper" width="{width}" height="{height}" stroke="none" style="stroke: '
            f'none"/>'
        ]

    def box(
        self, x: float, y: float, width: float, height: float, label: str = "", look: str = "panel"
    ) -> None:
        """A rectangle with its label in the middle."""
        self.parts.append(
            f'<rect class="{look}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
            f'rx="4"/>'
        )
        if label:
            self.text(x + width / 2, y + height / 2 + 5, label)

    def text(self, x: float, y: float, words: str, look: str = "", anchor: str = "middle") -> None:
        """``look``: any of small, soft, bold, mono, strong; ``anchor``: start, middle or end."""
        self.parts.append(
            f'<text class="{look}" x="{x:g}" y="{y:g}" '
            f'text-anchor="{anchor}">{escape(words)}</text>'
        )

    def grid(
        self,
        x: float,
        y: float,
        looks: Sequence[Sequence[str]],
        cell: tuple[float, float] = (18, 18),
        labels: Sequence[Sequence[object]] = (),
    ) -> None:
        """A matrix of cells, ``looks[row][column]`` the colour of each; ``labels`` what is written
        in them.
        """
        width, height = cell
        for i, row in enumerate(looks):
            for j, look in enumerate(row):
                left, top = x + j * width, y + i * height
                self.parts.append(
                    f'<rect class="{look}" x="{left:g}" y="{top:g}" width="{width:g}" '
                    f'height="{height:g}"/>'
                )
                if labels:
                    self.text(left + width / 2, top + height / 2 + 5, str(labels[i][j]), "small")

    def arrow(self, *points: tuple[float, float], look: str = "") -> None:
        """A line through the points with a head at the last; the last stretch is horizontal,
        vertical or oblique.
        """
        (x, y), (from_x, from_y) = points[-1], points[-2]
        length = ((x - from_x) ** 2 + (y - from_y) ** 2) ** 0.5
        across, down = (x - from_x) / length, (y - from_y) / length
        neck = (x - 8 * across, y - 8 * down)
        self.line(*points[:-1], neck, look=look)
        left = (neck[0] - 4.5 * down, neck[1] + 4.5 * across)
        right = (neck[0] + 4.5 * down, neck[1] - 4.5 * across)
        self.line(left, right, (x, y), look=f"head {look}".strip())

    def line(self, *points: tuple[float, float], look: str = "") -> None:
        shown = " L".join(f"{round(x, 2):g} {round(y, 2):g}" for x, y in points)
        self.parts.append(f'<path class="{look}" d="M{shown}"/>')

    def dot(self, x: float, y: float, radius: float, label: str = "", look: str = "panel") -> None:
        self.parts.append(f'<circle class="{look}" cx="{x:g}" cy="{y:g}" r="{radius:g}"/>')
        if label:
            self.text(x, y + 5, label)

    def svg(self) -> str:
        return self.head + "\n".join(self.parts) + "\n</svg>\n"
