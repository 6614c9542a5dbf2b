"""The files that settings name, and the flags, become settings or faults that never show a secret."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from fencegate.cli.loading import RouteKeys, admin_tokens, flags_of, load, read_secret, route_keys
from fencegate.config import Flag, Settings
from fencegate.errors import ConfigurationError
from fencegate.key_ring import SharedKey

FLAGS = [
    Flag("--node", "node", "n"),
    Flag("--region", "region", "r"),
    Flag("--advertise", "advertise", "http://h"),
    Flag("--store-dsn", "store.dsn", "postgresql://h/d"),
]
ROUTE = '[[route]]\npath = "/x"\nrole = "ledger"\ntarget = "ledger"\n'


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "fencegate.toml"
    path.write_text(ROUTE)
    return str(path)


def settings(file: str, **more: str) -> Settings:
    extra = [Flag("--set", key.replace("__", "."), text) for key, text in more.items()]
    return load(file, [*FLAGS, *extra], environment={})


def faults(file: str | None, environment: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load(file, FLAGS, environment=environment or {})
    return caught.value.faults


def test_the_file_is_named_by_a_flag_or_a_variable_and_the_flag_wins(file: str, tmp_path: Path) -> None:
    assert load(file, FLAGS, environment={}).route[0].role == "ledger"
    assert load(None, FLAGS, environment={"FENCEGATE_CONFIG": file}).route[0].role == "ledger"
    assert load(file, FLAGS, environment={"FENCEGATE_CONFIG": "/nowhere"}).route[0].role == "ledger"


def test_a_file_that_cannot_be_read_says_which_and_why(tmp_path: Path) -> None:
    missing = tmp_path / "no.toml"
    assert faults(str(missing)) == [f"file: cannot read {missing}: No such file or directory (flag --config)"]
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    assert faults(str(binary)) == [f"file: expected a text file in UTF-8: {binary} (flag --config)"]
    with pytest.raises(ConfigurationError, match=r"No such file or directory \(variable FENCEGATE_CONFIG\)$"):
        load(None, [], environment={"FENCEGATE_CONFIG": str(missing)})


def test_a_file_from_an_editor_of_windows_is_read_like_any_other(file: str, tmp_path: Path) -> None:
    path = tmp_path / "windows.toml"
    path.write_bytes(b"\xef\xbb\xbf" + ROUTE.replace("\n", "\r\n").encode())
    assert settings(str(path)) == settings(file)
    path.write_bytes(b"\xef\xbb\xbfa-token-of-operators\r\n")
    assert read_secret(str(path), "admin.token_file") == "a-token-of-operators"


def test_without_a_file_the_fault_says_how_to_name_one() -> None:
    assert faults(None)[-1] == "no configuration file was given: name one by --config FILE or FENCEGATE_CONFIG"


def test_flags_keep_their_names_and_an_assignment_needs_its_equals_sign() -> None:
    flags = flags_of(("a.b=c=d",), {"named_node": "n", "named_listen_admin": None})
    assert flags == [Flag("--set", "a.b", "c=d"), Flag("--node", "node", "n")]
    with pytest.raises(click.UsageError, match="--set takes KEY=VALUE"):
        flags_of(("a.b",), {})


@pytest.mark.parametrize(
    "text", ["", "\n", "short", "two words that are long enough", "ünïcode-ünïcode-ünïcode", "a\x00" * 20]
)
def test_a_token_file_without_a_proper_token_is_a_fault_that_does_not_show_it(text: str, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        read_secret(str(path), "admin.token_file", shortest=16)
    assert caught.value.faults[0].startswith("admin.token_file: expected one line of at least 16")
    assert not text.strip() or text.strip() not in str(caught.value)


def test_both_admin_tokens_are_read_and_must_differ(file: str, tmp_path: Path) -> None:
    act, read = tmp_path / "act", tmp_path / "read"
    act.write_text("a" * 32 + "\n")
    read.write_text("r" * 32)
    both = settings(file, admin__token_file=str(act), admin__read_token_file=str(read))
    assert admin_tokens(both) == ("a" * 32, "r" * 32)
    assert admin_tokens(settings(file)) == (None, None)
    read.write_text("a" * 32)
    with pytest.raises(ConfigurationError, match="expected another token"):
        admin_tokens(both)


def test_every_missing_token_file_is_named_at_once(file: str) -> None:
    both = settings(file, admin__token_file="/nowhere/a", admin__read_token_file="/nowhere/r")
    with pytest.raises(ConfigurationError) as caught:
        admin_tokens(both)
    assert [fault.split(":")[0] for fault in caught.value.faults] == ["admin.token_file", "admin.read_token_file"]


def test_every_faulty_key_file_is_named_at_once_and_no_secret_shown(tmp_path: Path) -> None:
    short, grants, config = tmp_path / "short.keys", tmp_path / "grant.keys", tmp_path / "fencegate.toml"
    for file in (short, grants):
        file.write_text("one " + "s" * 31)
    config.write_text(
        f'[[route]]\npath = "/x"\nrole = "ledger"\ntarget = "http://h"\nproof_key_file = "{short}"\n'
        '[[route]]\npath = "/y"\nrole = "other"\ntarget = "http://h"\nproof_key_file = "/none.keys"\n'
        f'grant_key_file = "{grants}"\n[identity]\nheader = "X-User"\nfrom = ["10.0.0.1"]\n'
    )
    with pytest.raises(ConfigurationError) as caught:
        route_keys(settings(str(config)))
    first, second, third = caught.value.faults
    assert first.startswith("[[route]] 1 proof_key_file: expected on each line an id")
    assert first.endswith(f"line 1 is none (file {short})")
    assert second == "[[route]] 2 proof_key_file: cannot read /none.keys: No such file or directory"
    assert third.startswith("[[route]] 2 grant_key_file: expected on each line an id")
    assert "sss" not in first + third


def test_a_reload_tells_of_keys_that_are_others_in_files_of_the_same_name() -> None:
    old, new = (SharedKey("k", secret * 32) for secret in (b"a", b"b"))
    before = RouteKeys({"/p": (old,)}, {"/g": (old,)})
    assert list(before.changed_from(before, ())) == []
    assert list(RouteKeys({"/p": (old,)}, {"/g": (new, old)}).changed_from(before, ())) == ["grant keys"]
    assert list(RouteKeys({"/p": (new,)}, {"/g": (new,)}).changed_from(before, ())) == ["proof keys", "grant keys"]
    named = ["route.0.grant_key_file"]
    assert list(RouteKeys({"/p": (old,)}, {"/x": (new,)}).changed_from(before, named)) == []
