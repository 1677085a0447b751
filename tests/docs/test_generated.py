"""The generated pages are what the code says, and leave nothing out."""

import importlib.util

import pytest
from docs.pages import ROOT
from reference_tables import settings_markdown

from fedrec.errors import ERRORS
from fedrec.settings.explain import all_settings, explain
from fedrec.wire.v1 import admin_pb2, coordinator_pb2

REFERENCE = ROOT / "docs" / "reference"


@pytest.fixture(scope="module")
def generated():
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.pages()


PAGES = ["settings.md", "cli.md", "errors.md", "combinations.md", "python.md"]


@pytest.mark.parametrize("name", PAGES)
def test_the_committed_page_is_up_to_date(generated, name):
    committed = (REFERENCE / name).read_text(encoding="utf-8")
    assert committed == generated[name], "run `make docs`"


def test_nothing_else_is_generated(generated):
    assert set(generated) == set(PAGES)


def test_markdown_has_a_row_for_every_setting():
    text = settings_markdown()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) == len(explain())
    assert len({row.split("`")[1] for row in rows}) == len(all_settings())
    assert all(line.replace("\\|", "").count("|") == 5 for line in rows)


def test_every_error_is_in_the_reference():
    text = (REFERENCE / "errors.md").read_text(encoding="utf-8")
    assert [code for code in ERRORS if f"| `{code}` |" not in text] == []
    assert [kind.public for kind in ERRORS.values() if kind.public not in text] == []


def test_every_method_of_the_wire_is_in_the_reference():
    text = (REFERENCE / "wire.md").read_text(encoding="utf-8")
    services = [
        *coordinator_pb2.DESCRIPTOR.services_by_name.values(),
        *admin_pb2.DESCRIPTOR.services_by_name.values(),
    ]
    methods = [method.name for service in services for method in service.methods]
    assert methods
    assert [name for name in methods if f"`{name}`" not in text] == []
