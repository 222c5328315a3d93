"""Pages in a real browser: nothing is asked for, nothing goes wrong, nothing is cut off, and anyone can read them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import pwoa
from pwoa.report.serve import serve

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
WIDTHS = (360, 768, 1440)
CUT_OFF = """[...document.querySelectorAll("p, h1, h2, h3, li, figure, .card")]
    .filter((each) => each.scrollWidth > each.clientWidth + 1 && getComputedStyle(each).display !== "inline")
    .filter((each) => !each.closest(".scroll, .unseen, .pair"))
    .map((each) => each.className + each.textContent.slice(0, 60))"""
"""What does not fit into its place."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium; without one, the tests that need it are skipped, and say so."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no browser is installed (apt-get install chromium)")
    driver = pytest.importorskip("playwright.sync_api")
    with driver.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def pages(made: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of a run, an evaluation, several runs, many runs, and of a broken folder."""
    folder = tmp_path_factory.mktemp("pages")
    broken = folder / "broken"
    shutil.copytree(made / "runs" / "pwoa", broken)
    (broken / "result.json").unlink()
    (broken / "metrics.jsonl").write_text("{")
    for number in range(12):
        name = f"a-run-with-a-name-as-long-as-sweeps-make-them-sparsity.rate={number}-training.seed=0"
        shutil.copytree(made / "runs" / ("pwoa" if number % 2 else "naive"), folder / "many" / name)
    sources = {
        "run": made / "runs" / "pwoa",
        "evaluation": made / "evaluation",
        "several": made / "runs",
        "many": folder / "many",
        "broken": broken,
    }
    return {name: pwoa.report(source, out=folder / f"{name}.html") for name, source in sources.items()}


def opened(browser: Any, address: str, **options: Any) -> tuple[Any, list[str]]:
    """Open a page; return it, and what it asks for besides itself or complains of."""
    page = browser.new_page(**options)
    trouble: list[str] = []
    page.on("console", lambda message: trouble.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on(
        "request",
        lambda request: (
            None if request.url == address or request.url.startswith("data:") else trouble.append(request.url)
        ),
    )
    page.goto(address)
    return page, trouble


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["run", "evaluation", "several", "many", "broken"])
def test_a_page_is_whole_at_every_width_and_for_everyone(
    name: str, scheme: str, browser: Any, pages: dict[str, Path]
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page, trouble = opened(browser, pages[name].as_uri(), color_scheme=scheme, viewport={"width": 360, "height": 800})
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate(CUT_OFF) == []
    page.set_viewport_size({"width": 360 if scheme == "light" else 1440, "height": 800})
    found = Axe().run(page).response["violations"]
    assert [each["id"] for each in found if each["impact"] in ("serious", "critical")] == []
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, colour[4:-1].split(", "))) < 150) == (scheme == "dark")
    assert trouble == []
    page.close()


def test_a_table_is_sorted_by_mouse_and_keyboard(browser: Any, pages: dict[str, Path]) -> None:
    page, trouble = opened(browser, pages["many"].as_uri())

    def column(number: int) -> list[str]:
        return list(page.locator(f"table.sortable tbody tr > *:nth-child({number})").all_inner_texts())

    place = page.locator("table.sortable thead th").all_inner_texts().index("natural") + 1
    before = column(place)
    page.get_by_role("button", name="natural").click()
    assert column(place) == sorted(before, key=float, reverse=True)
    page.get_by_role("button", name="natural").press("Enter")
    assert column(place) == sorted(before, key=float)
    assert page.locator("th[aria-sort=ascending]").count() == 1
    page.get_by_role("button", name="run").click()
    assert len(set(column(1))) == 12
    assert page.locator("th[aria-sort=descending]").inner_text().startswith("run")
    assert trouble == []
    page.close()


def test_a_point_leads_to_its_run(browser: Any, pages: dict[str, Path]) -> None:
    page, _ = opened(browser, pages["several"].as_uri())
    link = page.locator("svg a").first
    link.focus()
    page.keyboard.press("Enter")
    assert page.url.endswith(str(link.get_attribute("href")))
    page.close()


def test_a_page_is_read_without_scripts_and_printed_whole(browser: Any, pages: dict[str, Path]) -> None:
    context = browser.new_context(java_script_enabled=False, color_scheme="dark")
    page, trouble = opened(context, pages["run"].as_uri())
    assert "Robustness" in page.inner_text("main")
    assert trouble == []
    page.emulate_media(media="print", color_scheme="dark")
    for place in ("h1", "td", ".card .value"):  # dark on white, whatever the screen has
        colour = page.locator(place).first.evaluate("place => getComputedStyle(place).color")
        assert sum(map(int, colour[4:-1].split(", "))) < 150
    assert not page.locator("nav").is_visible()
    assert page.locator("details pre").is_visible()
    assert len(page.pdf()) > 10_000
    context.close()


def test_a_large_page_opens_in_under_a_second(browser: Any, made: Path, tmp_path: Path) -> None:
    for number in range(30):
        shutil.copytree(made / "runs" / "pwoa", tmp_path / "runs" / f"run{number:02}")
    page, _ = opened(browser, pwoa.report(tmp_path / "runs").as_uri())
    timing = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    assert 0 < timing < 1000
    page.close()


def test_a_list_that_renews_itself_stays_sorted_and_focused(browser: Any, runs: Path) -> None:
    with serve(runs) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        page, trouble = opened(browser, server.address)

        def folders() -> list[str]:
            return list(page.locator("table.sortable tbody th").all_inner_texts())

        page.get_by_role("button", name="folder").press("Enter")
        assert folders() == ["scratch", "runs", "pwoa", "naive"]
        shutil.copytree(runs / "pwoa", runs / "last")
        page.get_by_text("Runs: 5 folders").wait_for(timeout=20_000)
        assert folders() == ["scratch", "runs", "pwoa", "naive", "last"]
        assert page.evaluate("document.activeElement.textContent") == "folder"
        page.keyboard.press("Enter")
        assert folders() == ["last", "naive", "pwoa", "runs", "scratch"]
        assert trouble == []
        page.close()
        server.shutdown()


def test_a_live_page_renews_itself_until_the_run_is_finished(browser: Any, made: Path, runs: Path) -> None:
    run = runs / "pwoa"
    for name in ("result.json", "model.safetensors"):
        (run / name).unlink()
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text(lines[0] + "\n")
    with serve(runs) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        address = f"{server.address}page/pwoa"
        page, trouble = opened(browser, address)
        page.get_by_text("Done: 1 of 4 epochs.").wait_for()
        (run / "metrics.jsonl").write_text("\n".join(lines[:3]) + "\n")
        page.get_by_text("Done: 3 of 4 epochs.").wait_for(timeout=20_000)
        page.get_by_role("button", name="Pause").click()
        page.get_by_role("button", name="Go on").click()
        for name in ("result.json", "model.safetensors", "metrics.jsonl"):
            shutil.copy(made / "runs" / "pwoa" / name, run / name)
        page.get_by_text("renews itself").wait_for(state="detached", timeout=20_000)  # nothing will change any more
        assert page.get_by_role("link", name="Robustness").is_visible()
        assert trouble == []
        page.close()
        server.shutdown()
