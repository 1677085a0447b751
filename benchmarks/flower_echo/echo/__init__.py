"""A Flower app without training, which `bench_flower_deployed.py` runs in Flower's environment."""
