"""What stands around the application: who may ask, how much, how long; logs, shutdown, readiness."""
