"""Places that resources may name: files below a folder, resolved addresses, secrets by name."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from tidemill.errors import UsageError
from tidemill.runtime.places import Egress, EgressRefused, Files, Places, PlaceSettings, Secret
from tidemill.runtime.places import places_of as made_places
from tidemill.runtime.places.egress import host_rule
from tidemill.runtime.places.settings import FileSettings, SecretSettings

PORT = 9092


def places_of(settings: PlaceSettings, state: Path, *, alone: bool = False) -> Places:
    """The places of a process with its state in a folder."""
    return made_places(settings, open_unless_set=alone, directory=state, private=())


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with a file, beside one that nobody named."""
    for name in ("data", "private", "data/inner"):
        (tmp_path / name).mkdir()
    (tmp_path / "data/rows").write_text("rows")
    (tmp_path / "data/inner/rows").write_text("inner")
    (tmp_path / "private/key").write_text("PRIVATE KEY")
    return tmp_path / "data"


def test_a1_a_file_is_read_in_the_folders_that_are_named(data: Path) -> None:
    files = Files("places.files.read", (data,))
    for name in ("rows", "inner/rows", "inner/../rows"):
        with files.read(data / name) as file:
            assert file.read() in (b"rows", b"inner")


@pytest.mark.parametrize("path", ["../private/key", "inner/../../private/key", "/etc/passwd"])
def test_a1_no_path_leads_out_of_its_folder(data: Path, path: str) -> None:
    files = Files("places.files.read", (data,))
    with pytest.raises(UsageError, match=r"places\.files\.read does not name") as refused:
        files.read(data / path)
    assert "PRIVATE" not in str(refused.value)


@pytest.mark.parametrize("target", ["../private/key", "{private}/key"])
def test_a1_no_link_leads_out_of_its_folder(data: Path, target: str) -> None:
    private = data.parent / "private"
    (data / "link").symlink_to(target.format(private=private))
    (data / "folder").symlink_to(private)
    files = Files("places.files.read", (data,))
    for path in ("link", "folder/key"):
        with pytest.raises(UsageError, match="a link leads out"):
            files.read(data / path)
        with pytest.raises(UsageError, match="a link leads out"):
            files.write(data / path, os.O_WRONLY)
    assert (private / "key").read_text() == "PRIVATE KEY"


def test_a1_a_pattern_does_not_tell_what_is_outside_of_its_folder(data: Path) -> None:
    """A1: what there is behind `..` was told by a refusal, what there is not by another one."""
    files = Files("places.files.read", (data,))
    assert files.matching(str(data / "*/rows")) == [str(data / "inner/rows")]
    said = set()
    for name in ("key", "nothing"):
        with pytest.raises(UsageError) as refused:
            files.matching(str(data / f"*/../../private/{name}"))
        said.add(str(refused.value).replace(name, ""))
    assert len(said) == 1


def test_a1_a_file_whose_name_is_no_text_is_refused_with_what_to_do(data: Path) -> None:
    """A1: a name in Latin-1 was an error outside of the tree wherever it was stored or told."""
    with open(os.fsencode(data) + b"/gr\xfcn.csv", "wb"):
        pass
    for pattern in (str(data), str(data / "*.csv")):
        with pytest.raises(UsageError, match=r"gr\\xfcn\.csv is no UTF-8: rename it") as refused:
            Files("places.files.read", (data,)).matching(pattern)
        str(refused.value).encode()


def test_a1_links_within_a_folder_are_followed(data: Path) -> None:
    """A mounted Secret or ConfigMap of Kubernetes is made of such links."""
    (data / "..data").symlink_to("inner")
    (data / "mounted").symlink_to("..data/rows")
    with Files("places.files.read", (data,)).read(data / "mounted") as file:
        assert file.read() == b"inner"


def test_a1_a_link_that_turns_while_a_file_is_opened_leads_nowhere(data: Path) -> None:
    """The file that was checked is the file that is opened: its name becomes a link all the
    time.
    """
    files = Files("places.files.read", (data,))
    turning, private = data / "turning", data.parent / "private/key"
    spare = data / "spare"
    seen = set()
    for turn in range(400):
        if turn % 2:
            spare.symlink_to(private)
        else:
            spare.write_text("rows")
        spare.rename(turning)
        try:
            with files.read(turning) as file:
                seen.add(file.read())
        except UsageError:
            seen.add(b"refused")
    assert seen == {b"rows", b"refused"}


@pytest.mark.parametrize("path", ["/dev/zero", "/proc/self/environ", "/sys/kernel/uevent_seqnum"])
def test_s8_files_of_the_machine_are_refused_although_everything_is_open(path: str) -> None:
    files = places_of(PlaceSettings(), Path("/nowhere"), alone=True).read
    with pytest.raises(UsageError, match="belongs to the system"):
        files.read(path)
    with pytest.raises(UsageError, match="belongs to the system"):
        files.write(path, os.O_RDWR)


def test_s8_what_is_no_regular_file_is_refused_without_waiting(data: Path) -> None:
    os.mkfifo(data / "pipe")
    for files in (Files("places.files.read"), Files("places.files.read", (data,))):
        for name in ("pipe", "inner"):
            with pytest.raises(UsageError, match="no regular file"):
                files.read(data / name)
        assert files.matching(f"{data}/*") == [str(data / "rows")]


def test_s8_a_small_file_has_a_size(data: Path) -> None:
    files = Files("places.files.read", (data,))
    assert files.content(data / "rows", 4) == b"rows"
    with pytest.raises(UsageError, match="more than 3 bytes"):
        files.content(data / "rows", 3)


def test_a1_state_keys_and_secrets_are_refused_although_everything_is_open(tmp_path: Path) -> None:
    state, keys = tmp_path / "state", tmp_path / "keys"
    for folder in (state, keys):
        folder.mkdir()
    (state / "consensus.sqlite").write_text("state")
    (keys / "broker").write_text("secret")
    (keys / "old").write_text("secret")
    told = PlaceSettings(secrets={"broker": SecretSettings(str(keys / "broker"))})
    places = places_of(told, state, alone=True)
    for path in (state / "consensus.sqlite", keys / "broker", keys / "old"):
        with pytest.raises(UsageError, match="belongs to the system"):
            places.read.read(path)
        with pytest.raises(UsageError, match="belongs to the system"):
            places.write.write(path, os.O_WRONLY | os.O_TRUNC)
    assert (state / "consensus.sqlite").read_text() == "state"
    with pytest.raises(UsageError, match="state, keys and settings are no data"):
        places_of(PlaceSettings(files=FileSettings(read=(str(state / "x"),))), state)


def test_a1_what_is_not_set_is_closed_beyond_loopback(data: Path) -> None:
    places = places_of(PlaceSettings(), data / "state")
    with pytest.raises(UsageError, match=r"places\.files\.read"):
        places.read.read(data / "rows")
    with pytest.raises(UsageError, match=r"places\.files\.write"):
        places.write.write(data / "rows", os.O_WRONLY)
    with pytest.raises(UsageError, match=r"places\.egress"):
        places.egress.check_name("example.org", 443)
    with pytest.raises(UsageError, match=r"places\.topics\.read"):
        places.topics_read.check("payments")
    with pytest.raises(UsageError, match=r"places\.topics\.write"):
        places.topics_written.check("payments")
    with pytest.raises(UsageError, match=r"set places\.secrets\.broker\.file"):
        places.secret("broker")


def test_a1_a_sink_makes_folders_and_a_file_below_what_is_named(data: Path) -> None:
    files = Files("places.files.write", (data,))
    before = os.umask(0o077)
    try:
        handle = files.write(data / "new/deep/file", os.O_WRONLY | os.O_APPEND)
    finally:
        os.umask(before)
    os.write(handle, b"told")
    os.close(handle)
    assert (data / "new/deep/file").read_text() == "told"
    assert (data / "new/deep/file").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("rule", "host", "port", "named", "address", "reached"),
    [
        ("kafka.example.org", "kafka.example.org", PORT, True, "10.0.0.7", True),
        ("kafka.example.org:9092", "KAFKA.example.org", PORT, True, "93.184.216.34", True),
        ("kafka.example.org:9093", "kafka.example.org", PORT, False, "93.184.216.34", False),
        ("*.example.org", "kafka.example.org", PORT, True, "93.184.216.34", True),
        ("*.example.org", "kafka.example.org", PORT, True, "10.0.0.7", False),
        ("*.example.org", "example.org.evil.net", PORT, False, "93.184.216.34", False),
        ("*", "evil.net", PORT, True, "93.184.216.34", True),
        ("*", "evil.net", PORT, True, "127.0.0.1", False),
        ("*", "evil.net", PORT, True, "::ffff:10.0.0.7", False),
        ("*", "10.0.0.7", PORT, False, "10.0.0.7", False),
        ("10.0.0.0/8", "anything", PORT, True, "10.0.0.7", True),
        ("10.0.0.0/8", "anything", PORT, True, "11.0.0.7", False),
        ("10.0.0.0/8", "10.1.2.3", PORT, True, "10.1.2.3", True),
        ("[::1]:9092", "::1", PORT, True, "::1", True),
        ("169.254.0.0/16", "anything", PORT, True, "169.254.169.254", False),
        ("*", "anything", PORT, True, "fd00:ec2::254", False),
    ],
)  # fmt: skip
def test_a1_a_connection_goes_where_a_rule_says_by_name_and_by_address(
    rule: str, host: str, port: int, named: bool, address: str, reached: bool
) -> None:
    egress = Egress((host_rule(rule),))
    if named:
        egress.check_name(host, port)
    else:
        with pytest.raises(UsageError):
            egress.check_name(host, port)
    if reached:
        egress.check_address(host, port, address)
    else:
        with pytest.raises(EgressRefused):
            egress.check_address(host, port, address)


def test_a1_credentials_of_machines_are_out_of_reach_although_everything_is_open() -> None:
    with pytest.raises(UsageError, match="credentials"):
        Egress().check_name("169.254.169.254", 80)
    with pytest.raises(EgressRefused, match="credentials"):
        Egress().check_address("rebound.example.org", 80, "::ffff:169.254.169.254")
    Egress().check_address("localhost", 80, "127.0.0.1")


@pytest.mark.parametrize(
    "address",
    [
        "64:ff9b::a9fe:a9fe", "64:ff9b:1::a9fe:a9fe", "2002:a9fe:a9fe::1", "::ffff:a9fe:a9fe",
        "2001:0:4136:e378:8000:63bf:5601:5601", "::ffff:0:a9fe:a9fe", "::a9fe:a9fe",
    ],
)  # fmt: skip
def test_a1_an_address_within_another_one_is_what_it_leads_to(address: str) -> None:
    """A1: gateways of IPv6 make the address of credentials of these, and some call them public."""
    with pytest.raises(EgressRefused, match=r"169\.254\.169\.254 is refused"):
        Egress((host_rule("*"),)).check_address("somewhere.example.org", 80, address)
    with pytest.raises(UsageError, match="credentials"):
        Egress().check_name(f"[{address}]", 80)
    Egress().check_address("somewhere.example.org", 80, "64:ff9b::808:808")


@pytest.mark.parametrize("address", ["fec0::1", "5f00::1", "3fff::1", "::7f00:1", "::ffff:0:a00:1"])
def test_a1_addresses_that_lead_to_no_public_place_are_refused(address: str) -> None:
    """A1: of a site, of segments, of documents, and two forms of addresses of IPv4."""
    with pytest.raises(EgressRefused, match="does not name that address"):
        Egress((host_rule("*"),)).check_address("somewhere.example.org", 80, address)


async def test_a1_a_name_that_turns_after_it_was_checked_is_refused_when_it_connects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The name may be anything public; by the time of the connection it means this machine."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        loop = asyncio.get_running_loop()

        async def rebound(*_: object, **__: object) -> list[object]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

        monkeypatch.setattr(loop, "getaddrinfo", rebound)
        egress = Egress((host_rule("*"),))
        egress.check_name("rebound.example.org", port)
        with pytest.raises(EgressRefused, match=r"127\.0\.0\.1 is refused"):
            await egress.connect_allowed("rebound.example.org", port)
        # The companion: the same name is reached where its network is named.
        (
            await Egress((host_rule("127.0.0.0/8"),)).connect_allowed("rebound.example.org", port)
        ).close()


def test_a1_a_secret_goes_only_where_it_may_be_sent(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("S3CR3T\n")
    told = PlaceSettings(
        secrets={"broker": SecretSettings(str(tmp_path / "password"), ("broker.example.org",))}
    )
    places = places_of(told, tmp_path / "state", alone=True)
    assert places.secret("broker").text() == "S3CR3T"
    sending = places.sending("broker")
    sending.check_name("broker.example.org", PORT)
    with pytest.raises(UsageError, match=r"for the secret broker: places\.secrets\.broker\.hosts"):
        sending.check_name("evil.example.org", PORT)
    places.egress.check_name("evil.example.org", PORT)  # without the secret it may


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"x" * 70_000])
def test_s3_the_file_of_a_secret_that_is_none_says_which(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "password").write_bytes(data)
    secret = Secret("broker", tmp_path / "password")
    with pytest.raises(UsageError, match="the file of the secret broker"):
        secret.text()


def test_s13_a_password_travels_unencrypted_where_that_is_said(tmp_path: Path) -> None:
    places = places_of(PlaceSettings(clear_text=("old.example.org",)), tmp_path, alone=True)
    places.check_clear("127.0.0.1", PORT, "the password")
    places.check_clear("old.example.org", PORT, "the password")
    with pytest.raises(UsageError, match=r"places\.clear_text"):
        places.check_clear("broker.example.org", PORT, "the password")


@pytest.mark.parametrize("rule", ["", "a*b", "10.0.0.0/99", "host:port", "*x.org"])
def test_a_rule_that_is_none_is_refused(rule: str) -> None:
    with pytest.raises(UsageError):
        host_rule(rule)
