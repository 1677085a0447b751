"""Every update structure of the registry keeps the seam's contract."""

from typing import get_args

from conformance.update_suite import UpdateSuite

from fedrec.plan.combinations import COMBINATIONS
from fedrec.updates import UPDATES
from fedrec.updates.update import UpdateSettings


class TestUpdates(UpdateSuite):
    """Parametrised over `UPDATES`."""


def test_settings_and_registry_know_the_same_structures():
    named = set(get_args(UpdateSettings.model_fields["structure"].annotation))
    assert named == set(UPDATES)
    assert named == {name for row in COMBINATIONS for name in row.updates}
