"""The picture of the parity report, ``docs/parity.png``. It needs matplotlib, the ``plots`` extra."""

from pathlib import Path

FLOOR = 1e-17  # where a difference of exactly 0 is drawn


def draw(rows: list[tuple[str, float, float]], mistakes: list[tuple[int, float]], path: Path) -> None:
    """Draw each row's difference (a dot) and tolerance (a tick), and the mistakes that it catches (crosses).

    ``rows`` are label, difference and tolerance; ``mistakes`` are the number of a row and a difference.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams.update({"font.size": 10, "font.family": "DejaVu Sans"})
    figure, axes = plt.subplots(figsize=(9, 1.5 + 0.24 * len(rows)), dpi=110, layout="constrained")
    for y, (_, difference, tolerance) in enumerate(rows):
        at = max(difference, FLOOR)
        axes.plot([at, tolerance], [y, y], color="#c9d3dc", linewidth=1.2, zorder=1)
        axes.plot(at, y, "o", color="#1768ac", markersize=5.5, zorder=3)
        axes.plot([tolerance] * 2, [y - 0.36, y + 0.36], color="#222222", linewidth=1.8, zorder=2)
    for y, difference in mistakes:
        axes.plot(difference, y, "x", color="#d1495b", markersize=5.5, markeredgewidth=1.3, zorder=3)
    axes.plot([], [], "o", color="#1768ac", label="largest difference from the reference")
    axes.plot([], [], "|", color="#222222", markersize=10, markeredgewidth=1.8, label="tolerance")
    axes.plot([], [], "x", color="#d1495b", label="difference with a known mistake planted")
    axes.set_xscale("log")
    axes.set_xlim(FLOOR / 3, None)
    axes.set_yticks(range(len(rows)), [label for label, *_ in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#eeeeee", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.set_xlabel(f"absolute difference (log scale); exactly 0 is drawn at {FLOOR:g}")
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})
    plt.close(figure)
