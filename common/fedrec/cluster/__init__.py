"""Train and measure a party's users on several machines. Only `ray_executor` imports Ray."""
