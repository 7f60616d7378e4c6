"""The colours of a report, chosen once: the style sheet is made from them, and charts carry the light ones.

Lines of charts (l0 to l5) differ from their neighbours for colour-blind eyes, too (tested); where colour means
something, a word or a shape says it as well.
"""

from __future__ import annotations

from collections.abc import Mapping

LIGHT: Mapping[str, str] = {
    "page": "#f6f7f8",
    "paper": "#fff",
    "ink": "#1f2430",
    "soft": "#5d6675",
    "line": "#e3e6ea",
    "tick": "#c4c9d0",
    "code": "#f1f3f5",
    "accent": "#2563a8",
    "red": "#c0271d",
    "red-wash": "#fdf0ee",
    "amber": "#99570a",
    "amber-wash": "#fdf5e6",
    "green": "#2a6e3a",
    "green-wash": "#eef7f0",
    "grey-wash": "#f4f5f7",
    "l0": "#2563a8",
    "l1": "#cc620f",
    "l2": "#2c6b27",
    "l3": "#7b4aa3",
    "l4": "#14879c",
    "l5": "#8e2450",
}
DARK: Mapping[str, str] = {
    "page": "#13161b",
    "paper": "#1a1e25",
    "ink": "#e4e7ec",
    "soft": "#9aa4b2",
    "line": "#2c323c",
    "tick": "#454d5a",
    "code": "#232832",
    "accent": "#7fb2ee",
    "red": "#f2857b",
    "red-wash": "#2e1d1d",
    "amber": "#e0a95a",
    "amber-wash": "#2c2517",
    "green": "#7cc48d",
    "green-wash": "#182a1e",
    "grey-wash": "#20252d",
    "l0": "#6ea8ec",
    "l1": "#f0934e",
    "l2": "#95d68a",
    "l3": "#b07fdd",
    "l4": "#74d6e6",
    "l5": "#dd7299",
}
LINES = 6
"""How many colours of lines there are: l0, l1 ..."""

# Ramps of heatmaps from little to much. They differ in lightness first, so that they hold for every kind of colour
# vision and in print; on dark paper much is bright. h: sizes, whatever they are of; n: counts of what is not finite.
# Numbers stand on them: in ink up to the fifth colour, in the colour of the paper from the sixth on.
RAMPS: Mapping[str, tuple[str, ...]] = {
    "h": ("#dbe9f6", "#c0d9ef", "#9fc6e6", "#7ab0da", "#5798cb", "#3576ae", "#2366a3", "#134d86", "#0a3362"),
    "n": ("#fbe5d0", "#f7cfae", "#f1b488", "#e99764", "#dd7844", "#be5226", "#b2421b", "#922f14", "#6e210f"),
}
DARK_RAMPS: Mapping[str, tuple[str, ...]] = {
    "h": ("#22364b", "#26435e", "#2a5071", "#2f5d82", "#346992", "#5799c8", "#77b1da", "#9fcae9", "#cde4f6"),
    "n": ("#3b2a22", "#503026", "#66392a", "#7d452f", "#945034", "#cb764f", "#e0926f", "#efb397", "#f9d6c5"),
}


def style() -> str:
    """The colours as custom properties: light ones, and dark ones for screens that ask for them (paper is light)."""
    light, dark = (
        _properties({**colours, **_places(ramps)}) for colours, ramps in ((LIGHT, RAMPS), (DARK, DARK_RAMPS))
    )
    return (
        f":root{{color-scheme:light dark;{light}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
    )


def _places(ramps: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """The colours of the ramps by name: h0, h1 ..."""
    return {f"{name}{place}": colour for name, ramp in ramps.items() for place, colour in enumerate(ramp)}


def _properties(colours: Mapping[str, str]) -> str:
    return ";".join(f"--{name}:{colour}" for name, colour in colours.items())
