"""The Capsule Explainer in Chromium: from its address to the first answer, and from a picture to its routing.

    python -m benchmarks.page [--save FILE]

Each network's answer is the median over pictures no two of which are alike, as the engine computes it on a thread whose
processor is slowed down by 1 and by 6 (a phone).
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from flashcaps.demo.build import DEMO, build
from flashcaps.demo.serve import address, make_server

from . import provenance

SLOWER = (1, 6)
ANSWER = """async ([name]) => {
  const { Network, readFile } = await import("./page/engine/network.js");
  const { createAnswers } = await import("./page/engine/answers.js");
  const { asPicture } = await import("./page/codec.js");
  const network = new Network(readFile(await (await fetch(`models/${name}.caps`)).arrayBuffer(), name));
  const [, height, width] = network.info.image;
  const times = Array.from({ length: 20 }, (_, n) => {
    const pixels = Uint8Array.from({ length: height * width }, (_, k) => ((k * (n + 7)) % 11 ? 0 : 255));
    const begun = performance.now();
    createAnswers(network).route(asPicture(pixels, height, width));
    return performance.now() - begun;
  });
  return times.slice(10).sort((a, b) => a - b)[5];
}"""


def measure(url: str) -> dict[str, Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found: dict[str, Any] = {"answer_ms": {}}
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        loaded: list[Any] = []
        page.on("response", lambda response: loaded.append(response))
        begun = time.monotonic()
        page.goto(f"{url}#v=draw")
        page.wait_for_function("() => document.querySelector('[data-testid=winner]')?.textContent.trim()")
        found["first_answer_s"] = round(time.monotonic() - begun, 2)
        found["first_answer_bytes"] = sum(len(response.body()) for response in list(loaded))
        page.route("**/blank", lambda route: route.fulfill(body="<!doctype html>", content_type="text/html"))
        page.goto(f"{url}blank")
        session = page.context.new_cdp_session(page)
        for slower in SLOWER:
            session.send("Emulation.setCPUThrottlingRate", {"rate": slower})
            times = {name: round(page.evaluate(ANSWER, [name]), 1) for name in DEMO}
            found["answer_ms"][f"{slower}x"] = times
        browser.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description="The explainer in Chromium.")
    parser.add_argument("--save", type=Path, help="a JSON file")
    save = parser.parse_args().save
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder))
        with make_server(Path(folder), 0) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            found = provenance() | measure(address(server))
            server.shutdown()
        found["bytes"] = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    print(json.dumps(found, indent=2))
    if save:
        save.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
