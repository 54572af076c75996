"""What the bodies of requests have in common."""
