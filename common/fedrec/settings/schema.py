"""A settings file: the plan, and the sections about one machine, which are agreed on with nobody.

`data`, `coordinator`, `client`, `output` and `parties` travel nowhere; the plan's sections are in
`fedrec.plan.schema`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from fedrec.data.reading import DataSettings
from fedrec.errors import SettingsError
from fedrec.listening import address_to_call, plain_host, split_address, written_address
from fedrec.plan.schema import Plan
from fedrec.section import InWords, Section

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def _plain(read: Callable[[str], str]) -> AfterValidator:
    """Return what gives a setting the form in which `fedrec.listening` passes it on."""

    def checked(value: str) -> str:
        try:
            return read(value)
        except SettingsError as error:
            raise ValueError(str(error)) from None

    return AfterValidator(checked)


_Host = Annotated[str, _plain(plain_host), InWords("a host, as in 127.0.0.1, ::1 or 0.0.0.0")]
_Address = Annotated[
    str, _plain(address_to_call), InWords("host:port, as in fedrec.example:7447 or [::1]:7447")
]
_AddressOrNone = Annotated[
    str,
    _plain(lambda value: value and written_address(*split_address(value))),
    InWords("host:port, as in 127.0.0.1:7448 or [::1]:7448, or empty"),
]


class _Observed(Section):
    """How a party is watched; the settings that a coordinator and a client have in common."""

    metrics_address: _AddressOrNone = Field(
        default="",
        description="host:port at which Prometheus reads this party's numbers, as in "
        "127.0.0.1:9464; empty serves none. An address that other machines reach needs "
        "metrics_token.",
    )
    metrics_token: str | None = Field(
        default=None,
        description="A file with a bearer token of 32 characters or more: a reader of the "
        "numbers has to show it.",
    )
    metrics_certificate: str | None = Field(
        default=None,
        description="A private key and its certificate (PEM), with which the numbers are served "
        "over TLS; without it anybody on the way reads the token.",
    )
    log_format: Literal["text", "json"] = Field(
        default="text",
        description="Lines of the log for people, or one JSON object a line.",
    )


class CoordinatorSettings(_Observed):
    """How this coordinator listens and stores."""

    host: _Host = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=7447, ge=0, le=65535, description="Port; 0 takes a free one.")
    state: str = Field(default="coordinator-state", description="Folder of the database and spool.")
    epoch: str = Field(default="keys/epoch.json", description="The key authority's public bundle.")
    certificate: str = Field(
        default="keys/coordinator.pem",
        description="This coordinator's key and certificate, which the key authority made (PEM).",
    )
    operators: str = Field(
        default="keys/operator.crt",
        description="Certificates of those who may call the operators' service, one after the "
        "other (PEM); read at every call.",
    )
    reflection: bool = Field(default=False, description="Offer gRPC server reflection.")
    maximum_upload_bytes: int = Field(
        default=1 << 30, ge=1 << 10, description="Largest update accepted."
    )
    reserve_bytes: int = Field(
        default=64 << 20, ge=0, description="Free disk space below which uploads are refused."
    )
    page: _AddressOrNone = Field(
        default="",
        description="host:port of a page on which a browser shows the run, as in 127.0.0.1:7448; "
        "empty serves none. On 127.0.0.1 everybody with an account on this machine may look; on "
        "an address that other machines reach it speaks TLS, and who looks needs a link of "
        "`fedrec watch ADDRESS --web`.",
    )
    page_certificate: str | None = Field(
        default=None,
        description="A private key and its certificate (PEM) for the page, of an issuer that "
        "browsers know; without it coordinator.certificate, of which browsers warn until the key "
        "authority's certificate is imported.",
    )
    page_link: bool = Field(
        default=False,
        description="Ask for TLS and a link on 127.0.0.1, too: for a machine on which others have "
        "accounts.",
    )


class ClientSettings(_Observed):
    """How this client reaches the coordinator and keeps its private state."""

    coordinator: _Address = Field(default="127.0.0.1:7447", description="host:port to call.")
    state: str = Field(default="client-state", description="Folder of keys and private vectors.")
    authority_key: str = Field(
        default="keys/authority.pub.json",
        description="The key authority's pinned public key and its certificate.",
    )
    certificate: str | None = Field(
        default=None,
        description="This client's certificate, which the key authority made (PEM); without it, "
        "client.crt in the state folder.",
    )
    invitation: str | None = Field(
        default=None,
        description="An invitation of the key authority: at its first start this client makes its "
        "keys, applies with it, and keeps the certificate that it is given.",
    )
    when_away: Literal["wait", "go_on"] = Field(
        default="wait",
        description="What rounds do while this client is away: wait for it, or go on without it, "
        "as over a guest. What a guest contributed may become computable from two sums, one with "
        "it and one without. It signs the word when it applies; later there is `fedrec client "
        "leave`, and no way back.",
    )
    minimum_own_item_users: int = Field(
        default=1,
        ge=1,
        le=1_000_000,
        description="This client contributes nothing to the row of an item that fewer of its own "
        "users hold: no count, no pair, no statistic and no sampled negative. Other members can "
        "raise the federation's count of a rare item, but not this one. 1 sets no floor; 3 or "
        "more suits a client with many users, and `fedrec check` recommends a value.",
    )
    accept_member_exposure: bool = Field(
        default=False,
        description="Take part though a member with changed software could read the histories of "
        "some of this client's users (`fedrec check` says when). `fedrec provision` "
        "prints what it could read and writes this into the kits.",
    )
    device: Annotated[
        str,
        Field(pattern=r"^(auto|cpu|cuda|cuda:[0-9]{1,4})$"),
        InWords('"auto", "cpu", "cuda" or "cuda:N", N a number'),
    ] = Field(
        default="auto",
        description="What trains: the processor or a CUDA device; auto takes one that is there.",
    )
    device_memory_mib: int = Field(
        default=0,
        ge=0,
        description="Memory of a CUDA device that training may take; 0 takes six tenths of what "
        "is free at the start. On a processor it changes nothing.",
    )
    memory_mib: int = Field(
        default=2048,
        ge=64,
        description="Memory that a training chunk may take. "
        "Private tables that take more lie in files.",
    )
    threads: int = Field(default=0, ge=0, description="CPU threads; 0 leaves it to torch.")
    workers: Literal["auto"] | Annotated[int, Field(ge=1, le=256)] = Field(
        default="auto",
        description="Processes that train on a CPU; 1 trains in this one. auto takes one for each "
        "processor (at most client.threads, else eight) in rounds that would take more than about "
        "five seconds. The number changes no result.",
    )
    label: str = Field(
        default="",
        max_length=64,
        description="A name for people to read; a state folder whose keys have another is refused.",
    )


class PartiesSettings(Section):
    """Who takes part; `fedrec provision` makes a kit for each, and nobody else reads it."""

    address: _Address = Field(
        default="127.0.0.1:7447",
        description="host:port at which clients and the key authority call the coordinator.",
    )
    clients: list[str] = Field(
        default=[],
        description="The clients' names, each the name of its kit's folder: letters, digits and "
        ". _ - as in hospital-a.",
    )
    go_on: list[str] = Field(
        default=[],
        description="Those without whom rounds go on while they are away (client.when_away), if "
        "they agree to it. All others have to be there in every round.",
    )

    @model_validator(mode="after")
    def _are_names(self) -> Self:
        seen = set()
        for name in self.clients:
            if not _NAME.fullmatch(name):
                raise ValueError(f"clients: {name!r} cannot be the name of a folder.")
            if name.lower() in seen:
                raise ValueError(f"clients: {name!r} is named twice.")
            seen.add(name.lower())
        for name in self.go_on:
            if name not in self.clients:
                raise ValueError(f"go_on: {name!r} is none of the clients.")
        return self


class OutputSettings(Section):
    """Where results go."""

    runs: str = Field(default="runs", description="Folder in which every run makes its own.")


class Settings(Plan):
    """A whole settings file."""

    data: DataSettings = DataSettings()
    coordinator: CoordinatorSettings = CoordinatorSettings()
    client: ClientSettings = ClientSettings()
    output: OutputSettings = OutputSettings()
    parties: PartiesSettings = PartiesSettings()

    @property
    def plan(self) -> Plan:
        """Return the part that all parties share."""
        return Plan(**{name: getattr(self, name) for name in Plan.model_fields})
