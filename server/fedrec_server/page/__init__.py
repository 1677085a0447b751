"""A web page that shows a running federation, next to the coordinator's gRPC port."""
