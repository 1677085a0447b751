"""The schema of a settings file: the plan, and the sections that belong to one machine.

`data`, `coordinator`, `client`, `output` and `parties` are never sent. The plan's sections are in
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
from fedrec.section import InWords, Section, UsedIf, as_toml
from fedrec.showing import html_table

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def _plain(read: Callable[[str], str]) -> AfterValidator:
    """Return a validator that turns a setting into the form used by `fedrec.listening`."""

    def checked(value: str) -> str:
        try:
            return read(value)
        except SettingsError as error:
            raise ValueError(str(error)) from None

    return AfterValidator(checked)


_Host = Annotated[str, _plain(plain_host), InWords("a host, such as 127.0.0.1, ::1 or 0.0.0.0")]
_Address = Annotated[
    str, _plain(address_to_call), InWords("host:port, such as fedrec.example:7447 or [::1]:7447")
]
_AddressOrNone = Annotated[
    str,
    _plain(lambda value: value and written_address(*split_address(value))),
    InWords("host:port, such as 127.0.0.1:7448 or [::1]:7448, or empty"),
]


class _Observed(Section):
    """Monitoring settings that a coordinator and a client have in common."""

    metrics_address: _AddressOrNone = Field(
        default="",
        description="host:port at which Prometheus reads this party's metrics, such as "
        "127.0.0.1:9464. If empty, metrics aren't served. An address that other machines can reach "
        "needs metrics_token.",
    )
    metrics_token: str | None = Field(
        default=None,
        description="A file with a bearer token of 32 characters or more, which a reader of the "
        "metrics must send.",
    )
    metrics_certificate: str | None = Field(
        default=None,
        description="A private key and its certificate (PEM), to serve the metrics over TLS. "
        "Without it, the token travels in the clear.",
    )
    log_format: Literal["text", "json"] = Field(
        default="text",
        description="Log as text for people, or as one JSON object a line.",
    )


class CoordinatorSettings(_Observed):
    """The coordinator's address, storage, certificates and page."""

    host: _Host = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(
        default=7447, ge=0, le=65535, description="Port to listen on. If 0, uses a free port."
    )
    state: str = Field(default="coordinator-state", description="Folder of the database and spool.")
    epoch: str = Field(
        default="keys/epoch.json", description="The key authority's public bundle of the key epoch."
    )
    certificate: str = Field(
        default="keys/coordinator.pem",
        description="This coordinator's key and certificate from the key authority (PEM).",
    )
    operators: str = Field(
        default="keys/operator.crt",
        description="Concatenated certificates (PEM) that may call the operators' service. "
        "Read at every call.",
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
        description="host:port of a page that shows the run in a browser, such as "
        "127.0.0.1:7448. If empty, no page is served. On 127.0.0.1 every account here can open it. "
        "On an address that other machines can reach it uses TLS, and a visitor needs "
        "a link from `fedrec watch ADDRESS --web`.",
    )
    page_certificate: str | None = Field(
        default=None,
        description="A private key and its certificate (PEM) for the page, from an issuer that "
        "browsers trust. If omitted, coordinator.certificate, which browsers warn "
        "about until you import the key authority's certificate.",
    )
    page_link: bool = Field(
        default=False,
        description="Require TLS and a link on 127.0.0.1, too. Use it on a machine with other "
        "users' accounts.",
    )


class ClientSettings(_Observed):
    """The client's connection to the coordinator, its identity, and its private state."""

    coordinator: _Address = Field(
        default="127.0.0.1:7447", description="host:port of the coordinator."
    )
    state: str = Field(default="client-state", description="Folder of keys and private vectors.")
    authority_key: str = Field(
        default="keys/authority.pub.json",
        description="The key authority's pinned public key and its certificate.",
    )
    certificate: str | None = Field(
        default=None,
        description="This client's certificate from the key authority (PEM). If omitted, "
        "client.crt in the state folder.",
    )
    invitation: str | None = Field(
        default=None,
        description="An invitation from the key authority. At its first start the client makes "
        "its keys, applies with it, and stores its certificate.",
    )
    when_away: Literal["wait", "go_on"] = Field(
        default="wait",
        description="Whether rounds wait for this client while it is away, or proceed without it "
        "as a guest. A guest's contribution may become computable from two sums, one "
        "with it and one without. The client signs this choice when it applies. "
        "`fedrec client leave` changes it later, and can't be undone.",
    )
    minimum_own_item_users: int = Field(
        default=1,
        ge=1,
        le=1_000_000,
        description="This client contributes nothing to the row of an item that fewer of its own "
        "users hold: no count, pair, statistic or sampled negative. Other members can "
        "raise the federation's count of a rare item, but not this one. 1 sets no "
        "floor, 3 or more suits a client with many users. `fedrec check` recommends a "
        "value.",
    )
    tail: bool = Field(
        default=False,
        description="Tail at home: also recommend items whose rows don't travel, by scores that "
        "this client computes from its own users' histories. Its validation items choose their "
        "weight. Nothing of it is sent or exported. For 8,192 users at most.",
    )
    tail_minimum_users: Annotated[int, UsedIf({"tail": (True,)})] = Field(
        default=3,
        ge=1,
        le=1_000_000,
        description="Tail at home leaves out items that fewer of this client's own users hold. "
        "With fewer, one user's rare history could show in another user's list.",
    )
    accept_member_exposure: bool = Field(
        default=False,
        description="Take part even if a member with changed software could read the histories of "
        "some of this client's users (see `fedrec check`). `fedrec provision` prints "
        "what it could read and writes this setting into the kits.",
    )
    device: Annotated[
        str,
        Field(pattern=r"^(auto|cpu|cuda|cuda:[0-9]{1,4})$"),
        InWords('"auto", "cpu", "cuda" or "cuda:N", N a number'),
    ] = Field(
        default="auto",
        description="Device for training: the processor or a CUDA device. auto takes a CUDA device "
        "if there is one.",
    )
    device_memory_mib: int = Field(
        default=0,
        ge=0,
        description="Memory of a CUDA device for training. If 0, uses six tenths of the "
        "memory that is free at the start. No effect on a CPU.",
    )
    memory_mib: int = Field(
        default=2048,
        ge=64,
        description="Memory for a training chunk. Larger private tables are kept in files.",
    )
    threads: int = Field(default=0, ge=0, description="CPU threads. If 0, torch decides.")
    workers: Literal["auto"] | Annotated[int, Field(ge=1, le=256)] = Field(
        default="auto",
        description="Processes that train and measure on a CPU. 1 uses the client's own process. "
        "auto uses one for each processor (at most client.threads, otherwise eight) if training or "
        "measuring takes longer than about five seconds. Results don't depend on it.",
    )
    engine: Literal["local", "ray"] = Field(
        default="local",
        description="Train and measure users on this machine, or on a Ray cluster that "
        "this machine belongs to, with one worker for each of its processors or client.workers in "
        "all. With client.device on CUDA, each worker takes one GPU instead. On processors, "
        "results don't depend on it.",
    )
    ray_address: Annotated[str, UsedIf({"engine": ("ray",)})] = Field(
        default="auto",
        min_length=1,
        description="host:port of the Ray cluster's head. auto is the cluster that runs on this "
        "machine.",
    )
    label: str = Field(
        default="",
        max_length=64,
        description="A display name. A state folder whose keys have a different label is refused.",
    )


class PartiesSettings(Section):
    """The parties for which `fedrec provision` makes kits. No other command reads this section."""

    address: _Address = Field(
        default="127.0.0.1:7447",
        description="host:port of the coordinator, for clients and the key authority.",
    )
    clients: list[str] = Field(
        default=[],
        description="The clients' names, which are also the folders of their kits: letters, "
        "digits and . _ - as in hospital-a.",
    )
    go_on: list[str] = Field(
        default=[],
        description="Rounds proceed without these clients while they are away, if they set "
        'client.when_away = "go_on". All others must be present in every round.',
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
                raise ValueError(f"go_on: {name!r} is not one of the clients.")
        return self


class OutputSettings(Section):
    """The folder for results."""

    runs: str = Field(
        default="runs", description="Folder in which every run creates its own folder."
    )


class Settings(Plan):
    """A complete settings file. It is frozen: use `load_settings` for other values."""

    data: DataSettings = DataSettings()
    coordinator: CoordinatorSettings = CoordinatorSettings()
    client: ClientSettings = ClientSettings()
    output: OutputSettings = OutputSettings()
    parties: PartiesSettings = PartiesSettings()

    @property
    def plan(self) -> Plan:
        """Return the part that all parties share."""
        return Plan(**{name: getattr(self, name) for name in Plan.model_fields})

    def _repr_html_(self) -> str:
        rows = [
            (f"{section}.{name}", as_toml(getattr(part, name)))
            for section in type(self).model_fields
            for part in (getattr(self, section),)
            for name in type(part).model_fields
            if section in Plan.model_fields or not part.is_default(name)
        ]
        title = f"{self.algorithm.name} ({self.update.structure}), {self.protection.name}"
        return html_table(("setting", "value"), rows, caption=title, most=len(rows))
