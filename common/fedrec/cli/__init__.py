"""The command `fedrec`, with one file per verb. Heavy imports happen inside the verbs."""
