"""The example of docs/serve.md is run as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.serve.service import Service
from tests.support import environment

GUIDE = Path(__file__).parents[2] / "docs" / "serve.md"


def test_the_client_of_the_guide(service: Service) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    variables = environment(**service.client_environment())
    done = subprocess.run([sys.executable, "-"], input=program, env=variables, capture_output=True, text=True)
    assert done.stderr == ""
    status, *output = done.stdout.splitlines()
    assert status.startswith("succeeded ")
    assert output[:2] == ["hello you", "42"]
