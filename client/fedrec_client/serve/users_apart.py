"""Read the users' data in a process of its own, whose memory the service does not keep.

It answers on its standard output: one byte for the kind of the answer, then its content.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict

from fedrec import errors
from fedrec.data.reading import DataSettings
from fedrec.errors import FedrecError, StorageError
from fedrec.ids import RoundId
from fedrec.model.state import PrivateState
from fedrec.processes import child_command, ignore_stop_signals
from fedrec.recommender import UsersFile
from fedrec.recommender.tail import TailFigures
from fedrec.settings.schema import ClientSettings, Settings
from fedrec_client.own_recommender import needs_training_code, own_users, private_of, tail_of
from fedrec_client.state.held_model import HeldModel, Which, read_held_model

_ERROR, _USERS = b"E", b"U"


UsersAndTail = tuple[UsersFile, TailFigures | None]


def read_users_apart(settings: Settings, which: Which, version: RoundId) -> UsersAndTail:
    """Read the users with their histories, and with parameters if those must be computed.

    If the state folder already has the parameters, `private` is empty. With `client.tail` the
    weight of the items that don't travel is chosen, too.

    Args:
        version: the version for which users are needed.

    Raises:
        StorageError: the folder has another version now, or cannot be read.
        DataError: the data cannot be used.
    """
    asked = {
        "data": settings.data.model_dump(mode="json"),
        "client": settings.client.model_dump(mode="json"),
        "which": which,
        "version": version,
    }
    done = subprocess.run(
        child_command(__name__),
        input=json.dumps(asked).encode(),
        stdout=subprocess.PIPE,
        check=False,
    )
    kind, content = done.stdout[:1], done.stdout[1:]
    if done.returncode or kind not in (_ERROR, _USERS):
        raise StorageError(
            f"The process that reads the users' data ended with {done.returncode}.",
            remedy="See the lines above. It may need more memory.",
        )
    if kind == _ERROR:
        fields = json.loads(content)
        type_of = errors.ERRORS.get(fields["code"], StorageError)
        raise type_of(fields["message"], remedy=fields["remedy"])
    figures, _, content = content.partition(b"\n")
    tail = TailFigures(**found) if (found := json.loads(figures)) else None
    return UsersFile.from_bytes(content, "the users' data"), tail


def _read(held: HeldModel, settings: Settings) -> UsersAndTail:
    users, tail = own_users(settings, held), None
    private = private_of(settings.client, held, users)
    if settings.client.tail:
        tail = tail_of(settings.client, held, users, private)
    if not needs_training_code(held):
        private = PrivateState.of({})
    return UsersFile.of(users, private), tail


def _main() -> None:
    # Ctrl-C reaches the whole process group, but the serving process ends this one.
    ignore_stop_signals()
    # Output of libraries must not mix with the bytes.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    asked = json.load(sys.stdin)
    settings = Settings(
        data=DataSettings.model_validate(asked["data"]),
        client=ClientSettings.model_validate(asked["client"]),
    )
    try:
        held = read_held_model(settings, asked["which"])
        if held.version != asked["version"]:
            raise StorageError("The state folder changed to a different version during the read.")
        users, tail = _read(held, settings)
    except FedrecError as error:
        fields = {"code": error.code, "message": error.message, "remedy": error.remedy}
        answers.write(_ERROR + json.dumps(fields).encode())
    else:
        answers.write(_USERS + json.dumps(tail and asdict(tail)).encode() + b"\n")
        answers.writelines(users.parts())
    answers.flush()


if __name__ == "__main__":
    _main()
