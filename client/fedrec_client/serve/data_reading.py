"""Reading the users' data in a process of its own, which then ends.

A table of a million interactions takes seconds and hundreds of megabytes to read, and some
algorithms make their users' parameters with torch. The serving thread should notice nothing
of either, and keep nothing of either in memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from fedrec import errors
from fedrec.child_process import child_command
from fedrec.config.schema import ClientSettings, DataSettings, Settings
from fedrec.errors import FedrecError, StorageError
from fedrec.ids import RoundId
from fedrec.model.state import PrivateState
from fedrec.recommender import UsersFile
from fedrec.stop_signals import ignore_stop_signals
from fedrec_client.recommending.own_recommender import needs_training_code, private_of, users_of
from fedrec_client.state.held_model import HeldModel, Which, read_held_model

__all__ = ["read_users_apart"]

_ERROR, _USERS = b"E", b"U"


def read_users_apart(settings: Settings, which: Which, version: RoundId) -> UsersFile:
    """Return the users with their histories, and their parameters if these have to be made.

    Where they lie in the state folder already, `private` is empty.

    Args:
        version: the one whose users are wanted.

    Raises:
        StorageError: the folder moved on, or cannot be read.
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
            remedy="See the lines above; it may want more memory.",
        )
    if kind == _ERROR:
        said = json.loads(content)
        type_of = errors.ERRORS.get(said["code"], StorageError)
        raise type_of(said["message"], remedy=said["remedy"])
    return UsersFile.from_bytes(content, "the users' data")


def _users(held: HeldModel, settings: Settings) -> UsersFile:
    users = users_of(settings.data, held)
    private = PrivateState.of({})
    if needs_training_code(held):
        private = private_of(settings.client, held, users)
    return UsersFile.of(users, private)


def _main() -> None:
    # Ctrl-C reaches the whole group; the process that serves ends this one.
    ignore_stop_signals()
    # Nothing that a library prints may get among the bytes.
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
            raise StorageError("The state folder has moved on to another version meanwhile.")
        users = _users(held, settings)
    except FedrecError as error:
        said = {"code": error.code, "message": error.message, "remedy": error.remedy}
        answers.write(_ERROR + json.dumps(said).encode())
    else:
        answers.write(_USERS)
        answers.writelines(users.parts())
    answers.flush()


if __name__ == "__main__":
    _main()
