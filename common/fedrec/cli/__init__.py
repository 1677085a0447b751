"""The command `fedrec`, a file per verb; heavy imports happen within the verbs."""
