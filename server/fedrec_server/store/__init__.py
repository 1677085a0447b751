"""What survives `kill -9`: rows in one database and files beside it."""
