"""The service under whatever its own description allows, and what it does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.serve.service import Client, Service, serving

pytestmark = pytest.mark.slow
BOUNDED = settings(
    max_examples=25,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that runs one worker at a time: what is made up here is launched, too."""
    folder = tmp_path_factory.mktemp("fuzz")
    with serving(folder, "--max-workers", "1", home=folder / "home") as service:
        yield service


def test_it_answers_as_its_description_says(service: Service) -> None:
    description = schemathesis.openapi.from_url(f"{service.url}/openapi.json")
    description.config.generation.update(with_security_parameters=False)  # tests/serve/test_security.py is about these
    operations = [cast("Any", result).ok() for result in description.get_all_operations()]
    assert len(operations) == 4
    for operation in operations:

        @BOUNDED
        @given(
            case=operation.as_strategy() | operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE)
        )
        def answers(case: schemathesis.Case[Any]) -> None:
            case.call_and_validate(auth=(service.key, ""))

        answers()


@BOUNDED
@given(order=st.dictionaries(st.sampled_from(["master_id", "cpu", "memory", "code", "env", "script"]), ANYTHING))
def test_no_order_whatever_is_an_error_of_the_service(client: Client, order: dict[str, Any]) -> None:
    answer = client.launch(**order)
    assert answer.status_code in (200, 409, 422, 429)
    assert "id" in answer.json() or answer.json()["message"]


@BOUNDED
@given(body=st.binary(max_size=200), kind=st.sampled_from(["application/json", "text/plain", ""]))
def test_no_body_whatever_is_an_error_of_the_service(client: Client, body: bytes, kind: str) -> None:
    url = client.variables["CDSW_PROJECT_URL"] + "/dashboards"
    answer = client.call("POST", url, data=body, headers={"Content-Type": kind})
    assert answer.status_code in (400, 422)
