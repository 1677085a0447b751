"""Where training runs, and how much of a device's memory it may take."""

from __future__ import annotations

import re

import torch

from fedrec.errors import SettingsError

_NAMES = re.compile(r"auto|cpu|cuda|cuda:(?P<index>0|[1-9][0-9]{0,3})")
_ALLOWED = "auto, cpu, cuda or cuda:N, where N counts CUDA devices from 0"
_SHARE_OF_FREE = 0.6
"""Of a device's free memory, where nothing else is said: torch's allocator leaves gaps, and the
libraries that it calls take room of their own."""


def choose_device(name: str) -> torch.device:
    """Return the device that `client.device` names; a CUDA device with its index.

    `auto` is the first CUDA device where there is one. Other kinds of device (mps, xpu, ...) have
    no float64 or no int64 sums that could be relied on; nothing was ever trained on them.

    Raises:
        SettingsError: when the name is another one, or this machine has no such device.
    """
    known = _NAMES.fullmatch(name)
    if known is None:
        raise SettingsError(
            f'client.device is "{name}"; allowed are {_ALLOWED}.',
            remedy='Set client.device = "auto", which takes CUDA where there is any.',
        )
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    index, n_devices = int(known["index"] or 0), torch.cuda.device_count()
    if not torch.cuda.is_available() or not n_devices:
        raise SettingsError(
            f'client.device is "{name}", but torch {torch.__version__} finds no CUDA device.',
            remedy='Set client.device = "auto" or "cpu", or install a CUDA build of torch and a '
            "driver; `fedrec doctor` shows what torch finds.",
        )
    if index >= n_devices:
        there = "only cuda:0" if n_devices == 1 else f"cuda:0 to cuda:{n_devices - 1}"
        raise SettingsError(
            f'client.device is "{name}", but torch finds {there}.',
            remedy=f'Set client.device to "cuda:{n_devices - 1}" or a lower one; '
            "CUDA_VISIBLE_DEVICES may hide others.",
        )
    return torch.device("cuda", index)


def memory_on(device: torch.device, device_memory_mib: int) -> int:
    """Return the bytes of a CUDA device that training may take; 0 on a processor.

    Args:
        device_memory_mib: `client.device_memory_mib`; 0 for a share of what is free.
    """
    if device.type != "cuda":
        return 0
    if device_memory_mib:
        return device_memory_mib << 20
    free, _ = torch.cuda.mem_get_info(device)
    return int(free * _SHARE_OF_FREE)
