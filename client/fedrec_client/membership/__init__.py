"""The client in its federation: joining and leaving, and what a member signs and believes."""
