"""The section `update` of a settings file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedrec.section import InWords, Section, UsedIf


class UpdateSettings(Section):
    """The structure, range and grid of updates."""

    structure: Annotated[
        Literal["dense", "colr", "scolr", "svd", "topk"],
        InWords(default="the algorithm's own, mostly dense"),
    ] = Field(
        default="colr",
        description="dense trains n_items x dim values, colr and scolr n_items x rank. svd and "
        "topk train dense and compress, without shrinking the vector that is sent.",
    )
    rank: int = Field(
        default=4,
        ge=1,
        le=1024,
        description="Rank of the update (colr), of the largest one (scolr), or of the compressed "
        "change (svd), at most dim.",
    )
    ratio: Annotated[float, UsedIf({"structure": ("topk",)})] = Field(
        default=0.0625,
        gt=0,
        le=1,
        description="Share of all n_items x dim values that is kept.",
    )
    compress: Annotated[Literal["user", "client"], UsedIf({"structure": ("svd", "topk")})] = Field(
        default="user",
        description="Whether each user's change is compressed before it is sent, as in the "
        "papers, or the sum of a client's users.",
    )
    indices: Annotated[Literal["hidden", "clear"], UsedIf({"structure": ("topk",)})] = Field(
        default="hidden",
        description="hidden sends zeros along, so no index travels. clear sends only the kept "
        "values, each with its index. The coordinator reads the indices, which name a user's items "
        "(under paillier's single sets, one user per client, as in the papers).",
    )
    subset: Annotated[Literal["user", "client"], UsedIf({"structure": ("scolr",)})] = Field(
        default="user",
        description="Whether each user draws rows of B, as in the paper, or each client for all "
        "its users.",
    )
    normaliser: Annotated[Literal["item", "entry"], UsedIf({"structure": ("scolr",)})] = Field(
        default="item",
        description="Changes are divided by the users that touched the item (item), or by the "
        "users that trained that value (entry). entry sends a count for every value.",
    )
    clip: float = Field(
        default=1.0,
        gt=0,
        le=1e6,
        description="Every value of a user's update is clipped to [-clip, clip], a public range.",
    )
    fraction_bits: int = Field(
        default=20,
        ge=4,
        le=40,
        description="Values are rounded to multiples of clip x 2^-fraction_bits.",
    )
