"""Which device is taken, which names are refused, and how much memory may be taken there."""

import pytest
import torch

from fedrec.errors import SettingsError
from fedrec.training.device import choose_device, memory_on


@pytest.fixture
def devices(monkeypatch):
    """Return a function that sets how many CUDA devices torch finds, each with 10 GiB free."""

    def found(number):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: number > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: number)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10 << 30, 16 << 30))

    return found


@pytest.mark.parametrize(
    ("n_devices", "name", "expected"),
    [
        (0, "auto", "cpu"),
        (0, "cpu", "cpu"),
        (2, "auto", "cuda:0"),
        (2, "cpu", "cpu"),
        (2, "cuda", "cuda:0"),
        (2, "cuda:1", "cuda:1"),
        (11, "cuda:10", "cuda:10"),
    ],
)
def test_a_device_that_is_there_is_taken(devices, n_devices, name, expected):
    devices(n_devices)
    assert choose_device(name) == torch.device(expected)


@pytest.mark.parametrize("n_devices", [0, 2])
@pytest.mark.parametrize(
    "name",
    [
        "mps", "meta", "xpu", "xpu:0", "abacus", "", "CUDA", " cuda", "cpu:0", "cuda:", "cuda:-1",
        "cuda:01", "cuda:1.0", "cuda:0\n", "cuda0", "gpu",
    ],
)  # fmt: skip
def test_another_name_is_refused(devices, n_devices, name):
    devices(n_devices)
    with pytest.raises(SettingsError, match="auto, cpu, cuda or cuda:N") as caught:
        choose_device(name)
    assert f'"{name}"' in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:3"])
def test_no_cuda_at_all(devices, name):
    devices(0)
    with pytest.raises(SettingsError, match=rf'"{name}", but torch .* finds no CUDA') as caught:
        choose_device(name)
    assert "fedrec doctor" in caught.value.remedy


@pytest.mark.parametrize(("n_devices", "there"), [(1, "only cuda:0"), (2, "cuda:0 to cuda:1")])
def test_a_missing_index_is_refused(devices, n_devices, there):
    devices(n_devices)
    with pytest.raises(SettingsError, match=rf'"cuda:{n_devices}", but torch finds {there}'):
        choose_device(f"cuda:{n_devices}")


def test_memory_is_what_is_set_or_a_share_of_what_is_free(devices):
    devices(1)
    cuda = torch.device("cuda", 0)
    assert memory_on(cuda, 512) == 512 << 20
    assert memory_on(cuda, 0) == 6 << 30
    assert memory_on(torch.device("cpu"), 512) == memory_on(torch.device("cpu"), 0) == 0
