"""What a notebook's cell offers for the tabulator key."""

from __future__ import annotations

import pytest
from muster.dashboard.completion import complete_in

completer = pytest.importorskip("IPython.core.completer")
interactiveshell = pytest.importorskip("IPython.core.interactiveshell")


def test_a_call_is_completed_with_names_and_their_options() -> None:
    shell = interactiveshell.InteractiveShell()
    complete_in(shell)

    def offered(code: str) -> list[str]:
        with completer.provisionalcompleter():
            return [found.text for found in shell.Completer.completions(code, len(code))]

    assert offered('muster.run_cluster(2, strategy="') == [
        "horovod", "mpi", "multi_worker", "parameter_server", "processes",
    ]  # fmt: skip
    assert offered("muster.pool(\n    2,\n    platform = 'con") == ["containers"]
    assert "slots=" in offered('run_cluster(2, strategy="mpi", args=(1, 2),\n    sl')
    assert "hosts=" in offered('muster.doctor(2, platform="hosts", ho')
    assert "hosts=" not in offered('muster.doctor(2, platform="containers", ho')
    assert "slots=" not in offered('run_cluster(2, strategy="mpi")\nprint(sl')
    assert "processes" not in offered('Cluster(strategy="')
    assert offered('run_cluster(2, strategy="no_such", sl') == ["slice"]
