"""What /openapi.json says of requests and responses."""
