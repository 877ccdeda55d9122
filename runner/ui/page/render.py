"""Renderer of a page: one HTML file with its styles, scripts and data, and a policy for each.

Nothing but these very scripts can run in it, and nothing can be loaded into it.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

SCRIPTS = (
    *("dom.js", "view.js", "plot.js", "timeline.js", "events.js"),
    *("charts.js", "sections.js", "main.js"),
)
"""Ours, in `assets`; they are one script, in this order."""


def render_page(data: Mapping[str, Any], refresh_s: int = 0) -> str:
    """Return the page of this data; a browser reads it again every `refresh_s`, 0 for never."""
    title = ", ".join(run["id"] for run in data["runs"]) or "no runs"
    refresh = [f'<meta http-equiv="refresh" content="{refresh_s}">'] if refresh_s else []
    styles = [_asset("vendor/uplot/uPlot.min.css"), _asset("assets/page.css")]
    library = _asset("vendor/uplot/uPlot.iife.min.js")
    own_scripts = [_asset(f"assets/{name}") for name in SCRIPTS]
    own = "\n".join(["(() => {", '"use strict";', *own_scripts, "})();"])
    scripts = [library, own]
    policy = _policy(styles, scripts)
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            *refresh,
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            '<meta name="referrer" content="no-referrer">',
            '<link rel="icon" href="data:,">',
            f"<title>{html.escape(title)}</title>",
            *(f"<style>{style}</style>" for style in styles),
            "</head>",
            "<body>",
            '<a class="skip" href="#main">Skip to the content</a>',
            '<div id="page"></div>',
            "<noscript><p>This page draws with scripts, which are switched off.</p></noscript>",
            f'<script type="application/json" id="data">{as_json(data)}</script>',
            *(f"<script>{script}</script>" for script in scripts),
            "</body>",
            "</html>",
            "",
        ]
    )


def as_json(data: Any) -> str:
    """Return data as JSON in which nothing ends a script, nor is anything but plain ASCII."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(styles: list[str], scripts: list[str]) -> str:
    rules = {
        "default-src": "'none'",
        "style-src": " ".join(map(_hash_source, styles)),
        "script-src": " ".join(map(_hash_source, scripts)),
        "img-src": "data:",
        "connect-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def _hash_source(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _asset(path: str) -> str:
    return files(__package__).joinpath(path).read_text(encoding="utf-8")
