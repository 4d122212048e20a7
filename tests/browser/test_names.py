"""A metric may be called as it likes: it has its own curve, and changes nothing else of the page."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page, expect

from tests.browser.test_page import recorded, show
from tests.dashboard.scenes import at, training


def test_a_metric_named_proto_has_its_curve_and_so_has_its_validation(page: Page, tmp_path: Path) -> None:
    names = ["__proto__", "val___proto__"]
    metrics = [at(24, "progress", "worker-0", rank=0, step=n, metrics=dict.fromkeys(names, n)) for n in range(1, 4)]
    show(page, recorded([*training(), *metrics]), tmp_path)
    expect(page.locator(".muster-charts figcaption", has_text="__proto__")).to_contain_text("train")
    expect(page.locator(".muster-charts figcaption", has_text="__proto__")).to_contain_text("val")
