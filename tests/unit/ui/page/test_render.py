"""The page around the data: nothing from outside, and nothing in the data ends a script."""

from __future__ import annotations

import base64
import hashlib
import json
import re

from runner.ui.page import page_data, render_page
from runner.ui.page.render import as_json
from tests.page_runs import HOSTILE, LAUNCH, failed_run


def test_the_policy_names_each_script_and_style_by_its_hash() -> None:
    """And allows nothing else."""
    data = page_data([failed_run()], LAUNCH)
    page = render_page(data)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert policy
    blocks = re.findall(r"<(?:script|style)>(.*?)</(?:script|style)>", page, re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        digest = base64.b64encode(hashlib.sha256(block.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy[1]
    assert policy[1].startswith("default-src 'none'; ")
    assert "unsafe" not in policy[1]
    assert "connect-src 'none'" in policy[1]


def test_it_is_one_file() -> None:
    """No address of anything is in its markup, and no handler either."""
    page = render_page(page_data([failed_run(text=HOSTILE)], LAUNCH))
    markup = re.sub(r"<(script|style)[^>]*>.*?</\1>", "", page, flags=re.DOTALL)
    assert re.findall(r"\b(?:src|href|on\w+)=\S*", markup) == [
        'href="data:,">',
        'href="#main">Skip',
    ]


def test_data_cannot_end_its_script() -> None:
    """Whatever is in it, it is ASCII without angle brackets, and the same when it is read."""
    data = {HOSTILE: "<!--<script>&amp;"}
    text = as_json(data)
    assert text.isascii()
    assert not set("<>&") & set(text)
    assert json.loads(text) == data
