"""Where training runs."""

from __future__ import annotations

import torch

from fedrec.errors import SettingsError

__all__ = ["choose_device"]


def choose_device(name: str) -> torch.device:
    """Return the device that `client.device` names.

    Raises:
        SettingsError: when CUDA is asked for and there is none.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise SettingsError(
            f'client.device is "{name}".', remedy="Use auto, cpu, cuda or cuda:N."
        ) from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SettingsError(
            f'client.device is "{name}", but torch finds no CUDA device.',
            remedy='Set client.device = "auto" or install a CUDA build of torch.',
        )
    return device
