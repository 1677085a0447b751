"""`fedrec demo`: a whole federation on this machine, in about two minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedrec.cli.flags import AcceptExposure
from fedrec.cli.terminal import Result, new_console

EPILOG = """
Examples:

  fedrec demo                          CKKS, lean parameters

  fedrec demo --protection bfv         exact integers, about half the bytes

  fedrec demo --protection ckks --preset paper

  fedrec demo --protection paillier    packed integers, a third of the bytes of bfv

  fedrec demo --protection masks       no shared key, 4 bytes a value. The coordinator reads sums

  fedrec demo --algorithm fedals       only the second act

  fedrec demo --no-second-act          only FedMF with CoLR

  fedrec demo --protection none --rounds 20 --synthetic
"""


def demo(
    algorithm: Annotated[
        str, typer.Option(help="fedmf with CoLR, fedals (fewer rounds) or ease.")
    ] = "fedmf",
    protection: Annotated[str, typer.Option(help="none, bfv, ckks, paillier or masks.")] = "ckks",
    preset: Annotated[
        str, typer.Option(help="Parameter set, as listed by `fedrec check`.")
    ] = "default",
    rounds: Annotated[
        int, typer.Option(min=0, help="Training rounds. If 0, `fedrec init` chooses.")
    ] = 0,
    rank: Annotated[
        int, typer.Option(min=0, max=16, help="Rank of the updates. If 0, `fedrec init` chooses.")
    ] = 0,
    clients: Annotated[int, typer.Option(min=1, max=20, help="Client processes.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the model and the training.")] = 1,
    synthetic: Annotated[
        bool, typer.Option("--synthetic", help="Synthetic taste clusters instead of MovieLens.")
    ] = False,
    compare: Annotated[
        bool, typer.Option("--compare/--no-compare", help="Also run it without encryption.")
    ] = True,
    second_act: Annotated[
        bool,
        typer.Option("--second-act/--no-second-act", help="After fedmf, run fedals under bfv."),
    ] = True,
    keep_recording: Annotated[
        bool,
        typer.Option(
            "--keep-recording", help="Keep the recorded traffic, about 140 MB, in the run's folder."
        ),
    ] = False,
    accept_exposure: AcceptExposure = False,
    runs: Annotated[Path, typer.Option(help="Folder for the run's folder.")] = Path("runs"),
    as_json: bool = False,
) -> Result:
    """Train a recommender over three client processes, with encrypted updates.

    Fetches MovieLens-100K and starts a coordinator and clients on 127.0.0.1. Each client has a
    third of the users in its own private folder. FedMF with CoLR runs first, then fedals under bfv.
    Ends with quality, bytes, the coordinator's view, ten recommendations, and the run's folder.
    """
    from fedrec.errors import SettingsError
    from fedrec.protection import PROTECTIONS
    from fedrec.settings.starter import TUNED
    from fedrec_lab.demo.demonstration import DemoOptions, demonstrate

    if protection not in PROTECTIONS:
        raise SettingsError(
            f'--protection is "{protection}".', remedy=f"Use one of {', '.join(PROTECTIONS)}."
        )
    if algorithm not in TUNED:
        raise SettingsError(
            f'--algorithm is "{algorithm}".', remedy=f"Use one of {', '.join(TUNED)}."
        )
    if protection != "none" and clients < 3:
        raise SettingsError(
            f"--clients is {clients}, but sums of fewer than 3 clients are never revealed.",
            remedy="Use at least 3 clients, or --protection none.",
        )
    options = DemoOptions(
        algorithm=algorithm,
        protection=protection,
        preset=preset,
        rounds=rounds,
        rank=rank,
        n_clients=clients,
        seed=seed,
        synthetic=synthetic,
        compare=compare,
        second_act=second_act,
        keep_recording=keep_recording,
        accept_exposure=accept_exposure,
        runs=runs,
    )
    return demonstrate(options, new_console(stderr=as_json))
