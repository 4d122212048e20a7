"""Code that makes a worker of an engine: unpacks the agent, which may not be installed there, and runs it.

It is sent as text, with a call of ``become_worker`` below it.
"""

import base64
import contextlib
import io
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile


def become_worker(source, config):
    # type: (str, str) -> None
    """Run the agent until it ends, and exit as it did.

    Args:
        source: the agent's package, as the base64 of a zip.
        config: path of what the agent must know.
    """
    folder = tempfile.mkdtemp(prefix="muster-agent-")
    try:
        zipfile.ZipFile(io.BytesIO(base64.b64decode(source))).extractall(folder)
        agent = subprocess.Popen([sys.executable, "-I", "-S", folder + "/agent/__main__.py", "worker", config])
        with contextlib.suppress(ValueError):  # an engine that does not run this in its main thread
            signal.signal(signal.SIGTERM, lambda *_: agent.terminate())  # it ends its processes first, then itself
        status = agent.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if status:
        sys.exit("muster: this worker's agent ended with status {}".format(status))
