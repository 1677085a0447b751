"""Numbers of stored formats, and run folders that have another one."""

import json

import pytest

from fedrec.errors import StorageError, VersionMismatch
from fedrec.formats import RUN_FORMAT, check_format, check_run_folder, format_number


@pytest.mark.parametrize(
    ("written", "number"),
    [
        (2, 2),
        ("2", 2),
        ("1.0", 1),
        ("12.7", 12),
        (None, None),
        ("", None),
        ("x", None),
        (-1, None),
        ([2], None),
    ],
)
def test_numbers_as_they_were_written(written, number):
    assert format_number(written) == number


def test_the_own_number_is_read():
    check_format(3, 3, "It", anew="start anew")


@pytest.mark.parametrize(
    ("found", "named", "who"),
    [
        (None, "no format number", "an older"),
        (2, "format 2", "an older"),
        (4, "format 4", "a newer"),
    ],
)
def test_every_other_number_is_refused_by_name(found, named, who):
    with pytest.raises(VersionMismatch) as caught:
        check_format(found, 3, "The thing", anew="start anew")
    assert f"The thing has {named}, made by {who} fedrec" in caught.value.message
    assert "reads format 3" in caught.value.message
    assert "Nothing was changed" in caught.value.message
    assert "Install the fedrec that wrote it" in caught.value.remedy
    # Whoever starts anew because of a newer fedrec would lose what an update reads.
    assert ("start anew" in caught.value.remedy) is (who == "an older")


def test_a_run_folder_says_its_number(tmp_path):
    record = tmp_path / "environment.json"
    with pytest.raises(VersionMismatch, match="no format number"):
        check_run_folder(tmp_path)
    record.write_text(json.dumps({"fedrec": "0.9"}))
    with pytest.raises(VersionMismatch, match="no format number"):
        check_run_folder(tmp_path)
    record.write_text(json.dumps({"format": RUN_FORMAT + 1}))
    with pytest.raises(VersionMismatch, match="newer"):
        check_run_folder(tmp_path)
    record.write_text(json.dumps({"format": RUN_FORMAT}))
    check_run_folder(tmp_path)
    for damaged in ("[1]", "{", "7"):
        record.write_text(damaged)
        with pytest.raises(StorageError, match=r"environment\.json cannot be read"):
            check_run_folder(tmp_path)
