"""Recommendations from a trained model, without torch."""

from fedrec.recommender.model_file import MODEL_NAME, USERS_NAME, ModelFile, UsersFile
from fedrec.recommender.ranking import RankedItems, Vectors
from fedrec.recommender.recommender import CATALOGUE_NAME, Recommender

__all__ = [
    "CATALOGUE_NAME",
    "MODEL_NAME",
    "USERS_NAME",
    "ModelFile",
    "RankedItems",
    "Recommender",
    "UsersFile",
    "Vectors",
]
