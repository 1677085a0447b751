"""The section `update` of a settings file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedrec.section import Section, UsedIf


class UpdateSettings(Section):
    """What is trained and sent in place of a full item table."""

    structure: Literal["dense", "colr", "scolr", "svd", "topk"] = Field(
        default="colr",
        description="dense trains n_items x dim values, colr and scolr n_items x rank; svd and "
        "topk train dense and compress, without shrinking the vector that is sent.",
    )
    rank: int = Field(
        default=4,
        ge=1,
        le=1024,
        description="Rank of the update (colr), of the largest one (scolr), or what is left of "
        "it (svd); at most dim.",
    )
    ratio: Annotated[float, UsedIf({"structure": ("topk",)})] = Field(
        default=0.0625,
        gt=0,
        le=1,
        description="Share of all n_items x dim values that is kept.",
    )
    compress: Annotated[Literal["user", "client"], UsedIf({"structure": ("svd", "topk")})] = Field(
        default="user",
        description="Whose change is compressed before it is sent: each user's, as "
        "in the papers, or the sum of a client's users.",
    )
    indices: Annotated[Literal["hidden", "clear"], UsedIf({"structure": ("topk",)})] = Field(
        default="hidden",
        description="hidden sends zeros along, so that no index travels; clear sends the kept "
        "values alone, each with its index, which the coordinator reads and which names a user's "
        "items (under paillier's single sets, one user a client, as in the papers).",
    )
    subset: Annotated[Literal["user", "client"], UsedIf({"structure": ("scolr",)})] = Field(
        default="user",
        description="Who draws rows of B: each user, as in the paper, or each client for "
        "all its users.",
    )
    normaliser: Annotated[Literal["item", "entry"], UsedIf({"structure": ("scolr",)})] = Field(
        default="item",
        description="Changes are divided by the users who touched the item, or by those who "
        "trained that very value; entry sends a count for every value.",
    )
    clip: float = Field(
        default=1.0,
        gt=0,
        le=1e6,
        description="Every value of a user's update is clipped to [-clip, clip]; a public range.",
    )
    fraction_bits: int = Field(
        default=20,
        ge=4,
        le=40,
        description="Values are rounded to multiples of clip x 2^-fraction_bits.",
    )
