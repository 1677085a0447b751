"""The commands of the laboratory, one file each. Heavy imports happen within the commands."""
