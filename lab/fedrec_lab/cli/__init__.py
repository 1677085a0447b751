"""The verbs of the laboratory, a file per verb; heavy imports happen within the verbs."""
