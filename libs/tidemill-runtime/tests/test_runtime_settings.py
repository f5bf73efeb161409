"""Settings come from a file and the environment; what nobody knows is refused with its place."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tidemill.errors import UsageError
from tidemill.runtime.durations import Milliseconds, format_duration, parse_duration
from tidemill.runtime.problems import Problem
from tidemill.runtime.settings import load


class Http(msgspec.Struct, frozen=True):
    host: str = "127.0.0.1"
    port: int = 9464


class Settings(msgspec.Struct, frozen=True):
    state: Path = Path(".tidemill")
    lease: Milliseconds = Milliseconds(900_000)
    records_per_poll: int = 10_000
    verbose: bool = False
    peers: tuple[str, ...] = ()
    http: Http = Http()
    tls: Http | None = None


def written(folder: Path, text: str, name: str = "ingest.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refusal(path: Path | None, environment: dict[str, str] | None = None) -> str:
    with pytest.raises(UsageError) as error:
        load(Settings, path, "TIDEMILL_INGEST", environment or {})
    assert error.value.details["reason"] == "settings"
    problems = error.value.details["problems"]
    assert isinstance(problems, tuple)
    assert all(isinstance(problem, Problem) for problem in problems)
    return str(error.value).replace(f"{path}:", "FILE:")


def test_defaults_hold_without_file_and_environment() -> None:
    assert load(Settings) == Settings()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.toml", 'state = "s"\nlease = "2m"\n[http]\nport = 1\n[tls]\nhost = "h"\n'),
        ("a.yaml", "state: s\nlease: 2m\nhttp: {port: 1}\ntls: {host: h}\n"),
    ],
)
def test_a_file_and_the_environment_override_the_defaults(
    tmp_path: Path, name: str, text: str
) -> None:
    environment = {
        "TIDEMILL_INGEST_VERBOSE": "true",
        "TIDEMILL_INGEST_LEASE": "1m30s",
        "TIDEMILL_INGEST_PEERS": '["a", "b"]',
        "TIDEMILL_INGEST_HTTP__HOST": "0.0.0.0",
        "TIDEMILL_QUERY_PORT": "another service's",
        "PATH": "/bin",
    }
    assert load(
        Settings, written(tmp_path, text, name), "TIDEMILL_INGEST", environment
    ) == Settings(
        state=Path("s"),
        lease=Milliseconds(90_000),
        verbose=True,
        peers=("a", "b"),
        http=Http("0.0.0.0", 1),
        tls=Http("h"),
    )


def test_unknown_names_are_all_told_with_the_nearest_that_exists(tmp_path: Path) -> None:
    path = written(tmp_path, 'lese = "2m"\n\n[http]\nprot = 1\nwhatever = 2\n')
    assert refusal(path, {"TIDEMILL_INGEST_HTTP__PROT": "1"}) == (
        'FILE:1: lese: unknown setting "lese"; did you mean "lease"?\n'
        'FILE:4: http.prot: unknown setting "prot"; did you mean "port"?\n'
        'FILE:5: http.whatever: unknown setting "whatever"; allowed: host, port\n'
        "environment variable TIDEMILL_INGEST_HTTP__PROT: unknown setting;"
        ' did you mean "TIDEMILL_INGEST_HTTP__PORT"?'
    )


def test_a_wrong_value_is_told_with_its_place(tmp_path: Path) -> None:
    toml = written(tmp_path, '[http]\n\nport = "x"\n')
    assert refusal(toml) == "FILE:3: http.port: expected `int`, got `str`"
    yaml = written(tmp_path, "records_per_poll: 5\nhttp:\n  port: [1]\n", "a.yaml")
    assert refusal(yaml) == "FILE:3:9: http.port: expected `int`, got `array`"
    assert refusal(written(tmp_path, "lease = 5\n")) == (
        "FILE:1: lease: a duration is written like 250ms, 1s, 10m, 24h, 7d or 1h30m"
    )
    assert refusal(None, {"TIDEMILL_INGEST_HTTP__PORT": "x"}) == (
        "environment variable TIDEMILL_INGEST_HTTP__PORT: http.port: expected `int`, got `str`"
    )


def test_a_file_that_is_none_is_told(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.toml") == "FILE: cannot be read: No such file or directory"
    assert refusal(written(tmp_path, "a = = 1\n")).startswith("FILE:1:5: not TOML: Invalid value")
    assert refusal(written(tmp_path, "- a\n", "a.yaml")) == "FILE:1:1: settings are a mapping"
    assert refusal(written(tmp_path, "a: 1\n---\nb: 1\n", "a.yaml")) == (
        "FILE:3:1: settings are one document"
    )
    assert "not YAML" in refusal(written(tmp_path, "a: [1\n", "a.yaml"))


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("250ms", 250), ("1s", 1_000), ("10m", 600_000), ("24h", 86_400_000), ("1d", 86_400_000),
        ("1h30m", 5_400_000), ("1d2h3m4s5ms", 93_784_005), ("0s", 0),
    ],
)  # fmt: skip
def test_durations_are_read_and_written(text: str, ms: int) -> None:
    assert parse_duration(text) == ms
    assert parse_duration(format_duration(ms)) == ms


@pytest.mark.parametrize("text", ["", "1", "s", "1.5s", "-1s", "1 s", "1S", "1m1h", "1s1s", "1sx"])
def test_what_is_no_duration_is_none(text: str) -> None:
    assert parse_duration(text) is None


@pytest.mark.parametrize("value", ["-1", "nan"])
def test_a_number_below_zero_is_no_setting(value: str) -> None:
    with pytest.raises(
        UsageError, match=r"variable FOE_PAUSE_S: pause_s: .* write a number from 0"
    ):
        load(Pausing, None, "FOE_", {"FOE_PAUSE_S": value})
    assert load(Pausing, None, "FOE_", {"FOE_PAUSE_S": "0"}) == Pausing(0.0)
    assert load(Pausing, None, "FOE_", {"FOE_PAUSE_S": "inf"}) == Pausing(float("inf"))


class Pausing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings with a time."""

    pause_s: float = 1.0


def test_a_list_in_a_variable_is_json() -> None:
    with pytest.raises(UsageError, match=r'a list in a variable is JSON: \["a", "b"\]'):
        load(Named, None, "FOE_", {"FOE_NAMES": "a"})


class Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings with a list."""

    names: tuple[str, ...] = ()
