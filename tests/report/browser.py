"""A real Chromium without a window, driven through its own debugging pipe (`--remote-debugging-pipe`)."""

import base64
import io
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

from PIL import Image

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
INSTALL = "apt-get install -y --no-install-recommends chromium"


def find() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One tab without a network. `requests`: addresses that the page asked for; `complaints`: errors and warnings."""

    def __init__(self, executable: str, home: Path):
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._count = 0
        commands_out, commands_in = os.pipe()
        answers_out, answers_in = os.pipe()
        arguments = ["--headless", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe"]
        arguments += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
        arguments += ["--no-first-run", f"--user-data-dir={home}", "--window-size=1400,1000"]
        if os.geteuid() == 0:
            arguments.append("--no-sandbox")  # Chromium refuses to run as root with it
        # It reads from descriptor 3 and writes to 4.
        start = f'exec "$@" 3<&{commands_out} 4>&{answers_in}'
        self._process = subprocess.Popen(
            ["bash", "-c", start, "bash", executable, *arguments],
            pass_fds=(commands_out, answers_in),
            env={**os.environ, "HOME": str(home)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands_out)
        os.close(answers_in)
        self._commands, self._answers = os.fdopen(commands_in, "wb"), os.fdopen(answers_out, "rb")
        self._session = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Network", "Runtime", "Log", "Page"):
            self.send(f"{domain}.enable")
        self.send("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)

    def close(self) -> None:
        self._commands.close()
        self._process.terminate()
        self._process.wait(timeout=20)

    def send(self, method: str, **parameters):
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        while True:
            answer = self._read()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer.get("method"), answer.get("params", {}))

    def _read(self) -> dict:
        content = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            assert byte, "Chromium has ended"
            content += byte
        return json.loads(content)

    def _note(self, method, parameters) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"][:100])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(parameters["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.complaints.append(json.dumps(parameters["args"])[:500])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(parameters["entry"]["text"])

    def evaluate(self, expression: str):
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_until(self, expression: str, timeout: float = 60) -> None:
        deadline = time.monotonic() + timeout
        while not self.evaluate(expression):
            assert time.monotonic() < deadline, f"{expression}: {self.complaints}"
            time.sleep(0.1)

    def open(self, path: Path) -> None:
        self.send("Page.navigate", url=path.resolve().as_uri())
        self.wait_until("document.readyState === 'complete'")

    def mouse(self, kind: str, x: float, y: float, **more) -> None:
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    def key(self, key: str, shift: bool = False) -> None:
        """Presses a key, by its name in `KeyboardEvent.key`."""
        codes = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        what = {"key": key, "code": key, "modifiers": 8 * shift, "windowsVirtualKeyCode": codes.get(key, 0)}
        if len(key) == 1:
            what["text"] = key
        self.send("Input.dispatchKeyEvent", type="keyDown", **what)
        self.send("Input.dispatchKeyEvent", type="keyUp", **what)

    def screenshot(self, box: dict) -> Image.Image:
        shot = self.send("Page.captureScreenshot", clip={**box, "scale": 1}, captureBeyondViewport=True)
        return Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")
