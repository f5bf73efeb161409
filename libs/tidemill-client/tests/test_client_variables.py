"""A variable with our prefix that no command knows is refused at the start of every command."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from tidemill.client.command import app
from tidemill.errors.variables import KNOWN, refuse_unknown_variables, unknown_variables

LINKS = (
    "TIDEMILL_SERVICE_HOST", "TIDEMILL_SERVICE_PORT", "TIDEMILL_SERVICE_PORT_GRPC",
    "TIDEMILL_PORT", "TIDEMILL_PORT_7474_TCP", "TIDEMILL_PORT_7474_TCP_ADDR",
    "TIDEMILL_QUERY_SERVICE_HOST",
)  # fmt: skip


@pytest.mark.parametrize("command", ["get", "sql", "up", "fsck", "operator", "completion"])
def test_every_command_refuses_an_unknown_variable_with_the_nearest_name_and_status_2(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMILL_ADRESS", "example.org:7474")
    result = CliRunner().invoke(app, [command])
    assert result.exit_code == 2
    assert result.stderr == (
        "tidemill: no command knows the environment variable TIDEMILL_ADRESS; "
        "did you mean TIDEMILL_ADDRESS?\n"
    )


def test_a_name_like_no_other_is_refused_as_well_and_each_unknown_name_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        refuse_unknown_variables({"TIDEMILL_Q": "", "TIDEMILL_UP_LIMITS__CALL": "1"})
    assert ended.value.code == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "TIDEMILL_Q; did you mean TIDEMILL_" in first
    assert second.endswith("TIDEMILL_UP_LIMITS__CALL; did you mean TIDEMILL_UP_LIMITS__CALLS?")


def test_known_variables_those_of_others_and_those_of_services_pass() -> None:
    known = KNOWN.read_text().split()
    assert {"TIDEMILL_ADDRESS", "TIDEMILL_UP_DIRECTORY", "TIDEMILL_OPERATOR_LEASE"} <= {*known}
    assert (
        unknown_variables(dict.fromkeys((*known, *LINKS, "PATH", "_TIDEMILL_COMPLETE"), "")) == {}
    )


def test_a_setting_is_not_taken_for_the_variable_of_a_service() -> None:
    assert [*unknown_variables({"TIDEMILL_UP_HTTP_PROT": "1"})] == ["TIDEMILL_UP_HTTP_PROT"]
