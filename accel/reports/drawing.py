"""How figures look, and how they are written: SVG for a page that follows its theme, plain SVG and PNG for files."""

from __future__ import annotations

import io
import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

WIDTH_INCHES = 5.0
PNG_DPI = 200

# Each colour once: a page replaces them by its own variables, so that figures follow a dark theme.
TEXT, MUTED, GRID, PAPER = "#1c2430", "#5b6676", "#dce1e8", "#ffffff"
SERIES = ("#1f5fa8", "#c2500c", "#1f7a4d", "#7a3fa1", "#a8324b", "#4a5a6b", "#8a6d00", "#007a8a")
SERIES_DARK = ("#6fb0f5", "#ff9a56", "#5fcf95", "#c79bf0", "#f5849b", "#a9b8c8", "#e0c04a", "#4cc9d8")
DASHES = ("-", (0, (5, 1.6)), (0, (1.5, 1.5)), (0, (6, 1.5, 1.5, 1.5)))
PHASES: Mapping[str, str] = MappingProxyType(
    {
        "env": "#4382bf",
        "policy": "#e5903a",
        "overhead": "#97a2b0",
        "pull": "#5fa871",
        "deserialise": "#a77bc4",
        "load": "#cf4d5f",
        "timing": "#c9a228",
        "send": "#3f9d97",
        "wait": "#d0d7df",
        "batch": "#97a2b1",
        "forward": "#4382c0",
        "correct": "#e5903b",
        "backward": "#3f9d98",
        "compress": "#cf4d60",
        "publish": "#5fa872",
        "measure": "#c9a227",
        "record": "#a77bc5",
    }
)
_OTHER_PHASES = ("#7d6b5d", "#b3a18f", "#66788a")


@dataclass(frozen=True)
class Drawing:
    """One finished figure.

    Attributes:
        name: of its files, without suffix. title, caption: what stands above and below it.
        alt: what it shows, for who cannot see it.
        svg: a file of its own. inline: the same for a page, in the page's colours. png: 200 dots an inch.
    """

    name: str
    title: str
    caption: str
    alt: str
    svg: str
    inline: str
    png: bytes


@contextmanager
def style(name: str) -> Iterator[None]:
    """Draw in the report's style; ``name`` makes the figure's identifiers its own, and the same each time."""
    with mpl.rc_context(), warnings.catch_warnings():
        _apply_style(name)
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*")
        yield


def new_figure(height_inches: float, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure of the report's width with ``rows`` axes below one another that share the x axis."""
    figure = Figure(figsize=(WIDTH_INCHES, height_inches), dpi=PNG_DPI, layout="constrained")
    axes = figure.subplots(rows, 1, squeeze=False, sharex=True)
    return figure, [row[0] for row in axes]


def finish(figure: Figure, name: str, title: str, caption: str, alt: str) -> Drawing:
    """Render a figure, inside ``style(name)``."""
    text, image = io.StringIO(), io.BytesIO()
    if (layout := figure.get_layout_engine()) is not None:
        layout.execute(figure)
        figure.set_layout_engine(None)  # With one, each file would be drawn twice, and laid out anew.
    figure.savefig(image, format="png", dpi=PNG_DPI)
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = _own_identifiers(_without_metadata(text.getvalue()), name)
    return Drawing(name, title, caption, alt, svg, _inline(svg), image.getvalue())


def phase_colours(phases: list[str]) -> dict[str, str]:
    """A fixed colour for each known phase and one of a few for others."""
    unknown = [phase for phase in phases if phase not in PHASES]
    return {p: PHASES.get(p) or _OTHER_PHASES[unknown.index(p) % len(_OTHER_PHASES)] for p in phases}


def wrapped(label: str, width: int) -> str:
    """A label in lines of at most ``width`` characters, broken between words where it can be."""
    return "\n".join(textwrap.wrap(label, width, break_on_hyphens=False)) or label


def step_axis(axes: Axes) -> None:
    """An x axis of environment steps: whole ones, 10k and 2M rather than 10000 and 2e6."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel("environment steps")


def second_axis(axes: Axes) -> None:
    """An x axis of seconds, written as they are."""
    axes.ticklabel_format(axis="x", style="plain", useOffset=False)
    axes.set_xlabel("training time, s")


def colour_variables() -> dict[str, tuple[str, str, str]]:
    """By CSS variable: the colour in figures, in the light and in the dark theme."""
    fixed = {
        "--text": (TEXT, TEXT, "#e6ebf1"),
        "--muted": (MUTED, MUTED, "#9aa7b6"),
        "--grid": (GRID, GRID, "#36404d"),
    }
    return fixed | {
        f"--series-{i}": (light, light, dark) for i, (light, dark) in enumerate(zip(SERIES, SERIES_DARK, strict=True))
    }


def _apply_style(salt: str) -> None:
    mpl.rc("axes", axisbelow=True, edgecolor=MUTED, facecolor="none", grid=True, labelcolor=TEXT, linewidth=0.8)
    mpl.rc("axes.spines", right=False, top=False)
    mpl.rc("figure", facecolor=PAPER)
    mpl.rc("font", family="sans-serif", size=9.5)
    mpl.rc("font", **{"sans-serif": ["DejaVu Sans"]})
    mpl.rc("grid", color=GRID, linewidth=0.7)
    mpl.rc("legend", frameon=False, fontsize=9.0, labelcolor=TEXT)
    mpl.rc("lines", linewidth=1.9)
    mpl.rc("svg", fonttype="none", hashsalt=salt)
    mpl.rc("text", color=TEXT, parse_math=False, usetex=False)
    mpl.rc("xtick", color=MUTED, labelcolor=TEXT)
    mpl.rc("ytick", color=MUTED, labelcolor=TEXT)


def _without_metadata(svg: str) -> str:
    body = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return body[body.index("<svg") :]


def _own_identifiers(svg: str, name: str) -> str:
    """Identifiers that do not clash with those of other figures on the same page."""
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    return re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', svg)


def _inline(svg: str) -> str:
    """No size of its own, no paper, colours from the page's variables."""
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(rf'(style="[^"]*)fill: {PAPER}([^"]*")', r"\1fill: none\2", svg, count=1)
    for variable, (colour, _, _) in colour_variables().items():
        svg = svg.replace(colour, f"var({variable})")
    return svg
