"""Using the model in the state folder: recommendations and exports, without the coordinator."""
