# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven through the pipe of its DevTools protocol."""
import base64
import json
import os
import shutil
import subprocess
import tempfile
import time


def find():
    return next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)


class Browser:
    """Opens local pages; collects what they write to the console and what they fail to load."""

    def __init__(self, path):
        self.profile = tempfile.mkdtemp(prefix="aisp-browser-")
        take, self.give = os.pipe()
        self.take, send = os.pipe()
        command = (f'exec "$0" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --remote-debugging-pipe '
                   f'--user-data-dir="{self.profile}" about:blank 3<&{take} 4>&{send}')
        self.process = subprocess.Popen(["bash", "-c", command, path], pass_fds=(take, send), stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        os.close(take)
        os.close(send)
        self.buffer, self.number, self.problems, self.requests, self.events = b"", 0, [], [], []
        target = self.call("Target.createTarget", session=False, url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", session=False, targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self):
        try:
            self.call("Browser.close", session=False)
            self.process.wait(20)
        except (OSError, EOFError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.give)
        os.close(self.take)
        shutil.rmtree(self.profile, ignore_errors=True)

    def receive(self):
        while b"\0" not in self.buffer:
            part = os.read(self.take, 1 << 16)
            if not part:
                raise EOFError("the browser ended")
            self.buffer += part
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def note(self, event):
        method, parameters = event.get("method", ""), event.get("params", {})
        self.events.append(method)
        if method == "Runtime.exceptionThrown" or method == "Log.entryAdded" or (
                method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning")):
            self.problems.append(json.dumps(parameters))
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

    def call(self, method, session=True, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = self.session
        os.write(self.give, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") != self.number:
                self.note(answer)
                continue
            if "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            return answer["result"]

    def show(self, width, height=900, dark=False, scripts=True):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)

    def open(self, path):
        """Seconds until the page was loaded."""
        self.events.clear()
        start = time.monotonic()
        self.call("Page.navigate", url=path if "://" in str(path) else f"file://{path}")
        while "Page.loadEventFired" not in self.events:
            self.note(self.receive())
        return time.monotonic() - start

    def ask(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def press(self, key, code, text=""):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                      **({"text": text} if text and kind == "keyDown" else {}))

    def picture(self, file, whole=False):
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        with open(file, "wb") as out:
            out.write(base64.b64decode(data))
