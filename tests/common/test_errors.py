"""The tree of errors is one page, and the page is true."""

import re

import fedrec.errors as page
from fedrec.errors import ERRORS, FedrecError

LINE = re.compile(r"^ *(?:\| *)*[|`]- (\w+) +(\w+) +(\d) +(\w+)$", re.MULTILINE)


def test_the_tree_names_every_error_with_its_code_exit_code_and_status():
    assert page.__doc__ is not None
    seen = {name: rest for name, *rest in LINE.findall(page.__doc__)}
    kinds = [kind for kind in ERRORS.values() if kind is not FedrecError]
    assert seen == {
        kind.__name__: [kind.code, str(kind.exit_code), kind.grpc_status] for kind in kinds
    }


def test_every_error_is_exported():
    assert {kind.__name__ for kind in ERRORS.values()} <= set(page.__all__)
