"""Who is a member, who may join, who operates, and which cells there are."""
